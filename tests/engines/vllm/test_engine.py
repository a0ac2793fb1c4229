"""The vllm engine over real HTTP, against a small server with a real (tiny) model, and against one that misbehaves."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.config.resolve import resolve_train
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.engines.vllm import client
from practicum.engines.vllm import engine as vllm_engine
from practicum.engines.vllm.engine import VLLMEngine, VLLMSettings, WeightUpdateError
from practicum.engines.vllm.protocol import find_stop
from practicum.engines.vllm.server import ServerSettings
from practicum.environment import Action, Observation, Step
from practicum.environments.math import MathEnvironment
from practicum.errors import ContextFull, EngineError, UserError
from practicum.models import loader, lora
from practicum.models.decoder import Decoder
from practicum.training import build, rollout_engine
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Outcome, StopReason, plan_attempts
from tests.engines.vllm.small_vllm import SmallVLLM
from tests.training.settings import rl_settings

PROMPT = tuple(range(10, 40))
TASK = MathEnvironment().tasks("train", 1)[0]


def ask(ids: tuple[int, ...] = PROMPT, **sampling: Any) -> Request:
    chosen = Sampling(**{"max_tokens": 12, "seed": 3, **sampling})
    return Request(ids, chosen, TASK, Observation(()), ())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallVLLM]:
    monkeypatch.setattr(client, "RETRY_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(vllm_engine, "REPLY_TOKENS", 8)
    made = SmallVLLM(loader.model_folder("tiny"), "tiny")
    server = made.serve()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_port}/v1"  # type: ignore[attr-defined]
    yield made
    server.shutdown()
    server.server_close()


@pytest.fixture
def policy(small: SmallVLLM, tmp_path: Path) -> TrainablePolicy:
    return make_policy(small, tmp_path)


def make_policy(small: SmallVLLM, folder: Path, rank: int | None = 4, seed: int | None = None) -> TrainablePolicy:
    loaded = loader.load("tiny") if seed is None else loader.load_tiny(seed)
    if rank is not None:
        loaded = lora.add_adapter(loaded, lora.LoRASettings(rank))
    settings = VLLMSettings("tiny", folder / "vllm", url=small.url, timeout=20)  # type: ignore[attr-defined]
    return TrainablePolicy(loaded, make_engine=lambda renderer: VLLMEngine(renderer, settings))


def engine_of(policy: TrainablePolicy) -> VLLMEngine:
    assert isinstance(policy.engine, VLLMEngine)
    return policy.engine


def learn(policy: TrainablePolicy, size: float = 0.02) -> None:
    """An update: the adapter's (or the model's) weights move a little."""
    generator = torch.Generator().manual_seed(policy.version)
    with torch.no_grad():
        for parameter in (policy.loaded.adapter or policy.loaded.model).parameters():
            if parameter.requires_grad:
                parameter += size * torch.randn(parameter.shape, generator=generator)
    policy.set_version(policy.version + 1)


async def update_weights(policy: TrainablePolicy) -> None:
    await policy.engine.update_weights(policy.version, policy)


def generate(policy: TrainablePolicy, *requests: Request) -> list[Generation]:
    async def whole() -> list[Generation]:
        await update_weights(policy)
        return list(await asyncio.gather(*(policy.engine.generate(request) for request in requests)))

    return asyncio.run(whole())


# -- replies ----------------------------------------------------------------------------------


def test_ids_and_log_probs_are_the_learner_s(policy: TrainablePolicy, small: SmallVLLM) -> None:
    learn(policy)
    replies = generate(policy, *(ask(seed=seed) for seed in range(12)))
    for reply in replies:
        assert reply.logprobs == pytest.approx(policy.score(PROMPT, reply.ids), abs=1e-4)
        assert (reply.stop_reason, reply.policy_version, len(reply.ids)) == (StopReason.LENGTH, 1, 12)
    assert len({reply.ids for reply in replies}) == 12
    assert generate(policy, ask(seed=0))[0] == replies[0]
    path, body = next(item for item in reversed(small.seen) if item[0] == "/v1/completions")
    assert (path, body["prompt"], body["seed"]) == ("/v1/completions", list(PROMPT), 0)
    assert body["model"].startswith("policy-v1-")
    assert body["stop_token_ids"] == list(policy.renderer.end_ids)
    assert (body["repetition_penalty"], body["ignore_eos"], body["skip_special_tokens"]) == (1.0, True, False)


def test_log_probs_are_of_the_distribution_sampled_from(policy: TrainablePolicy) -> None:
    (reply,) = generate(policy, ask(temperature=0.7, top_k=5))
    ids = torch.tensor([[*PROMPT, *reply.ids]])
    logits = policy.loaded.model(ids).logits[0, len(PROMPT) - 1 : -1] / 0.7
    best = logits.topk(5).values.logsumexp(-1)
    wanted = logits.gather(1, torch.tensor(reply.ids)[:, None])[:, 0] - best
    assert reply.logprobs == pytest.approx(wanted.tolist(), abs=1e-4)


def test_a_server_with_raw_log_probs_is_used_at_temperature_one_only(policy: TrainablePolicy, small: SmallVLLM) -> None:
    small.processed = False
    assert generate(policy, ask(), ask(temperature=0.0))
    assert not engine_of(policy).logprobs_are_processed
    for sampling in ({"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.9}):
        with pytest.raises(UserError, match="--logprobs-mode processed_logprobs"):
            generate(policy, ask(**sampling))


def test_the_ids_kept_are_those_that_the_local_engine_keeps(tokenizer: Any) -> None:
    """Whatever the server's idea of an ending: the same reply is cut in the same place for the same reason."""
    loaded = loader.load_tiny(0)
    whole: dict[int, tuple[int, ...]] = {}
    reasons: set[StopReason] = set()
    for ends, stop in (((), ()), ((), ("e",)), ((), ("tool", " c", "20")), (tuple(range(300, 420)), ("e", "at"))):
        renderer = Renderer(tokenizer, end_ids=ends)
        engine = LocalEngine(Decoder(loaded.model), renderer)

        async def play(engine: LocalEngine = engine, stop: tuple[str, ...] = stop) -> list[Generation]:
            requests = (ask(seed=seed, max_tokens=48, stop=stop) for seed in range(24))
            try:
                return await asyncio.gather(*(engine.generate(request) for request in requests))
            finally:
                await engine.close()

        replies = asyncio.run(play())
        if not whole:
            whole = {seed: reply.ids for seed, reply in enumerate(replies)}
            continue
        for seed, reply in enumerate(replies):
            count, reason = find_stop(tokenizer, whole[seed], renderer.end_ids, stop)
            assert (count, reason or StopReason.LENGTH) == (len(reply.ids), reply.stop_reason)
            reasons.add(reply.stop_reason)
    assert reasons == {StopReason.END, StopReason.STRING, StopReason.LENGTH}


