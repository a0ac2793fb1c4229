"""Several adapters over one base: each request's log-probs are PEFT's for its own adapter, in any batch."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import random
import statistics
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.cpu_runner import CpuRunner
from practicum.engines.local.engine import LocalEngine
from practicum.engines.local.kv_cache import KVCache
from practicum.engines.local.runner import DecodeOutput, RunnerFactory, RunnerSettings, RunningRequest
from practicum.environment import Observation
from practicum.errors import UserError
from practicum.models import loader
from practicum.models.decoder import Decoder, FusedLinear
from practicum.models.loader import LoadedModel
from practicum.models.lora import LoRASettings, add_adapter
from practicum.models.multi_lora import MultiLoRA, read_adapter
from practicum.task import Task
from practicum.training.trainable_policy import TrainablePolicy

TASK = Task("t", "x", "train")
CONFIGS = {
    "wide": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
    "narrow": {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "use_rslora": True},
    "patterned": {
        "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "rank_pattern": {"down_proj": 2},
        "alpha_pattern": {"down_proj": 6},
    },
}  # fmt: skip


def base() -> LlamaForCausalLM:
    model = loader.load_tiny(3).model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters as PEFT writes them, with matrices that matter."""
    root, made = tmp_path_factory.mktemp("adapters"), {}
    for seed, (name, config) in enumerate(CONFIGS.items()):
        torch.manual_seed(seed)
        wrapped = peft.get_peft_model(base(), peft.LoraConfig(task_type="CAUSAL_LM", **config))  # type: ignore[arg-type]
        with torch.no_grad():
            for key, parameter in wrapped.named_parameters():
                if "lora_B" in key:
                    parameter.normal_(std=0.05)
        wrapped.save_pretrained(str(root / name))
        made[name] = root / name
    return made


def without_end_ids(renderer: Renderer) -> Renderer:
    """Replies end at their token limit: how long one is does not depend on what is sampled."""
    endless = copy.copy(renderer)
    endless.end_ids = ()
    return endless


class StepwiseRunner(CpuRunner):
    """Decodes as many steps as it is allowed: what happens between two of them does not depend on the machine."""

    def __init__(self, decoder: Decoder, kv_cache: KVCache, settings: RunnerSettings) -> None:
        super().__init__(decoder, kv_cache, settings)
        self.allowed = threading.Semaphore(0)

    def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
        if self.allowed.acquire(timeout=0.001):
            return super().decode(running, end_ids)
        return DecodeOutput(0, [])


def use(
    renderer: Renderer, work: Callable[[LocalEngine], Awaitable[None]], runner: RunnerFactory | None = None
) -> None:
    async def run() -> None:
        engine = LocalEngine(Decoder(base()), renderer, max_batch=16, runner=runner)
        try:
            await asyncio.wait_for(work(engine), 120)
        finally:
            await engine.close()

    asyncio.run(run())


async def decode_steps(engine: LocalEngine, count: int) -> None:
    """Let an engine with a `StepwiseRunner` decode this many steps."""
    assert isinstance(engine.runner, StepwiseRunner)
    reached = engine.stats.decode_steps + count
    engine.runner.allowed.release(count)
    while engine.stats.decode_steps < reached:
        await asyncio.sleep(0.001)


def request(ids: list[int], adapter: str, number: int, tokens: int = 12) -> Request:
    sampling = Sampling(temperature=1.0, max_tokens=tokens, seed=number)
    return Request(tuple(ids), sampling, TASK, Observation(), (), session=f"s{number}", adapter=adapter)


def mixed(names: list[str]) -> list[Request]:
    """Prompts of many lengths, some the same for every adapter: what one has cached must not serve another."""
    rng = random.Random(0)
    shared = [rng.randrange(10, 700) for _ in range(40)]
    made = []
    for number in range(14):
        own = [rng.randrange(10, 700) for _ in range(rng.randint(3, 150))]
        made.append(request(shared if number % 2 else own, names[number % len(names)], number))
    return made


