"""Puts an environment, an agent and a policy together from names, for every command alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.base import Engine, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.engines.openai import OpenAIEngine
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Environment
from practicum.models import device, loader
from practicum.models.decoder import Decoder
from practicum.models.device import Device
from practicum.registry import environment_maker
from practicum.rollout import MakeEnvironment

SCRIPTED = ("expert", "random", "null")


@dataclass(frozen=True)
class RolloutSetup:
    """An environment to make, the agent in it, and the engine that acts."""

    make_environment: MakeEnvironment
    environment: Environment
    agent: Agent
    engine: Engine
    renderer: Renderer
    model: str
    template: str | None

    @property
    def provenance(self) -> dict[str, Any]:
        """What an episode's ids belong to."""
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
    template: str | None = None,
    url: str | None = None,
    where: Device | None = None,
) -> RolloutSetup:
    """`policy` is expert, random, null, a model (name, folder or id), or a model served at `url`.

    A scripted policy's or a server's replies are tokenised for `model`. `where` a model lies: by default on a GPU
    where there is one.
    """
    maker, chosen = environment_maker(environment, format, options)
    agent = Agent(format=chosen, max_turns=max_turns or 10, sampling=sampling or Sampling())
    world = maker()
    if policy in SCRIPTED or url is not None:
        renderer = Renderer(loader.load_tokenizer(model), template)
        engine: Engine
        if url is not None:
            engine = OpenAIEngine(url, policy, agent.make_format(), renderer)
        else:
            engine = ScriptedEngine.of(policy, world, agent.make_format(), renderer)
        return RolloutSetup(maker, world, agent, engine, renderer, model, template)
    where = where or device.resolve()
    loaded = loader.load(policy, where.dtype, where.device)
    renderer = Renderer(loaded.tokenizer, template, loaded.end_ids)
    engine = LocalEngine(Decoder(loaded.model), renderer, max_batch=where.batch_size)
    return RolloutSetup(maker, world, agent, engine, renderer, policy, template)
