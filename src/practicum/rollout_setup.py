"""A rollout made from names: the environment, the agent, and the engine of the policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from practicum.agent import Agent, Deadlines, ExternalAgent, RoleSettings
from practicum.chat.renderer import Renderer
from practicum.chat.response_format import ANY_TEXT, ResponseFormat
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
from practicum.resources import RunResources
from practicum.rollout import WRITES, MakeEnvironment, stream_episodes, with_models
from practicum.trajectory import Attempt, Trajectory

SCRIPTED = ("expert", "random", "null")
"""Policies of plain Python that every environment has; it may name further ones (`scripted_names`)."""
DEFAULT_MAX_TURNS = 10
ROLES = "roles"
"""The folder within a model's folder that holds the adapters of its roles."""

AttemptKey = tuple[str, int]
"""A task's id and the number of the attempt."""


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
    model_policies: Mapping[str, Policy] = field(default_factory=dict)
    """The policies of models that the environment itself calls, such as a judge."""
    resources: RunResources = field(default_factory=RunResources)
    """What all episodes share."""

    async def close(self) -> None:
        """Close all engines, and what episodes shared."""
        await self.resources.close()
        engines = {id(self.engine): self.engine}
        engines |= {
            id(policy.engine): policy.engine for policy in (*self.policies.values(), *self.model_policies.values())
        }
        for engine in engines.values():
            await engine.close()

    async def stream(
        self,
        planned: Sequence[Attempt],
        missing: Sequence[Attempt],
        *,
        round_size: int | None,
        read: Callable[[Attempt], Trajectory | None],
        on_done: Callable[[Trajectory], None],
        make_environment: MakeEnvironment | None = None,
        **more: Any,
    ) -> None:
        """Run those of the planned attempts that are missing, as `stream_episodes` does.

        With a `round_size` they run in rounds of that size: what the episodes of a round wrote to shared resources is
        visible from the next round on. `read` returns the record of an attempt that is not missing.
        """
        if round_size is not None and not self.resources.has_state:
            raise UserError(f"--round: the episodes of '{self.environment.name}' share nothing that they write to.")
        needed = dict.fromkeys(name for attempt in missing for name in self.environment.resource_names(attempt.task))
        await self.resources.open(tuple(needed))
        records: dict[AttemptKey, Trajectory] = {}

        def done(episode: Trajectory) -> None:
            records[episode.task.id, episode.attempt] = episode
            on_done(episode)

        size, to_run = round_size or len(planned), {id(attempt) for attempt in missing}
        for start in range(0, len(planned), size):
            block = planned[start : start + size]
            await stream_episodes(
                [attempt for attempt in block if id(attempt) in to_run],
                make_environment or self.make_environment, self.agent, self.engine, self.renderer,
                policies=self.policies, resources=self.resources, on_done=on_done if round_size is None else done,
                **more,
            )  # fmt: skip
            if round_size is not None:
                self.resources.discard()
                for attempt in block:
                    record = records.pop((attempt.task.id, attempt.number), None) or read(attempt)
                    self.resources.queue(record.provenance.get(WRITES, ()) if record and record.scored else ())
                self.resources.commit()

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
    response_format: ResponseFormat | None = None,
    external: ExternalAgent | None = None,
) -> RolloutSetup:
    """Return the setup of a policy in an environment.

    `policy` is expert, random, null, another scripted policy of the environment, a model (name, hub id, or folder of a
    model, adapter or run), or the name of a model served at `url`. Replies of a scripted policy or of a server are
    tokenised for `model`. `options` are the environment's own. The model is loaded onto `device`; by default that is a
    GPU where there is one. `ref` is the model, where it is resolved already. `roles` names the policies of single roles
    and of models that the environment calls, as `policy` does, with `@URL` behind the name of a server's model; roles
    without one act with `policy`, or with the adapter that the trained policy has for them. `response_format` is the
    form that the agent's replies must have; models that the environment calls are free. `external` is the agent's own
    program, which then acts instead of the agent loop.
    """
    make_environment, format_name = environment_maker(environment, format, options)
    agent = Agent(
        format=format_name,
        max_turns=max_turns or DEFAULT_MAX_TURNS,
        sampling=sampling or Sampling(),
        deadlines=deadlines or Deadlines(),
        response_format=response_format,
        external=external,
    )
    instance = make_environment()
    device = device or resolve_device()
    if url is None and policy not in scripted_names(instance):
        check_policy_name(policy, instance)
        ref = ref or resolve_model(policy)
    check_role_names(instance, roles or {})
    check_model_names(instance, roles or {}, "name it with --role {name}=MODEL")
    resources = instance.run_resources(agent.deadlines.open)
    engine, renderer, name = _engine(instance, policy, agent.format, model, template, url, device, ref)
    setup = RolloutSetup(make_environment, instance, agent, engine, renderer, name, template, resources=resources)
    chosen = {**_trained_adapters(ref, instance), **(roles or {})}
    policies = _role_policies(chosen, instance, agent, model, template, device)
    if not policies:
        return setup
    called = {role: speaker for role, speaker in policies.items() if role in instance.model_names()}
    models: dict[str, ChatModel] = {role: Judge(speaker, agent.deadlines.judge) for role, speaker in called.items()}
    return replace(
        setup,
        make_environment=with_models(make_environment, models) if models else make_environment,
        policies={role: speaker for role, speaker in policies.items() if role not in called},
        model_policies=called,
    )


