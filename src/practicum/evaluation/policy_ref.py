"""A policy by name: a scripted one, a server's model, or a model as every command takes it."""

from __future__ import annotations

from dataclasses import dataclass

from practicum.data.run_folder import ModelRef, resolve_model
from practicum.environment import Environment
from practicum.rollout_settings import RolloutSettings
from practicum.rollout_setup import SCRIPTED, RolloutSetup, check_policy_name, scripted_names


@dataclass(frozen=True)
class PolicyRef(ModelRef):
    """A resolved policy: its `stage` may also be `scripted` or `server`."""

    def make_setup(self, settings: RolloutSettings, default_temperature: float) -> RolloutSetup:
        """The environment of `settings` with this policy acting in it; a local model is loaded now."""
        return settings.make_setup(default_temperature, self)


def find(
    policy: str, url: str | None = None, base: str | None = None, environment: Environment | None = None
) -> PolicyRef:
    """Resolve the name of a policy; `environment` has scripted policies of its own besides those of all."""
    if url is not None:
        return PolicyRef(policy, "server")
    if policy in (SCRIPTED if environment is None else scripted_names(environment)):
        return PolicyRef(policy, "scripted")
    if environment is not None:
        check_policy_name(policy, environment)
    ref = resolve_model(policy, base)
    return PolicyRef(ref.model, ref.stage, ref.adapter, ref.run)
