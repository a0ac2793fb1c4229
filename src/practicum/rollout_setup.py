"""A rollout made from names: the environment, the agent, and the engine of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from practicum.agent import Agent, Deadlines, RoleSettings
from practicum.chat.renderer import Renderer
from practicum.data.run_folder import ModelRef, resolve_model
from practicum.engines.base import Engine, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.engines.openai import OpenAIEngine
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import ChatModel, Environment
from practicum.errors import UserError, did_you_mean
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.models.loader import Device, resolve_device
from practicum.policy import Judge, Policy
from practicum.registry import environment_maker, make_format
from practicum.rollout import MakeEnvironment, with_models

SCRIPTED = ("expert", "random", "null")
"""Policies of plain Python that every environment has."""
DEFAULT_MAX_TURNS = 10
ROLES = "roles"
"""The folder within a model's folder that holds the adapters of its roles."""


@dataclass(frozen=True)
class RolloutSetup:
    """All that running episodes needs; `environment` is an instance for task lists, episodes make their own."""

    make_environment: MakeEnvironment
    environment: Environment
    agent: Agent
    engine: Engine
    renderer: Renderer
    model: str
    template: str | None
    policies: Mapping[str, Policy] = field(default_factory=dict)
    """The policies of roles that do not act with `engine`."""
    asked: Mapping[str, Policy] = field(default_factory=dict)
    """The policies of the models that the environment asks by itself."""

    async def close(self) -> None:
        """Close all engines."""
        engines = {id(self.engine): self.engine}
        engines |= {id(one.engine): one.engine for one in (*self.policies.values(), *self.asked.values())}
        for engine in engines.values():
            await engine.close()

    @property
    def provenance(self) -> dict[str, Any]:
        """Return what the ids of an episode depend on: model, tokenizer (by hash) and chat template."""
        vocabulary = loader.tokenizer_hash(self.renderer.tokenizer)
        return {"model": self.model, "tokenizer": vocabulary, "template": self.template}


def make_rollout_setup(
    environment: str,
    policy: str,
    *,
    format: str | None = None,
    model: str = "tiny",
    options: Mapping[str, Any] | None = None,
    sampling: Sampling | None = None,
    max_turns: int | None = None,
    deadlines: Deadlines | None = None,
    template: str | None = None,
    url: str | None = None,
    device: Device | None = None,
    ref: ModelRef | None = None,
    roles: Mapping[str, str] | None = None,
) -> RolloutSetup:
    """Return the setup of a policy in an environment.

    `policy` is expert, random, null, a model (name, hub id, or folder of a model, adapter or run), or the name of a
    model served at `url`. Replies of a scripted policy or of a server are tokenised for `model`. `options` are the
    environment's own. The model is loaded onto `device`; by default that is a GPU where there is one. `ref` is the
    model, where it is resolved already. `roles` names the policies of single roles and of models that the environment
    asks, as `policy` does, with `@URL` behind the name of a server's model; roles without one act with `policy`, or
    with the adapter that the trained policy has for them.
    """
    make_environment, format_name = environment_maker(environment, format, options)
    agent = Agent(
        format=format_name,
        max_turns=max_turns or DEFAULT_MAX_TURNS,
        sampling=sampling or Sampling(),
        deadlines=deadlines or Deadlines(),
    )
    instance = make_environment()
    device = device or resolve_device()
    if url is None and policy not in SCRIPTED:
        ref = ref or resolve_model(policy)
    check_role_names(instance, roles or {})
    engine, renderer, name = _engine(instance, policy, agent.format, model, template, url, device, ref)
    setup = RolloutSetup(make_environment, instance, agent, engine, renderer, name, template)
    chosen = {**_trained_adapters(ref, instance), **(roles or {})}
    policies: dict[str, Policy] = {}
    for role, spoken in chosen.items():
        named, where = split_url(spoken)
        own_engine, own_renderer, _ = _engine(
            instance, named, agent.format, model, template if named in SCRIPTED else None, where, device, None
        )
        settings = RoleSettings(temperature=0.0 if role in instance.model_names() else None)
        policies[role] = settings.policy(own_engine, own_renderer, agent, role)
    if not policies:
        return setup
    asked = {role: one for role, one in policies.items() if role in instance.model_names()}
    models: dict[str, ChatModel] = {role: Judge(one) for role, one in asked.items()}
    return replace(
        setup,
        make_environment=with_models(make_environment, models) if models else make_environment,
        policies={role: one for role, one in policies.items() if role not in asked},
        asked=asked,
    )


def split_url(role: str) -> tuple[str, str | None]:
    """Return model and URL of MODEL@URL; the URL is None where there is only a model, whose path may have an @."""
    model, found, rest = role.partition("@http")
    return model, f"http{rest}" if found else None


def check_role_names(environment: Environment, roles: Mapping[str, str]) -> None:
    """Refuse roles that the environment does not have, and a model that it asks and nobody named."""
    known = (*environment.roles, *environment.model_names())
    for name in roles:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UserError(f"'{environment.name}' has no role '{name}', its roles are {', '.join(known)}.{hint}")
    for name in environment.model_names():
        if name not in roles:
            raise UserError(f"'{environment.name}' asks a model named '{name}': name it with --role {name}=MODEL.")


def _trained_adapters(ref: ModelRef | None, environment: Environment) -> dict[str, str]:
    """The adapters that a trained policy has for roles of its own, by role."""
    folder = None if ref is None or ref.adapter is None else Path(ref.adapter) / ROLES
    if folder is None or not folder.is_dir():
        return {}
    return {path.name: str(path) for path in sorted(folder.iterdir()) if path.name in environment.roles}


def _engine(
    environment: Environment,
    policy: str,
    format: str,
    model: str,
    template: str | None,
    url: str | None,
    device: Device,
    ref: ModelRef | None,
) -> tuple[Engine, Renderer, str]:
    """The engine of a policy, the renderer of its tokenizer, and the name of the model whose tokenizer that is."""
    if policy in SCRIPTED or url is not None:
        renderer = Renderer(resolve_model(model).load_tokenizer(), template)
        if url is not None:
            return OpenAIEngine(url, policy, make_format(format), renderer), renderer, model
        return ScriptedEngine.of(policy, environment, make_format(format), renderer), renderer, model
    ref = ref or resolve_model(policy)
    loaded = ref.load(device.dtype, device.device)
    renderer = Renderer(loaded.tokenizer, template, loaded.end_ids)
    return LocalEngine(Decoder(loaded.model), renderer, max_batch=device.batch_size), renderer, ref.model
