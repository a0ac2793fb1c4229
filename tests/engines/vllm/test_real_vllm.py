"""The real thing: a vLLM server in an environment of its own, started, trained with, lied to and killed.

`make test-vllm` makes the environment and runs this. One server takes about a minute to start on two cores,
so the tests of the first part share one, in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from practicum.config.resolve import resolve_train
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.engines.vllm.engine import VLLMEngine, WeightUpdateError
from practicum.engines.vllm.server import VLLMServer
from practicum.environment import Action, Observation, Step
from practicum.environments.math import MathEnvironment
from practicum.models import loader
from practicum.rollout import run_episodes
from practicum.training import build
from practicum.training.run import Run
from practicum.trajectory import Outcome, Trajectory, plan_attempts

HERE = Path(__file__)
PYTHON = Path(os.environ.get("PRACTICUM_VLLM_PYTHON") or HERE.parents[3] / ".venv-vllm" / "bin" / "python")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no vLLM at {PYTHON}: make test-vllm"),
]
PROMPT = tuple(range(10, 60))


class ByLength(MathEnvironment):
    """Pays for short answers."""

    async def step(self, action: Action) -> Step:
        return Step(reward=1.0 / (1 + len(action.content)), terminated=True, success=False)


@dataclass
class Bench:
    """A run on a real server, and the event loop that it uses."""

    run: Run
    runner: asyncio.Runner
    seconds: float

    @property
    def engine(self) -> VLLMEngine:
        engine = self.run.policy.engine
        assert isinstance(engine, VLLMEngine)
        return engine

    @property
    def server(self) -> VLLMServer:
        assert self.engine.client.server is not None
        return self.engine.client.server

    def update_weights(self) -> None:
        self.runner.run(self.engine.update_weights(self.run.policy.version, self.run.policy))

    def learn(self, size: float) -> None:
        """Weights moved by hand, and a new version."""
        policy = self.run.policy
        with torch.no_grad():
            for parameter in (policy.loaded.adapter or policy.loaded.model).parameters():
                if parameter.requires_grad:
                    parameter += size * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
        policy.set_version(policy.version + 1)


def endings_model(folder: Path) -> Path:
    """The tiny model with many ends of a reply, so that an untrained policy has replies of every length."""
    loaded = loader.load_tiny(0)
    assert loaded.model.generation_config is not None
    loaded.model.generation_config.eos_token_id = [2, *range(100, 200)]
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def make_bench(folder: Path, *overrides: str) -> Bench:
    config = resolve_train([
        f"actor_rollout_ref.model.path={endings_model(folder / 'model')}",
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.rollout.vllm.python={PYTHON}",
        "actor_rollout_ref.rollout.vllm.max_model_len=256",
        "actor_rollout_ref.rollout.vllm.extra_args=[--enforce-eager]",
        "actor_rollout_ref.rollout.max_num_seqs=16",
        "actor_rollout_ref.rollout.response_length=24",
        "actor_rollout_ref.rollout.temperature=0.8",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.actor.use_kl_loss=false",
        "actor_rollout_ref.actor.tis_imp_ratio_cap=2",
        "algorithm.adv_estimator=grpo",
        "algorithm.mismatch_limit=0.001",
        f"agent.environment='{HERE}:ByLength'",
        "agent.use_agent=false",
        "agent.num_chains=4",
        "data.train_batch_size=4",
        "trainer.total_training_steps=4",
        "trainer.val_before_train=false",
        "trainer.n_gpus_per_node=0",
        f"trainer.default_local_dir={folder}",
        *overrides,
    ]).config  # fmt: skip
    started = time.monotonic()
    bench = Bench(build.build_run(config, say=lambda text: None), asyncio.Runner(), 0.0)
    bench.update_weights()
    bench.seconds = time.monotonic() - started
    return bench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        made = make_bench(tmp_path_factory.mktemp("vllm"), "actor_rollout_ref.model.lora_rank=8")
        yield made
        made.runner.run(made.run.policy.close())
        made.runner.close()
    assert not made.server.alive


def ask(seed: int, **sampling: float) -> Request:
    chosen = Sampling(max_tokens=24, seed=seed, **sampling)  # type: ignore[arg-type]
    return Request(PROMPT, chosen, MathEnvironment().tasks("train", 1)[0], Observation(()), ())


async def replies(engine: VLLMEngine | LocalEngine, requests: list[Request]) -> list[Generation]:
    return list(await asyncio.gather(*(engine.generate(request) for request in requests)))


def test_log_probs_are_the_local_engine_s(bench: Bench) -> None:
    """Greedy replies are the same ids; sampled ones are scored alike, at any temperature."""
    policy = bench.run.policy
    bench.learn(0.02)
    bench.update_weights()
    local = LocalEngine(policy.decoder, policy.renderer)
    greedy = [ask(0, temperature=0.0)]
    expected, actual = bench.runner.run(replies(local, greedy)), bench.runner.run(replies(bench.engine, greedy))
    bench.runner.run(local.close())
    assert actual[0].ids == expected[0].ids
    assert actual[0].logprobs == pytest.approx(expected[0].logprobs, abs=1e-3)
    assert actual[0].stop_reason is expected[0].stop_reason
    worst = 0.0
    for temperature in (1.0, 0.7):
        for reply in bench.runner.run(replies(bench.engine, [ask(n, temperature=temperature) for n in range(16)])):
            assert reply.logprobs is not None
            ids = torch.tensor([[*PROMPT, *reply.ids]])
            with torch.inference_mode():
                logits = policy.loaded.model(ids).logits[0, len(PROMPT) - 1 : -1]
            scored = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(reply.ids)[:, None])[:, 0]
            worst = max(worst, float((torch.tensor(reply.logprobs) - scored).abs().max()))
    print(f"\nserver ready and version 0 proven in {bench.seconds:.0f} s; |vLLM - learner| at most {worst:.2g}")
    assert worst < 1e-3


def test_a_grpo_run_with_lora(bench: Bench) -> None:
    """Each step's adapter arrives, is proven, and the log-probs that come back are the learner's."""
    bench.runner.run(bench.run.train())
    lines = [json.loads(line) for line in (bench.run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert line["mismatch/logprob/max"] < 1e-3
        assert line["outcome/engine_error"] == 0 if "outcome/engine_error" in line else True
    canary = [json.loads(line) for line in (bench.run.folder / "vllm" / "canary.jsonl").read_text().splitlines()]
    assert canary[0]["verdict"] == "first"
    assert {line["verdict"] for line in canary[1:]} == {"proven"}
    assert len({line["served"] for line in canary}) == len(canary) >= 4
    timing = [json.loads(line) for line in (bench.run.folder / "timing.jsonl").read_text().splitlines()]
    for line, report, clock in zip(lines, canary[-len(lines) :], timing, strict=True):
        print(
            f"\nstep {line['step']}: mismatch {line['mismatch/logprob/mean']:.2g} mean, "
            f"{line['mismatch/logprob/max']:.2g} max; moved {report['moved']:.3g}, arrived {report['arrived']}, "
            f"update taken over in {report['seconds']} s; rollout {clock['timing/rollout']:.1f} s",
            end="",
        )


def plant_a_stale_update(bench: Bench, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old adapter's files under the new one's name: the server loads them gladly."""
    bench.update_weights()
    policy = bench.engine._policy
    assert policy is not None
    old = policy.folder.with_name("kept")
    shutil.copytree(policy.folder, old)
    load = bench.engine.client.load_adapter
    monkeypatch.setattr(bench.engine.client, "load_adapter", lambda name, folder: load(name, old))
    bench.learn(size)
    with pytest.raises(
        WeightUpdateError, match=f"version {bench.run.policy.version} did not reach the engine"
    ) as exc_info:
        bench.update_weights()
    print(f"\n{exc_info.value}")
    monkeypatch.undo()
    shutil.rmtree(old)