def test_every_stop_reason(policy: TrainablePolicy, small: SmallVLLM) -> None:
    (plain,) = generate(policy, ask(max_tokens=40))
    text = policy.renderer.tokenizer.decode([plain.ids[5]])
    (cut,) = generate(policy, ask(max_tokens=40, stop=(text,)))
    assert cut.stop_reason is StopReason.STRING
    assert cut.ids == plain.ids[: len(cut.ids)]
    policy.renderer.end_ids = (plain.ids[3],)
    (ended,) = generate(policy, ask(max_tokens=40))
    assert (ended.stop_reason, ended.ids[-1]) == (StopReason.END, plain.ids[3])
    policy.renderer.end_ids = ()
    full = tuple(range(10, 10 + small.context - 4))
    (out_of_room,) = generate(policy, ask(full))
    assert (out_of_room.stop_reason, len(out_of_room.ids)) == (StopReason.CONTEXT, 4)
    with pytest.raises(ContextFull, match="window is 256"):
        generate(policy, ask(full + full))


GOOD: dict[str, Any] = {"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, {"error": {"message": "no"}}), "answered 400"),
        ((500, {"error": {"message": "broken"}}), "answered 500"),
        ((200, "<html>"), "without token ids"),
        ((200, {"choices": []}), "without token ids"),
        ((200, {"choices": [{"text": "hello", "finish_reason": "stop"}]}), "must be a vLLM"),
        ((200, {"choices": [GOOD | {"token_ids": [5, 6]}]}), "2 ids and 1 log-probs"),
        ((200, {"choices": [GOOD | {"logprobs": {"token_logprobs": [float("nan")]}}]}), "not a number"),
        ((200, {"choices": [GOOD | {"finish_reason": "abort"}]}), "broke off the reply"),
        ((200, {"choices": [GOOD | {"prompt_token_ids": [1, *PROMPT]}]}), "read a prompt of 31 ids"),
    ],
)  # fmt: skip
def test_what_a_server_gets_wrong_is_an_engine_error(
    policy: TrainablePolicy, small: SmallVLLM, answer: tuple[int, Any], message: str
) -> None:
    asyncio.run(update_weights(policy))
    small.script = [answer]
    with pytest.raises(EngineError, match=message):
        generate(policy, ask())
    assert not small.script


