"""The rates of `practicum plan`: fitted to measured points, and held against points that no rate was fitted to.

    python benchmarks/plan_rates.py                      the rates of generation on an H200, and leaving out each model
    python benchmarks/plan_rates.py --measure FILE.json  GRPO steps on this machine's CPU; about a minute on two cores

The fit is least squares of log(estimate / measured) over the points `generation` and `decode` of
`practicum.training.plan_points`; it prints the six rates, and the errors on every model by rates fitted without it;
then those of the present rates on figures that were measured after the fit (`gpu_vllm.json`, `gpu_versions.json`).

--measure runs steps as `rl_step_cpu.py` does (rollout, advantages, loss, backward, AdamW; peak memory over that after
the imports), each case in a process of its own, with other models, batches and lengths than the points have.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).absolute().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import numpy as np

from practicum.training import plan
from practicum.training.plan_points import POINTS, MeasuredPoint, estimate_point

RATES = ("decode_bandwidth", "decode_compute", "layer_seconds", "row_seconds", "prefill", "request_seconds")
REPEATS = 3


def with_rates(values: Sequence[float]) -> plan.Efficiencies:
    """The H200's efficiencies with other rates of generation."""
    changed: dict[str, Any] = dict(zip(RATES, values, strict=True))
    return replace(plan.EFFICIENCIES[True], **{**changed, "prefill": (changed["prefill"],) * 3})


def errors(points: Sequence[MeasuredPoint], values: Sequence[float]) -> list[float]:
    """Relative errors of the estimated seconds."""
    before = plan.EFFICIENCIES[True]
    plan.EFFICIENCIES[True] = with_rates(values)
    try:
        return [estimate_point(point).time_error or 0.0 for point in points]
    finally:
        plan.EFFICIENCIES[True] = before


def fit(points: Sequence[MeasuredPoint]) -> list[float]:
    from scipy.optimize import least_squares

    now = plan.EFFICIENCIES[True]
    start = [now.prefill[0] if name == "prefill" else getattr(now, name) for name in RATES]
    result = least_squares(
        lambda logs: np.log1p(errors(points, np.exp(logs))), np.log(start), loss="soft_l1", f_scale=0.1
    )
    return [float(value) for value in np.exp(result.x)]


def print_fit() -> None:
    points = [point for point in POINTS if point.part in ("generation", "decode")]
    for name, value in zip(RATES, fit(points), strict=True):
        print(f"{name:18} {value:.3g}")
    for model in dict.fromkeys(point.model for point in points):
        held_out = [point for point in points if point.model == model]
        values = fit([point for point in points if point.model != model])
        print(f"{model}: " + ", ".join(f"{error:+.0%}" for error in errors(held_out, values)))


def print_later_figures() -> None:
    """The errors on what was measured after the fit: the engine beside vLLM, and old and present code by turns."""
    results, hardware = ROOT / "benchmarks" / "results", plan.HARDWARE["h200"]
    print("later:")
    for row in json.loads((results / "gpu_vllm.json").read_text())["shapes"]:
        size = plan.MODEL_SIZES[row["shape"].lower()]
        print_errors(row["shape"], size, hardware, [
            (*cell["cell"], 1, cell["cell"][0] * cell["cell"][2] / cell["ours, tokens/s"]) for cell in row["cells"]
        ])  # fmt: skip
    cells = []
    for name, sides in json.loads((results / "gpu_versions.json").read_text())["idle machine"].items():
        rows, _, chains = name.partition("x")
        seconds = statistics.mean(round_["seconds"] for round_ in sides["new"])
        if not rows.isdigit():  # a GRPO step
            work = plan.StepWorkload(32, 8, 200, 128, max_num_seqs=256)
            estimate = plan.estimate(plan.MODEL_SIZES["smollm2"], hardware, work).step_seconds
            print(f"smollm2, {name}: {estimate / seconds - 1:+.0%}")
            continue
        cells.append((int(rows), 200, 128, int(chains), seconds))
    print_errors("smollm2", plan.MODEL_SIZES["smollm2"], hardware, cells)