@pytest.mark.parametrize("size", [0.01, 0.0001])
def test_a_planted_stale_update_is_caught(bench: Bench, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_a_stale_update(bench, size, monkeypatch)
    bench.update_weights()
    assert bench.engine.reports[-1].verdict == "proven"


def test_a_server_killed_in_a_rollout(bench: Bench) -> None:
    """Its episodes end as engine_error; it is started again with the same adapter, and training goes on."""
    bench.update_weights()
    policy, engine, server = bench.run.policy, bench.engine, bench.server
    before, starts = server.pid, server.num_starts
    agent = replace(bench.run.trainer.source.agent, sampling=Sampling(max_tokens=200))
    policy.renderer.end_ids, end_ids = (), policy.renderer.end_ids

    async def play(label: str, kill: bool) -> list[Trajectory]:
        planned = plan_attempts(MathEnvironment().tasks("train", 4), 4, 0, label)
        episodes = asyncio.create_task(run_episodes(planned, ByLength, agent, engine, policy.renderer, concurrency=16))
        if kill:
            await asyncio.sleep(1.0)
            os.kill(server.pid, signal.SIGKILL)  # that child and no other
        return await episodes

    hit = bench.runner.run(play("hit/", kill=True))
    assert Outcome.ENGINE_ERROR in {episode.outcome for episode in hit}
    assert all(episode.scored or episode.outcome is Outcome.ENGINE_ERROR for episode in hit)
    policy.renderer.end_ids = end_ids
    well = bench.runner.run(play("well/", kill=False))
    assert all(episode.scored for episode in well)
    assert (server.pid != before, server.num_starts) == (True, starts + 1)
    metrics, _ = bench.runner.run(bench.run.trainer.step(3))
    assert metrics["mismatch/logprob/max"] < 1e-3


def test_full_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reloaded in place if the canary agrees, else by a fresh start: either way the weights are there in the end."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    bench = make_bench(tmp_path)
    try:
        bench.learn(0.001)
        bench.update_weights()
        verdicts = [(report.version, report.verdict, report.reason) for report in bench.engine.reports]
        print(f"\n{verdicts}, {bench.server.num_starts} starts")
        assert verdicts[-1][:2] == (1, "proven")
        assert bench.engine.reports[-1].difference_max < 1e-3
        (reply,) = bench.runner.run(replies(bench.engine, [ask(1)]))
        assert reply.logprobs == pytest.approx(bench.run.policy.score(PROMPT, reply.ids), abs=1e-3)
    finally:
        bench.runner.run(bench.run.policy.close())
        bench.runner.close()


def test_a_coarser_server_is_measured_and_corrected_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 under a float32 learner: updates arrive, the mismatch is seen, and a stale update below it is caught."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    bench = make_bench(
        tmp_path,
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.rollout.vllm.dtype=bfloat16",
        "algorithm.mismatch_limit=0.1",
        "trainer.total_training_steps=2",
    )
    try:
        bench.runner.run(bench.run.train())
        lines = [json.loads(line) for line in (bench.run.folder / "metrics.jsonl").read_text().splitlines()]
        print(f"\nmismatch of bfloat16: {[line['mismatch/logprob/mean'] for line in lines]}")
        assert all(1e-3 < line["mismatch/logprob/mean"] < 0.1 for line in lines)
        bench.update_weights()
        bench.learn(1e-5)
        bench.update_weights()
        assert "lost" not in {report.verdict for report in bench.engine.reports}
        with monkeypatch.context() as patch:
            plant_a_stale_update(bench, 1e-5, patch)
    finally:
        bench.runner.run(bench.run.policy.close())
        bench.runner.close()