@pytest.mark.parametrize("faults", [[(503, {}), (429, {})], [(0, None)], [(0, None), (502, {})]])
def test_a_request_is_sent_again_after_a_passing_fault(
    policy: TrainablePolicy, small: SmallVLLM, faults: list[tuple[int, Any]]
) -> None:
    (plain,) = generate(policy, ask())
    small.script = faults
    assert generate(policy, ask()) == [plain]


def test_a_lasting_fault_ends_only_its_own_episode(policy: TrainablePolicy, small: SmallVLLM) -> None:
    asyncio.run(update_weights(policy))
    small.script = [(503, {})] * 3
    agent = Agent(max_turns=1, sampling=Sampling(max_tokens=4))

    async def play() -> list[Any]:
        planned = plan_attempts(MathEnvironment().tasks("train", 1), 1, 0)
        return await policy.roll_out(planned, MathEnvironment, agent, concurrency=1)

    (episode,) = asyncio.run(play())  # its second attempt finds the server well again
    assert episode.scored
    small.script = [(503, {})] * 6
    (episode,) = asyncio.run(play())
    assert episode.outcome is Outcome.ENGINE_ERROR
    assert "answered 503" in (episode.error or "")


def test_cancelling_a_request_breaks_its_connection(policy: TrainablePolicy, small: SmallVLLM) -> None:
    async def give_up() -> None:
        await update_weights(policy)
        small.slow = 0.05
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await policy.engine.generate(ask())
        small.slow = 0.0
        while small.under_way:  # a real server drops what nobody waits for; this small one sleeps it out
            await asyncio.sleep(0.01)
        learn(policy)
        await update_weights(policy)  # nothing is under way any more

    asyncio.run(give_up())


# -- updates ----------------------------------------------------------------------------------