def _role_policies(
    chosen: Mapping[str, str], instance: Environment, agent: Agent, model: str, template: str | None, device: Device
) -> dict[str, Policy]:
    """The policies of roles; models that the environment itself calls are greedy and may reply in any form."""
    policies: dict[str, Policy] = {}
    for role, source in chosen.items():
        name, role_url = split_url(source)
        own_template = template if name in scripted_names(instance) else None
        engine, renderer, _ = _engine(instance, name, agent.format, model, own_template, role_url, device, None)
        is_called = role in instance.model_names()
        settings = RoleSettings(temperature=0.0, response_format=ANY_TEXT) if is_called else RoleSettings()
        policies[role] = settings.policy(engine, renderer, agent, role)
    return policies


def scripted_names(environment: Environment) -> tuple[str, ...]:
    """Return the names of all scripted policies of an environment."""
    return tuple(dict.fromkeys((*SCRIPTED, *environment.scripted_policies)))


def check_policy_name(policy: str, environment: Environment) -> None:
    """Refuse a name that is neither a scripted policy of the environment nor could be a model's."""
    if "/" in policy or policy in loader.BUILDERS or policy.endswith(".gguf") or Path(policy).expanduser().exists():
        return
    scripted = scripted_names(environment)
    close = did_you_mean(policy, (*scripted, *loader.BUILDERS))
    hint = close if close.startswith(" Did") else ""
    raise UserError(
        f"Unknown policy '{policy}'.{hint} Scripted policies of '{environment.name}': {', '.join(scripted)}; models: "
        f"{', '.join(sorted(loader.BUILDERS))}, a Hugging Face folder, or OWNER/NAME."
    )


def split_url(role: str) -> tuple[str, str | None]:
    """Return model and URL of MODEL@URL; the URL is None where there is only a model, whose path may have an @."""
    model, separator, rest = role.partition("@http")
    return model, f"http{rest}" if separator else None


def check_role_names(
    environment: Environment, names: Iterable[str], *, allowed: Sequence[str] | None = None, key: str = ""
) -> None:
    """Refuse roles that the environment does not have; `key` is the configuration key that names them."""
    allowed = (*environment.roles, *environment.model_names()) if allowed is None else allowed
    for name in names:
        if name not in allowed:
            raise UserError(
                f"{key}{': ' if key else ''}'{environment.name}' has no role '{name}': it has "
                f"{', '.join(allowed)}.{did_you_mean(name, allowed)}"
            )


def check_model_names(environment: Environment, names: Collection[str], remedy: str) -> None:
    """Refuse an environment that calls a model which is not among `names`; `remedy` tells how to name {name}."""
    for name in environment.model_names():
        if name not in names:
            raise UserError(f"'{environment.name}' asks a model named '{name}': {remedy.format(name=name)}.")


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
    if policy in scripted_names(environment) or url is not None:
        renderer = Renderer(resolve_model(model).load_tokenizer(), template)
        if url is not None:
            return served_engine(url, policy, format, renderer), renderer, model
        return ScriptedEngine.of(policy, environment, make_format(format), renderer), renderer, model
    if ref is None:
        check_policy_name(policy, environment)
        ref = resolve_model(policy)
    local, renderer = local_engine(ref, device, template)
    return local, renderer, ref.model


def served_engine(url: str, model: str, format: str, renderer: Renderer) -> OpenAIEngine:
    """The engine of a model that a server has; its replies are tokenised by `renderer`."""
    return OpenAIEngine(url, model, make_format(format), renderer)


def local_engine(
    ref: ModelRef, device: Device, template: str | None = None, max_batch: int | None = None
) -> tuple[LocalEngine, Renderer]:
    """The engine of a model that is loaded here and not trained, and the renderer of its tokenizer."""
    loaded = ref.load(device.dtype, device.device, quantised=device.quantisation_config)
    renderer = Renderer(loaded.tokenizer, template, loaded.end_ids)
    return LocalEngine(Decoder(loaded.model), renderer, max_batch=max_batch or device.batch_size), renderer
