"""Do agents of other frameworks learn, unchanged? One agent with a calculator on `math`, written with each framework.

    python benchmarks/external_agents.py [--agents openai_chat,anthropic_messages] [--seeds 1] [--out runs/external]
    python benchmarks/external_agents.py --check 50 --agents all       # only compares records with our own loop's

The agents are those of `docs/examples/agents`; their frameworks (client_tests/requirements.txt) must be installed here.
`tiny` is trained by SFT on the expert's episodes of our own agent loop until it solves a part of 100 validation tasks
(`START_SUCCESS`); the same start is then trained by GRPO through each agent, the agent as a function of its file. Start
and result are evaluated through the agent itself on the same held-out tasks, greedy, by McNemar's mid-p test. Every
episode of training is looked at: a branch would mean that something sampled was rendered again.

`--check N` runs N tasks twice each through every agent and through our own agent loop, sampled under the same seeds,
and compares the tokens, log-probs and seeds of each turn up to where the messages can differ: our loop answers a reply
that does not parse, and a call of a tool that does not exist, in its own words.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

from practicum.agent import Agent, ExternalAgent
from practicum.config.resolve import resolve_train
from practicum.engines.base import Sampling
from practicum.engines.scripted import ScriptedEngine
from practicum.environments.math import MathEnvironment
from practicum.evaluation.compare import compare_pair
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult
from practicum.models import loader
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.training import build
from practicum.training.sft import SFTSettings, train_sft
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory, Turn, plan_attempts

AGENTS = Path(__file__).parents[1] / "docs" / "examples" / "agents"
RESULTS = Path(__file__).parent / "results" / "external_agents.json"
LEVEL = 1
MAX_TURNS, MAX_TOKENS = 4, 32
START_SUCCESS = 0.3
PART_SIZE, MAX_PARTS = 800, 12
"""Demonstrations between two validations of SFT, and how many such parts there are at most."""
COMMANDS = {
    "openai_chat": "openai_chat.py:solve",
    "anthropic_messages": "anthropic_messages.py:solve",
    "langgraph": "langgraph_react.py:solve",
    "openai_agents": "openai_agents_sdk.py:solve",
    "openai_agents_responses": "openai_agents_sdk.py:solve_with_responses",
    "pydantic_ai": "pydantic_ai_agent.py:solve",
}


def make_environment() -> MathEnvironment:
    return MathEnvironment(levels=(LEVEL,))


def make_agent(external: ExternalAgent | None, temperature: float = 0.0) -> Agent:
    return Agent("hf", MAX_TURNS, Sampling(temperature, max_tokens=MAX_TOKENS), external=external)


async def make_start(folder: Path, seed: int) -> dict[str, Any]:
    """SFT on demonstrations, part by part, until the validation says that it is enough; written to `folder`."""
    policy = TrainablePolicy(loader.load_tiny(seed), max_batch=64)
    environment, agent = make_environment(), make_agent(None)
    engine = ScriptedEngine.of("expert", environment, make_format("hf"), policy.renderer)
    tasks = environment.tasks("train", PART_SIZE * MAX_PARTS, seed)
    panel = Panel(tuple(environment.tasks("val", 100, seed)), seed)
    settings = SFTSettings(
        num_epochs=1, batch_size=8, gradient_accumulation_steps=1, learning_rate=1e-3, warmup_steps=10,
        scheduler_type="constant", seed=seed,
    )  # fmt: skip
    successes: list[float] = []
    try:
        for part in range(MAX_PARTS):
            planned = plan_attempts(tasks[part * PART_SIZE :][:PART_SIZE], 1, seed)
            await train_sft(
                policy, await run_episodes(planned, make_environment, agent, engine, policy.renderer), settings
            )
            successes.append((await policy.evaluate("val", panel, make_environment, agent))[0].success_rate)
            print(
                f"SFT, {(part + 1) * PART_SIZE} demonstrations: {100 * successes[-1]:.0f} % of the validation tasks",
                flush=True,
            )
            if successes[-1] >= START_SUCCESS:
                break
        policy.save(folder)
    finally:
        await policy.close()
    return {"demonstrations": PART_SIZE * len(successes), "validation": successes}


async def train_agent(name: str, start: Path, folder: Path, seed: int, steps: int, panel: Panel) -> dict[str, Any]:
    """GRPO through one agent, and its evaluation before and after."""
    command = f"{AGENTS}/{COMMANDS[name]}"
    shutil.rmtree(folder, ignore_errors=True)
    config = resolve_train(
        [
            "agent.environment=math", f"agent.environment_args.levels=[{LEVEL}]", "agent.agent_type=external",
            f"agent.command={command}", f"actor_rollout_ref.model.path={start}", "algorithm.adv_estimator=grpo",
            "data.train_batch_size=8", "agent.num_chains=8", f"agent.max_turns={MAX_TURNS}",
            f"agent.max_tokens_per_turn={MAX_TOKENS}", f"trainer.total_training_steps={steps}",
            f"trainer.seed={seed}", "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.logger=[]",
            f"trainer.default_local_dir={folder}", "actor_rollout_ref.actor.use_kl_loss=false",
            "actor_rollout_ref.actor.entropy_coeff=0", "actor_rollout_ref.actor.optim.lr=3e-4",
            "actor_rollout_ref.actor.optim.lr_warmup_steps=3",
        ]
    ).config  # fmt: skip
    agent = make_agent(ExternalAgent(command))
    began = time.monotonic()
    run = build.build_run(config, say=lambda text: None)
    try:
        before, first = await run.policy.evaluate("start", panel, make_environment, agent)
        await run.train()
        after, last = await run.policy.evaluate("trained", panel, make_environment, agent)
    finally:
        await run.policy.close()
    return summary(before, after, [*first, *last], folder, (time.monotonic() - began) / 60)


async def check_records(names: list[str], start: Path, count: int, seed: int) -> dict[str, dict[str, int]]:
    """How many turns of each agent are our own loop's, token by token, and how many are branches."""
    policy = TrainablePolicy(loader.load(str(start)), max_batch=64)
    planned = plan_attempts(make_environment().tasks("test", count, seed), 2, seed)
    rows: dict[str, dict[str, int]] = {}
    try:
        internal = await policy.roll_out(planned, make_environment, make_agent(None, 1.0))
        for name in names:
            agent = make_agent(ExternalAgent(f"{AGENTS}/{COMMANDS[name]}"), 1.0)
            episodes = await policy.roll_out(planned, make_environment, agent)
            rows[name] = compare_records(internal, episodes)
            print(name, json.dumps(rows[name]), flush=True)
    finally:
        await policy.close()
    return rows