def print_errors(
    name: str, size: Any, hardware: plan.Hardware, cells: Sequence[tuple[int, int, int, int, float]]
) -> None:
    """Print the errors of requests, tokens of a prompt, of a reply, requests per prompt, and the measured seconds."""
    found = []
    for rows, prompt, reply, chains, seconds in cells:
        work = plan.StepWorkload(rows // chains, chains, prompt, reply, max_num_seqs=rows)
        found.append(f"{plan.generation_seconds(size, hardware, work) / seconds - 1:+.0%}")
    print(f"{name}: " + ", ".join(found))


# -- held-out steps on a CPU ----------------------------------------------------------------


@dataclass(frozen=True)
class HeldOutStep:
    """A GRPO step; `between` is a model between tiny and SmolLM2-135M, with random weights."""

    model: str
    prompts: int
    chains: int
    prompt_tokens: int
    reply_tokens: int

    @property
    def name(self) -> str:
        return f"{self.model}, {self.prompts} × {self.chains}, {self.prompt_tokens} + {self.reply_tokens} tokens"


HELD_OUT = (
    HeldOutStep("tiny", 16, 4, 100, 64),
    HeldOutStep("tiny", 4, 8, 300, 128),
    HeldOutStep("between", 8, 4, 80, 48),
    HeldOutStep("between", 4, 8, 250, 32),
    HeldOutStep("smollm2", 4, 4, 120, 24),
)
BETWEEN: dict[str, Any] = {
    "vocab_size": 8192, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 12,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip


def step_once(case: HeldOutStep, folder: Path) -> None:
    """Run the steps of a case in this process; prints seconds, seconds of the rollout, and bytes."""
    import rl_step_cpu
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from practicum.models import loader
    from practicum.models.decoder import Shape

    model = case.model
    if model == "between":
        model = str(folder / model)
        loader.load_tokenizer("tiny").save_pretrained(model)
        torch.manual_seed(0)
        LlamaForCausalLM(LlamaConfig(**BETWEEN)).save_pretrained(model)
    rl_step_cpu.PROMPTS, rl_step_cpu.CHAINS = case.prompts, case.chains
    config = json.loads((Path(loader.model_folder(model)) / "config.json").read_text())
    imported = rl_step_cpu.resident_bytes("VmRSS")
    results: list[dict[str, float]] = []
    left = [4, *[case.reply_tokens] * (REPEATS + 1)]

    def receive() -> dict[str, int] | None:
        return {"step": len(left), "tokens": left.pop(0), "threads": 2} if left else None

    rl_step_cpu.practicum_side(rl_step_cpu.Case(model, case.prompt_tokens), receive, results.append)
    timed = [result for result in results if result][-REPEATS:]
    work = plan.StepWorkload(
        case.prompts, case.chains, case.prompt_tokens, case.reply_tokens, micro_tokens=480, max_num_seqs=64
    )
    size, hardware = Shape.of_config(config), plan.HARDWARE["cpu"]
    estimate = plan.estimate(size, hardware, work)
    seconds = statistics.median(result["seconds"] for result in timed)
    rollout = statistics.median(result["rollout"] for result in timed)
    peak = rl_step_cpu.resident_bytes("VmHWM") - imported
    print(json.dumps({
        "case": case.name, "seconds": seconds, "rollout seconds": rollout, "peak over imports MiB": peak / 2**20,
        "error": estimate.step_seconds / seconds - 1, "load": os.getloadavg()[0],
        "error of the rollout": plan.rollout_seconds(size, hardware, work) / rollout - 1,
        "error of memory": estimate.total_bytes / peak - 1,
    }))  # fmt: skip


def measure(out: Path) -> None:
    results = []
    for index in range(len(HELD_OUT)):
        with tempfile.TemporaryDirectory(prefix="plan-rates-") as folder:
            command = [sys.executable, __file__, "--case", str(index), "--folder", folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
        print(done.stdout.splitlines()[-1], flush=True)
        out.write_text(json.dumps({"cores": os.cpu_count(), "results": results}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure steps on this CPU instead")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        step_once(HELD_OUT[args.case], args.folder)
    elif args.measure is not None:
        measure(args.measure)
    else:
        print_fit()
        print_later_figures()


if __name__ == "__main__":
    main()