def peft_logprobs(folder: Path | None, prompt: tuple[int, ...], reply: Generation) -> torch.Tensor:
    model: torch.nn.Module = base()
    if folder is not None:
        model = peft.PeftModel.from_pretrained(model, str(folder))  # type: ignore[arg-type]
    ids = torch.tensor([[*prompt, *reply.ids]])
    with torch.no_grad():
        rows = model.eval()(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return rows.gather(-1, torch.tensor(reply.ids)[:, None])[:, 0]


def test_every_request_is_answered_by_its_own_adapter(renderer: Renderer, folders: dict[str, Path]) -> None:
    names = ["", *folders]

    async def work(engine: LocalEngine) -> None:
        for name, folder in folders.items():
            await engine.load_adapter(name, folder)
        batch = mixed(names)
        replies = await asyncio.gather(*(engine.generate(item) for item in batch))
        for item, reply in zip(batch, replies, strict=True):
            assert reply.logprobs is not None
            expected = peft_logprobs(folders.get(item.adapter), item.ids, reply)
            assert torch.allclose(torch.tensor(reply.logprobs), expected, atol=1e-4), item.adapter
        same = [reply.ids for item, reply in zip(batch, replies, strict=True) if len(item.ids) == 40]
        assert len(set(same)) > 1

    use(renderer, work)


def test_other_requests_in_the_batch_change_no_bit(renderer: Renderer, folders: dict[str, Path]) -> None:
    async def work(engine: LocalEngine) -> None:
        for name, folder in folders.items():
            await engine.load_adapter(name, folder)
        batch = mixed(["", *folders])
        batched = await asyncio.gather(*(engine.generate(item) for item in batch))
        engine.weights_changed(1)  # nothing cached
        alone = [await engine.generate(item) for item in batch]
        assert [(r.ids, r.logprobs) for r in batched] == [(r.ids, r.logprobs) for r in alone]

    use(renderer, work)


def test_an_adapter_can_be_loaded_while_requests_run(renderer: Renderer, folders: dict[str, Path]) -> None:
    async def work(engine: LocalEngine) -> None:
        await engine.load_adapter("wide", folders["wide"])
        wide_request = request([5, 6, 7, 8], "wide", 1, 40)
        long = asyncio.ensure_future(engine.generate(wide_request))
        await decode_steps(engine, 3)
        await engine.load_adapter("narrow", folders["narrow"])
        assert not long.done()
        await decode_steps(engine, 37)
        reply = await long
        assert reply.logprobs is not None
        assert torch.allclose(
            torch.tensor(reply.logprobs), peft_logprobs(folders["wide"], wide_request.ids, reply), atol=1e-3
        )
        await engine.unload_adapter("wide")
        with pytest.raises(UserError, match="no adapter 'wide'"):
            await engine.generate(wide_request)

    use(without_end_ids(renderer), work, StepwiseRunner)


def test_replacing_an_adapter_empties_its_prefix_cache(renderer: Renderer, folders: dict[str, Path]) -> None:
    async def work(engine: LocalEngine) -> None:
        view = engine.with_adapter("a")
        prompt = list(range(20, 80))
        for name in ("wide", "narrow"):
            await engine.load_adapter("a", folders[name])
            reply = await view.generate(request(prompt, "", 1))
            assert reply.prompt_cached == 0
            assert reply.logprobs is not None
            expected = peft_logprobs(folders[name], tuple(prompt), reply)
            assert torch.allclose(torch.tensor(reply.logprobs), expected, atol=1e-4)

    use(renderer, work)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"use_dora": True}, "use_dora=True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"peft_type": "IA3"}, "peft_type=IA3"),
    ],
)
def test_adapters_that_cannot_be_served_beside_others_are_refused(
    renderer: Renderer, folders: dict[str, Path], tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    config = json.loads((folders["narrow"] / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | change))
    save_file(load_file(folders["narrow"] / "adapter_model.safetensors"), tmp_path / "adapter_model.safetensors")

    async def work(engine: LocalEngine) -> None:
        with pytest.raises(UserError, match=sentence):
            await engine.load_adapter("a", tmp_path)

    use(renderer, work)


def test_other_folders_are_refused(renderer: Renderer, folders: dict[str, Path], tmp_path: Path) -> None:
    async def work(engine: LocalEngine) -> None:
        with pytest.raises(UserError, match="not an adapter"):
            await engine.load_adapter("a", tmp_path)
        (tmp_path / "adapter_config.json").write_text((folders["narrow"] / "adapter_config.json").read_text())
        (tmp_path / "adapter_model.safetensors").write_bytes(b"torn")
        with pytest.raises(UserError, match="cannot be read"):
            await engine.load_adapter("a", tmp_path)
        wrong = {key: value[:, :-1].contiguous() for key, value in _tensors(folders["narrow"]).items()}
        save_file(wrong, tmp_path / "adapter_model.safetensors")
        with pytest.raises(UserError, match="does not fit"):
            await engine.load_adapter("a", tmp_path)
        with pytest.raises(UserError, match="no adapter 'a'"):
            await engine.generate(request([1, 2, 3], "a", 0))

    use(renderer, work)


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


def test_requests_end_with_the_version_that_they_began_with(renderer: Renderer, folders: dict[str, Path]) -> None:
    """An adapter is replaced and then dropped while requests of both versions run; what is unused is removed."""

    async def work(engine: LocalEngine) -> None:
        prompt = list(range(20, 60))
        await engine.load_adapter("a", folders["wide"], version=1)
        first = asyncio.ensure_future(engine.generate(request(prompt, "a", 1, 30)))
        await decode_steps(engine, 3)
        await engine.load_adapter("a", folders["narrow"], version=2)
        second = asyncio.ensure_future(engine.generate(request(prompt, "a", 2, 30)))
        while engine.num_running < 2:  # requests are admitted every few steps
            await decode_steps(engine, 1)
        assert engine.adapters is not None
        assert len(engine.adapters.matrices.names) == 2
        await engine.unload_adapter("a")
        with pytest.raises(UserError, match="no adapter 'a'"):
            await engine.generate(request(prompt, "a", 3))
        assert not first.done()
        assert not second.done()
        assert isinstance(engine.runner, StepwiseRunner)
        engine.runner.allowed.release(1000)
        for number, (reply, name) in enumerate(((await first, "wide"), (await second, "narrow")), 1):
            assert (reply.policy_version, reply.prompt_cached) == (number, 0)
            assert reply.logprobs is not None
            expected = peft_logprobs(folders[name], tuple(prompt), reply)
            assert torch.allclose(torch.tensor(reply.logprobs), expected, atol=1e-3), name
        await engine.generate(request(prompt, "", 4))
        assert engine.adapters.matrices.names == ()
        assert all(not entry.adapter for entry in engine.prefixes)

    use(without_end_ids(renderer), work, StepwiseRunner)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_a_row_gets_the_bits_of_pefts_layers(masked: bool, dtype: torch.dtype, folders: dict[str, Path]) -> None:
    """Also where each product, scale and sum rounds to bfloat16; with masks as in captured graphs, and row by row."""
    shared = base().to(dtype)
    decoder = Decoder(shared)
    adapters = MultiLoRA(decoder, masked)
    names = ["wide", "", "patterned", "narrow", "wide", "", "patterned", "narrow"]
    for name, folder in folders.items():
        adapters.add(name, read_adapter(folder, decoder))
    if masked:
        adapters.select(tuple(folders), torch.tensor([adapters.index(name) for name in names]))
    else:
        adapters.select_rows(names)
    torch.manual_seed(0)
    for name in dict.fromkeys(names):
        model = copy.deepcopy(shared)
        layer = model.model.layers[0]
        if name:
            wrapped = peft.PeftModel.from_pretrained(model, str(folders[name]), autocast_adapter_dtype=False)
            layer = wrapped.base_model.model.model.layers[0]
        rows = [row for row, other in enumerate(names) if other == name]
        groups = {
            "qkv": [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj],
            "out": [layer.self_attn.o_proj],
            "gate_up": [layer.mlp.gate_proj, layer.mlp.up_proj],
            "down": [layer.mlp.down_proj],
        }
        for group, linears in groups.items():
            fused: FusedLinear = getattr(decoder.layers[0], group)
            assert fused.weight is not None
            x = torch.randn(len(names), fused.weight.shape[1]).to(dtype)
            with torch.inference_mode():
                plain = torch.nn.functional.linear(x, fused.weight, fused.bias).split(fused.sizes, -1)
                output = fused.joined(x)
                assert output is not None
                for linear, start, part in zip(linears, plain, output.split(fused.sizes, -1), strict=True):
                    expected = start
                    if hasattr(linear, "lora_A"):
                        update = linear.lora_B["default"](linear.lora_A["default"](x))
                        expected = start + update * linear.scaling["default"]
                    assert torch.equal(part[rows], expected[rows]), (name, group)


def mean_difference(policy: TrainablePolicy, batch: list[Request], replies: list[Generation]) -> float:
    """Between the log-probs of an engine and those of the learner, per token."""
    scored = [policy.score(item.ids, reply.ids) for item, reply in zip(batch, replies, strict=True)]
    pairs = zip(itertools.chain(*scored), itertools.chain(*(reply.logprobs or () for reply in replies)), strict=True)
    return statistics.fmean(abs(first - second) for first, second in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_engine_and_learner_agree_on_adapters_that_are_trained_side_by_side(
    renderer: Renderer, dtype: torch.dtype
) -> None:
    """Two adapters over one base in one engine, each updated in turn while the other one answers."""
    shared = base().to(dtype)
    learners = {}
    for seed, name in enumerate(("planner", "worker")):
        model = copy.deepcopy(shared)
        for own, shared_parameter in zip(model.parameters(), shared.parameters(), strict=True):
            own.data = shared_parameter.data  # the same storage: there is one base
        loaded = LoadedModel(model, renderer.tokenizer, "tiny")
        learners[name] = add_adapter(loaded, LoRASettings(4 + 4 * seed, 16.0), seed=seed)

    def update(name: str, seed: int) -> None:
        torch.manual_seed(seed)
        with torch.no_grad():
            for key, parameter in learners[name].adapter.named_parameters():
                if "lora_" in key:
                    parameter.add_(torch.randn_like(parameter) * 0.05)

    async def run() -> None:
        engine = LocalEngine(Decoder(shared), renderer, max_batch=16)
        rng = random.Random(0)
        for version in (1, 2):
            for name in learners:
                other = "worker" if name == "planner" else "planner"
                busy = []
                if version > 1:  # the other one answers while this one is replaced
                    busy = [asyncio.ensure_future(engine.generate(request([7, 8, 9], other, 90 + version, 40)))]
                    while not engine.num_running and not busy[0].done():
                        await asyncio.sleep(0.001)
                update(name, version)
                await engine.load_adapter(name, learners[name].adapter, version)
                for item in busy:
                    assert (await item).policy_version in (1, 2)
            batch = [
                request([rng.randrange(10, 700) for _ in range(rng.randint(3, 90))], name, number, 16)
                for number, name in enumerate([*learners, ""] * 4)
            ]
            replies = await asyncio.gather(*map(engine.generate, batch))
            plain = TrainablePolicy(LoadedModel(shared, renderer.tokenizer, "tiny"))
            base_difference = mean_difference(plain, batch[2::3], replies[2::3])
            for index, name in enumerate(learners):
                assert {item.policy_version for item in replies[index::3]} == {version}
                difference = mean_difference(TrainablePolicy(learners[name]), batch[index::3], replies[index::3])
                print(f"{dtype}: {difference:.2g} with '{name}', {base_difference:.2g} without an adapter")
                assert difference <= 2 * base_difference
        await engine.close()

    asyncio.run(run())
