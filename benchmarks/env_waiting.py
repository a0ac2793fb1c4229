"""How long does the model of a learner wait for environments? Part of `envs.py --waiting MODEL`.

A batch of mixed episodes is rolled out as a training step does it, all of them side by side. The model waits for
environments while it neither decodes nor reads prompts although the batch is not over: the time of the batch less
the engine's own. Processes are up before the clock starts (one episode of each environment has been begun), as they
are in every batch of a run but the first. A small untrained model writes few valid actions, so
its replies are decoded for their time and a random action is played instead: every turn is a step of the environment.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, ClassVar

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Action, Observation, ScriptedPolicy, Step
from practicum.environments.mix import MixEnvironment
from practicum.environments.worker import close_pools
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.registry import environment_maker
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.trajectory import ActionSource, StopReason, plan_attempts

ALLOWED = 0.3
"""The share of a batch's time that the model may wait."""
ROWS = 16
"""Replies decoded at the same time; the other episodes wait in the engine's own line. 64 would take 15 GB on CPU."""
OPTIONS: dict[str, dict[str, Any]] = {
    "affine:sat": {"notation": "numbers", "levels": [3]},
    "agentgym:babyai": {"observation": "short"},
    "agentgym:webshop": {"observation": "short"},
    "agentgym:alfworld": {"show_actions": False},
}
"""Short prompts: on CPU the model would read for minutes, and the less it reads the more its waiting shows."""


class Timed(MixEnvironment):
    """A mix that adds up how long its environments let an episode wait."""

    spent: ClassVar[dict[str, float]] = {}
    _name = ""

    async def reset(self, task: Task, seed: int) -> Observation:
        self._name, started = task.environment, time.perf_counter()
        try:
            return await super().reset(task, seed)
        finally:
            self.add("reset", started)

    async def step(self, action: Action) -> Step:
        started = time.perf_counter()
        try:
            return await super().step(action)
        finally:
            self.add("step", started)

    def add(self, name: str, started: float) -> None:
        key = f"{self._name} {name}"
        self.spent[key] = self.spent.get(key, 0.0) + time.perf_counter() - started


class Spoken:
    """An engine that decodes a reply for its time and returns a random action."""

    name = "local"

    def __init__(self, model: LocalEngine, environment: MixEnvironment, renderer: Renderer) -> None:
        self.model, self.environment, self.renderer = model, environment, renderer
        self._policies: dict[str, ScriptedPolicy] = {}

    async def generate(self, request: Request) -> Generation:
        answer = await self.model.generate(request)
        if request.session not in self._policies:
            self._policies[request.session] = self.environment.random(request.task, request.sampling.seed)
        text = self._policies[request.session](request.observation).content
        ids = self.renderer.encode_reply(text)
        return Generation(ids, None, StopReason.END, answer.policy_version, ActionSource.RANDOM)

    def end_session(self, session: str) -> None:
        self._policies.pop(session, None)
        self.model.end_session(session)

    async def close(self) -> None:
        await self.model.close()


async def waiting(
    model: str, names: tuple[str, ...], num_slots: int, turns: int, tokens: int, threads: int
) -> dict[str, Any]:
    """One batch; the share of its time in which the engine had nothing to do."""
    members = {name: OPTIONS.get(name, {}) for name in names}
    maker, chosen = environment_maker("mix", None, {"environments": members})
    agent = Agent(format=chosen, max_turns=turns, sampling=Sampling(max_tokens=tokens))
    loaded = loader.load(model)
    renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
    engine = LocalEngine(Decoder(loaded.model), renderer, max_batch=ROWS, threads=threads, prefill_threads=threads)
    mix = maker()
    assert isinstance(mix, MixEnvironment)
    speaker = Spoken(engine, mix, renderer)
    for task in mix.tasks("train", len(names)):
        environment = maker()
        await environment.reset(task, 0)
        await environment.close()
    planned = plan_attempts(mix.tasks("train", num_slots, seed=1), 1, 0)
    started = time.perf_counter()
    episodes = await run_episodes(planned, lambda: Timed(members), agent, speaker, renderer, concurrency=num_slots)
    wall = time.perf_counter() - started
    busy_seconds = engine.stats.decode_seconds + engine.stats.prefill_seconds
    share = max(0.0, wall - busy_seconds) / wall
    outcomes = Counter(episode.outcome.value for episode in episodes)
    await engine.close()
    close_pools()
    passed = share < ALLOWED
    num_turns = sum(len(episode.turns) for episode in episodes)
    print(
        f"waiting: {len(episodes)} mixed episodes with {model}, {num_turns} turns of at most {tokens} tokens in "
        f"{wall:.0f} s; the model read prompts for {engine.stats.prefill_seconds:.0f} s, decoded for "
        f"{engine.stats.decode_seconds:.0f} s and waited {100 * share:.1f} % of it (allowed {100 * ALLOWED:.0f} %)"
        f"{'' if passed else '  NOT REACHED'}; {dict(outcomes)}",
        flush=True,
    )
    for what, seconds in sorted(Timed.spent.items(), key=lambda item: -item[1]):
        print(f"  {what}: {seconds:.1f} s, all its episodes together", flush=True)
    return {
        "model": model, "episodes": len(episodes), "turns": num_turns, "tokens": tokens, "wall": wall,
        "prefill": engine.stats.prefill_seconds, "decode": engine.stats.decode_seconds, "share": share,
        "allowed": ALLOWED, "reached": passed, "outcomes": dict(outcomes), "environments": dict(Timed.spent),
    }  # fmt: skip
