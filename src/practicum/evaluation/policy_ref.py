"""A policy by name: a scripted one, a server's model, or a model as every command takes it."""

from __future__ import annotations

from dataclasses import dataclass

from practicum.data.run_folder import ModelRef, resolve_model
from practicum.rollout_settings import RolloutSettings
from practicum.rollout_setup import SCRIPTED, RolloutSetup


@dataclass(frozen=True)
class PolicyRef(ModelRef):
    """A resolved policy: its `stage` may also be `scripted` or `server`."""

    def make_setup(self, settings: RolloutSettings, default_temperature: float) -> RolloutSetup:
        """The environment of `settings` with this policy acting in it; a local model is loaded now."""
        return settings.make_setup(default_temperature, self)


def find(policy: str, url: str | None = None, base: str | None = None) -> PolicyRef:
    """Resolve a policy's name."""
    if url is not None:
        return PolicyRef(policy, "server")
    if policy in SCRIPTED:
        return PolicyRef(policy, "scripted")
    ref = resolve_model(policy, base)
    return PolicyRef(ref.model, ref.stage, ref.adapter, ref.run)