def test_every_update_has_a_name_of_its_own_and_is_proven(policy: TrainablePolicy, small: SmallVLLM) -> None:
    engine = engine_of(policy)
    (engine.settings.folder / "v7-00000000").mkdir(parents=True)  # left by a run that was killed
    for size in (0.0, 0.02, 0.001, 0.02):
        learn(policy, size)
        asyncio.run(update_weights(policy))
    assert [report.verdict for report in engine.reports] == ["first", "proven", "proven", "proven"]
    assert all(report.difference_max < 1e-4 for report in engine.reports)
    loaded = [body["lora_name"] for path, body in small.seen if path == "/v1/load_lora_adapter"]
    assert len(set(loaded)) == 4
    assert list(small.adapters) == loaded[-1:]  # the others were unloaded
    assert len(list((engine.settings.folder).glob("v*"))) == 1
    lines = [json.loads(line) for line in (engine.settings.folder / "canary.jsonl").read_text().splitlines()]
    assert [line["version"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["served"] == loaded[-1]
    asyncio.run(engine.close())
    assert not small.adapters
    assert not list((engine.settings.folder).glob("v*"))


def test_the_same_weights_are_not_sent_twice(policy: TrainablePolicy, small: SmallVLLM) -> None:
    asyncio.run(update_weights(policy))
    asyncio.run(update_weights(policy))
    assert sum(path == "/v1/load_lora_adapter" for path, _ in small.seen) == 1
    with torch.no_grad():  # other weights under the same number, as after a checkpoint was read
        policy.loaded.adapter.base_model.model.model.layers[0].mlp.up_proj.lora_B["default"].weight += 0.05
    asyncio.run(update_weights(policy))
    assert sum(path == "/v1/load_lora_adapter" for path, _ in small.seen) == 2


@pytest.mark.parametrize("size", [0.02, 0.001, 0.00003])
@pytest.mark.parametrize("what", ["all", "upper"])
def test_a_planted_stale_update_is_caught(policy: TrainablePolicy, small: SmallVLLM, what: str, size: float) -> None:
    """The server says that it loaded the adapter, and goes on with the old one, or with half of it."""
    learn(policy)
    asyncio.run(update_weights(policy))
    small.stale = what
    learn(policy, size)
    with pytest.raises(WeightUpdateError, match="The update to version 2 did not reach the engine: ") as exc_info:
        asyncio.run(update_weights(policy))
    assert isinstance(exc_info.value, EngineError)
    assert isinstance(exc_info.value, UserError)  # the command line prints the sentence and stops
    report = engine_of(policy).reports[-1]
    assert report.verdict == "lost"
    assert report.moved > 0
    assert len(small.adapters) == 1
    small.stale = ""
    asyncio.run(update_weights(policy))
    assert engine_of(policy).reports[-1].verdict == "proven"


def test_weights_do_not_change_under_a_request(policy: TrainablePolicy, small: SmallVLLM) -> None:
    async def both() -> None:
        await update_weights(policy)
        small.slow = 0.03
        under_way = asyncio.create_task(policy.engine.generate(ask()))
        await asyncio.sleep(0.05)
        with pytest.raises(EngineError, match="requests were under way"):
            await update_weights(policy)
        await under_way

    asyncio.run(both())


def test_what_cannot_be_served_says_why(small: SmallVLLM, tmp_path: Path) -> None:
    with pytest.raises(WeightUpdateError, match="version 0 did not reach the engine: it is .* away from the learner"):
        asyncio.run(update_weights(make_policy(small, tmp_path, seed=7)))  # another model of the same shape
    with pytest.raises(UserError, match="actor_rollout_ref.model.lora_rank"):
        asyncio.run(update_weights(make_policy(small, tmp_path, rank=None)))
    policy = make_policy(small, tmp_path)
    with pytest.raises(EngineError, match="has no weights"):
        asyncio.run(policy.engine.generate(ask()))
    small.lora = False
    with pytest.raises(UserError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        asyncio.run(update_weights(policy))
    small.lora, small.tokenizer = True, copy.deepcopy(small.tokenizer)
    small.tokenizer.add_tokens(["Ids"])
    with pytest.raises(UserError, match="another tokenizer"):
        asyncio.run(update_weights(make_policy(small, tmp_path)))
    small.url = "http://127.0.0.1:9"  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="No vLLM server is to be found"):
        asyncio.run(update_weights(make_policy(small, tmp_path)))
    small.url = "127.0.0.1:9"  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="write http://HOST:PORT"):
        asyncio.run(update_weights(make_policy(small, tmp_path)))


def test_a_server_on_another_disk_says_so(policy: TrainablePolicy, small: SmallVLLM) -> None:
    found = small.load
    small.load = lambda name, path: found(name, "/nowhere")  # type: ignore[method-assign]
    with pytest.raises(UserError, match="must see the same disk"):
        asyncio.run(update_weights(policy))


# -- configuration ----------------------------------------------------------------------------

GROUP = "actor_rollout_ref.rollout"


def test_the_configuration_reaches_the_engine(tmp_path: Path, renderer: Renderer) -> None:
    given = ["port=8123", "dtype=bfloat16", "max_model_len=512", "extra_args=[--enforce-eager]", "start_timeout=9"]
    config = resolve_train([
        f"{GROUP}.name=vllm", f"{GROUP}.max_num_seqs=5", f"{GROUP}.tensor_model_parallel_size=2",
        f"{GROUP}.gpu_memory_utilization=0.25", f"{GROUP}.vllm.canary_limit=0.02",
        f"{GROUP}.vllm.python={sys.executable}", *(f"{GROUP}.vllm.{key}" for key in given),
    ]).config  # fmt: skip
    build.check_machine(replace(config, trainer=replace(config.trainer, n_gpus_per_node=0)))
    maker = rollout_engine.engine_maker(config, tmp_path)
    assert maker is not None
    engine = maker(renderer)
    assert isinstance(engine, VLLMEngine)
    place = tmp_path / "vllm"
    assert engine.settings.server == ServerSettings(
        place, sys.executable, 8123, "bfloat16", 512, 5, 2, 0.25, ("--enforce-eager",), 9.0
    )
    assert (engine.settings.folder, engine.canary.limit, engine.settings.max_num_seqs) == (place, 0.02, 5)
    assert engine.settings.base == loader.model_folder("tiny")
    found = rollout_engine.engine_maker(
        resolve_train([f"{GROUP}.name=vllm", f"{GROUP}.vllm.url=http://a:1"]).config, tmp_path
    )
    assert found is not None
    adopted = found(renderer)
    assert isinstance(adopted, VLLMEngine)
    assert (adopted.client.url, adopted.client.server) == ("http://a:1", None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{GROUP}.vllm.url=http://a:1"], "means nothing to actor_rollout_ref.rollout.name=local"),
        ([f"{GROUP}.name=vllm", f"{GROUP}.vllm.url=http://a:1", f"{GROUP}.vllm.python=python"], "leave out .*url"),
        ([f"{GROUP}.name=vllm", f"{GROUP}.vllm.url=http://a:1", f"{GROUP}.gpu_memory_utilization=0.9"], "started here"),
        ([f"{GROUP}.name=vlm"], "Did you mean 'vllm'"),
        ([f"{GROUP}.name=vllm"], "needs a server"),
        ([f"{GROUP}.name=vllm", f"{GROUP}.vllm.python=/no/python"], "is not a program"),
        ([f"{GROUP}.name=vllm", f"{GROUP}.vllm.url=http://a:1", "trainer.nnodes=2"], "is one server, and each"),
    ],
)  # fmt: skip
def test_settings_that_vllm_cannot_follow_are_errors(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build.check_machine(resolve_train([*overrides, "trainer.n_gpus_per_node=0"]).config)


# -- training ---------------------------------------------------------------------------------


class ByLength(MathEnvironment):
    """Pays for short answers."""

    async def step(self, action: Action) -> Step:
        return Step(reward=1.0 / (1 + len(action.content)), terminated=True, success=False)


@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_grpo_over_http(policy: TrainablePolicy, small: SmallVLLM, cap: float) -> None:
    agent = Agent(max_turns=1, sampling=Sampling(max_tokens=10, temperature=0.8, stop=("e",)))
    settings = rl_settings(
        total_training_steps=3, train_batch_size=2, num_chains=3, lr=1e-3, lr_warmup_steps=0, tis_imp_ratio_cap=cap
    )
    trainer = RLTrainer(policy, OnlineSource(policy, ByLength().tasks("train", 6), ByLength, agent, settings), settings)

    async def whole() -> list[dict[str, float]]:
        try:
            return [(await trainer.step(step))[0] for step in range(3)]
        finally:
            await policy.close()

    for metrics in asyncio.run(whole()):
        assert metrics["mismatch/logprob/max"] < 1e-4
        assert np.isfinite(metrics["reward/mean"])
    verdicts = [report.verdict for report in engine_of(policy).reports]
    assert verdicts == ["first", "proven", "proven"]


def test_mismatch_with_an_engine_that_is_a_little_off_is_measured_and_corrected(
    policy: TrainablePolicy, small: SmallVLLM
) -> None:
    """Within the canary's limit, and seen all the same: it is in the metrics, and its weight in the loss."""
    with torch.no_grad():
        small.model.model.norm.weight *= 1.01
    engine = engine_of(policy)
    engine.canary.limit = 0.2
    agent = Agent(max_turns=1, sampling=Sampling(max_tokens=10, stop=("e",)))
    settings = rl_settings(
        total_training_steps=1, train_batch_size=2, num_chains=3, lr=1e-3, lr_warmup_steps=0, tis_imp_ratio_cap=2.0
    )
    trainer = RLTrainer(policy, OnlineSource(policy, ByLength().tasks("train", 2), ByLength, agent, settings), settings)

    async def once(limit: float) -> dict[str, float]:
        trainer.settings = replace(settings, mismatch_limit=limit)
        return (await trainer.step(0))[0]

    metrics = asyncio.run(once(1.0))
    assert 1e-3 < metrics["mismatch/logprob/mean"] < 0.1
    policy.set_version(0)
    with pytest.raises(UserError, match="engine and learner disagree"):
        asyncio.run(once(1e-3))
