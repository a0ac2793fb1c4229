"""A rollout made from names: the environment, the agent, and the engine of the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from practicum.agent import Agent, Deadlines
from practicum.chat.renderer import Renderer
from practicum.data.run_folder import ModelRef, resolve_model
from practicum.engines.base import Engine, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.engines.openai import OpenAIEngine
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Environment
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.models.loader import Device, resolve_device
from practicum.registry import environment_maker, make_format
from practicum.rollout import MakeEnvironment

SCRIPTED = ("expert", "random", "null")
"""Policies of plain Python that every environment has."""
DEFAULT_MAX_TURNS = 10


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
) -> RolloutSetup:
    """Return the setup of a policy in an environment.

    `policy` is expert, random, null, a model (name, hub id, or folder of a model, adapter or run), or the name of a
    model served at `url`. Replies of a scripted policy or of a server are tokenised for `model`. `options` are the
    environment's own. The model is loaded onto `device`; by default that is a GPU where there is one. `ref` is the
    model, where it is resolved already.
    """
    make_environment, format_name = environment_maker(environment, format, options)
    agent = Agent(
        format=format_name,
        max_turns=max_turns or DEFAULT_MAX_TURNS,
        sampling=sampling or Sampling(),
        deadlines=deadlines or Deadlines(),
    )
    instance = make_environment()
    if policy in SCRIPTED or url is not None:
        renderer = Renderer(resolve_model(model).load_tokenizer(), template)
        engine: Engine
        if url is not None:
            engine = OpenAIEngine(url, policy, make_format(agent.format), renderer)
        else:
            engine = ScriptedEngine.of(policy, instance, make_format(agent.format), renderer)
        return RolloutSetup(make_environment, instance, agent, engine, renderer, model, template)
    device = device or resolve_device()
    ref = ref or resolve_model(policy)
    loaded = ref.load(device.dtype, device.device)
    renderer = Renderer(loaded.tokenizer, template, loaded.end_ids)
    engine = LocalEngine(Decoder(loaded.model), renderer, max_batch=device.batch_size)
    return RolloutSetup(make_environment, instance, agent, engine, renderer, ref.model, template)
