"""SmolLM2 as HALO's worker, from an expert's episodes: recorded and evaluated in Chromium, trained on a GPU.

    python benchmarks/web_smollm2.py record      # OUT/episodes and OUT/data, with a browser
    python benchmarks/web_smollm2.py train       # OUT/adapters, on a GPU; OUT/data is all that it needs
    python benchmarks/web_smollm2.py evaluate    # OUT/results, with a browser

With `--model tiny-pretrained --full --parts miniwob` all three run on a CPU; `train` and `evaluate` took 5 minutes.

Two LoRA adapters: `web` learns all training templates of our sites and is evaluated on held-out templates in which text
must be typed; `miniwob` learns those of MiniWoB++'s 62 training tasks that have a scripted policy and is evaluated on
its 63 test tasks. Each is compared with the model without training.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from resumable_stages import run_command

from practicum.environments.web.miniwob_policies import POLICIES
from practicum.environments.web.miniwob_tasks import TRAIN_TASKS

PARTS = ("web", "miniwob")
SHORT = ["--env-arg", "observe=brief", "--env-arg", "prompt=page"]
"""Short prompts: the model is evaluated on a CPU."""
MAX_TURNS = {"web": 20, "miniwob": 10}
BASE = "smollm2"
SCRIPTED = sorted(set(TRAIN_TASKS) & set(POLICIES))


def trained(out: Path, model: str, part: str) -> Path:
    """The folder of what was trained on a part."""
    return out / "adapters" / (part if model == BASE else f"{part}-{Path(model).name}")


def record(out: Path, model: str, counts: dict[str, int], parts: Sequence[str]) -> Iterator[list[str]]:
    """Commands that record the expert's episodes, and write them as rows of prompt and action."""
    for part in parts:
        chosen = [] if part == "web" else ["--env-arg", f"tasks={json.dumps(SCRIPTED)}"]
        episodes, turns = str(out / "episodes" / part), str(MAX_TURNS[part])
        yield ["collect", "--env", part, *SHORT, *chosen, "--policy", "expert", "--tokenizer", model, "--tasks",
               str(counts[part]), "--max-turns", turns, "--out", episodes]  # fmt: skip
        yield ["export", "--input_dir", episodes, "--output_dir", str(out / "data" / part), "--format", "bc"]


def train(out: Path, model: str, full: bool, epochs: int, parts: Sequence[str]) -> Iterator[list[str]]:
    """Commands that train an adapter, or all weights, on each part."""
    for part in parts:
        weights = ["--full", "training.bf16=false"] if full else ["--lora_r", "16", "--lora_alpha", "32"]
        yield [
            "sft", "--dataset_path", str(out / "data" / part / "bc.jsonl"), "--model", model, "--output_dir",
            str(trained(out, model, part)), *weights, f"training.learning_rate={5e-4 if full else 1e-3}",
            f"training.num_epochs={epochs}", "training.batch_size=32", "training.gradient_accumulation_steps=1",
            "training.warmup_steps=20", "training.gradient_checkpointing=false", "training.eval_steps=100",
        ]  # fmt: skip


def evaluate(
    out: Path, model: str, tasks: dict[str, int], parts: Sequence[str], modes: Sequence[str]
) -> Iterator[list[str]]:
    """Commands that evaluate what was trained, and the model without training, greedily."""
    for part in parts:
        policies = {"zero": model, "bc": str(trained(out, model, part))}
        chosen = ["--subset", "needs_text=true"] if part == "web" else []
        mode_flags, results = [f"{part}-{mode}={policies[mode]}" for mode in modes], trained(out, model, part).name
        yield ["matrix", "--mode", *mode_flags, "--env", part, *SHORT, *chosen, "--tasks", str(tasks[part]),
               "--max-turns", str(MAX_TURNS[part]), "--max-tokens", "64",
               "--out", str(out / "results" / results)]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("record", "train", "evaluate"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--out", type=Path, default=Path("runs/web-smollm2"))
    parser.add_argument("--model", default=BASE)
    parser.add_argument("--full", action="store_true", help="train all weights, in float32")
    parser.add_argument("--modes", nargs="+", choices=("zero", "bc"), default=("zero", "bc"), help="what to evaluate")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--web", type=int, help="tasks of our sites (default: 1200 to record, 120 to evaluate)")
    parser.add_argument("--miniwob", type=int, help="tasks of MiniWoB++ (default: 810 to record, 315 to evaluate)")
    args = parser.parse_args()
    if args.stage == "record":
        commands = record(args.out, args.model, {"web": args.web or 1200, "miniwob": args.miniwob or 810}, args.parts)
    elif args.stage == "train":
        commands = train(args.out, args.model, args.full, args.epochs, args.parts)
    else:
        tasks = {"web": args.web or 120, "miniwob": args.miniwob or 315}
        commands = evaluate(args.out, args.model, tasks, args.parts, args.modes)
    for command in commands:
        run_command(*command)


if __name__ == "__main__":
    main()