def record(turn: Turn) -> tuple[Any, ...]:
    return turn.spans, turn.seed, turn.restart, turn.continues


def compare_records(internal: list[Trajectory], external: list[Trajectory]) -> dict[str, int]:
    counts = dict.fromkeys(("episodes", "unscored", "turns", "comparable", "identical", "branches"), 0)
    for expected, actual in zip(internal, external, strict=True):
        counts["episodes"] += 1
        counts["unscored"] += not actual.outcome.scored
        counts["turns"] += len(actual.turns)
        counts["branches"] += sum(bool(turn.branch_reason) for turn in actual.turns)
        for a, b in zip(expected.turns, actual.turns, strict=False):
            counts["comparable"] += 1
            counts["identical"] += (a.spans, a.seed, a.restart, a.continues) == (
                b.spans,
                b.seed,
                b.restart,
                b.continues,
            )
            if a.action.error is not None or any(call.name != "calculator" for call in a.action.calls):
                break  # what is said next is the agent's own business
    return counts


def summary(
    before: EvalResult, after: EvalResult, episodes: list[Trajectory], folder: Path, minutes: float
) -> dict[str, Any]:
    """The comparison, and what was counted."""
    gain = compare_pair(before, after).success
    lines = [json.loads(line) for line in next(folder.rglob("metrics.jsonl")).read_text().splitlines()]
    branches = [line["rollout/branches/mean"] for line in lines if "rollout/branches/mean" in line]
    return {
        "before": before.success_rate, "after": after.success_rate, "difference": gain.difference,
        "low": gain.interval.low, "high": gain.interval.high, "p": gain.p_value, "n": gain.num_tasks,
        "branches_per_episode_in_training": sum(branches) / len(branches),
        "branches_in_evaluation": sum(bool(turn.branch_reason) for episode in episodes for turn in episode.turns),
        "unscored_in_evaluation": sum(not episode.outcome.scored for episode in episodes), "minutes": minutes,
    }  # fmt: skip


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", default="openai_chat,anthropic_messages", help="of: " + ", ".join(COMMANDS))
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--start-seed", type=int, help="train from the start of this seed (default: each from its own)")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--panel", type=int, default=300)
    parser.add_argument("--check", type=int, default=0, metavar="TASKS", help="compare records and train nothing")
    parser.add_argument("--out", type=Path, default=Path("runs/external"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    names = list(COMMANDS) if args.agents == "all" else args.agents.split(",")
    rows: dict[str, dict[str, Any]] = json.loads(args.results.read_text()) if args.results.is_file() else {}
    for seed in map(int, args.seeds.split(",")):
        start_seed = seed if args.start_seed is None else args.start_seed
        start = args.out / f"start-{start_seed}"
        if not start.is_dir():
            sft = await make_start(start, start_seed)
            start.with_suffix(".json").write_text(json.dumps(sft) + "\n")
        sft = json.loads(start.with_suffix(".json").read_text())
        if args.check:
            await check_records(names, start, args.check, seed)
            continue
        panel = Panel(tuple(make_environment().tasks("test", args.panel, seed)), seed)
        for name in names:
            row = await train_agent(name, start, args.out / f"{name}-{seed}", seed, args.steps, panel)
            rows[f"{name}, seed {seed}"] = {**row, "steps": args.steps, "sft": sft}
            print(
                f"| {name} | {seed} | {100 * row['before']:.1f} % | "
                f"{100 * row['after']:.1f} % | {100 * row['difference']:+.1f} "
                f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}] | {row['p']:.1g} | {row['minutes']:.1f} |",
                flush=True,
            )
            args.results.parent.mkdir(exist_ok=True)
            args.results.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
