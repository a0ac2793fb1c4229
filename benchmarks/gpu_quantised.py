"""Weights in 8 and 4 bits on a GPU: memory, distance from bfloat16, speed, and the commands that use them.

    python benchmarks/gpu_quantised.py --out FILE.json [--only compare,sft,dpo,collect,eval] [--model smollm2]

SmolLM2-135M in bfloat16, int8 and nf4 (bitsandbytes): bytes of weights, the divergence of the next token's distribution
from bfloat16's on demonstrations, and the engine's tokens/s. Then `sft`, `dpo`, `collect` and `eval` of the command
line, in int8 and in nf4; without `sft` in `--only`, collect and eval take the model itself. The file is complete after
every line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_legs import needs

needs.prepare()
Record = Callable[[dict[str, Any]], None]
MAIN = "import sys; from practicum.cli.main import main; sys.exit(main(sys.argv[1:]))"
TEXTS = (
    "The quick brown fox jumps over the lazy dog. In 1905 Albert Einstein published four papers, one of which "
    "explained the photoelectric effect by quanta of light, for which he received the Nobel prize.",
    "To compute 17 times 23, multiply 17 by 20, which is 340, and add 17 times 3, which is 51: the result is 391.",
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n"
    "    return total / len(values)\n",
)
ALL = ["compare", "sft", "dpo", "collect", "eval"]
STEPS = ["--lora_r", "8", "--epochs", "1", "--batch_size", "4", "--gradient_accumulation_steps", "1"]


def compare(record: Record, model: str) -> None:
    """Memory, divergence and speed of the three kinds of weights."""
    import torch
    from gpu_legs import engine as engine_leg
    from gpu_legs.common import Size

    from practicum.models import loader
    from practicum.models.quantisation import config_of_dtype

    expected: list[torch.Tensor] = []
    for dtype in (None, "int8", "nf4"):
        row: dict[str, Any] = {"weights": dtype or "bfloat16"}
        try:
            before = torch.cuda.memory_allocated()
            loaded = loader.load(model, torch.bfloat16, "cuda", config_of_dtype(dtype))
            row["MiB"] = (torch.cuda.memory_allocated() - before) / 2**20
            row["linear layers MiB"] = (
                sum(p.numel() * p.element_size() for name, p in loaded.model.named_parameters() if "_proj" in name)
                / 2**20
            )
            actual = [logprobs(loaded, text) for text in TEXTS]
            expected = expected or actual
            pairs = list(zip(expected, actual, strict=True))
            row["KL from bfloat16"] = float(torch.cat([(p.exp() * (p - q)).sum(-1) for p, q in pairs]).mean())
            row["same likeliest token"] = float(
                torch.cat([(p.argmax(-1) == q.argmax(-1)).float() for p, q in pairs]).mean()
            )
            renderer = engine_leg.Renderer(loaded.tokenizer)
            renderer.end_ids = ()
            for batch in (64, 256):
                size = Size(repeats=1)
                row[f"tokens/s at {batch}"] = engine_leg.measure(size, loaded.model, renderer, batch, 1, False)[
                    "tokens/s"
                ]
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"[:2000]
        record(row)


def logprobs(loaded: Any, text: str) -> Any:
    import torch

    ids = loaded.tokenizer(text, return_tensors="pt").input_ids.cuda()
    with torch.no_grad():
        return loaded.model(ids).logits[0].float().log_softmax(-1)


def command(record: Record, kind: str, name: str, *arguments: str) -> None:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", MAIN, *arguments], capture_output=True, text=True, check=False)
    row = {"weights": kind, "command": name, "exit code": done.returncode, "seconds": time.perf_counter() - started}
    tail = (done.stderr + done.stdout if done.returncode else done.stdout).splitlines()[
        -(25 if done.returncode else 6) :
    ]
    record({**row, "output": tail})


def commands(record: Record, folder: Path, kind: str, key: str, args: argparse.Namespace) -> None:
    """The commands with one kind of weights, each after the one whose result it needs."""
    model, math = ["--model", args.model], ["--env", "math", "--env-arg", "levels=[1]", "--max-tokens", "48"]
    quantised = f"model.{key}=true"
    sft, dpo = str(folder / f"sft-{kind}"), str(folder / f"dpo-{kind}")
    demonstration_flags, rows = (
        ["--episodes", str(folder / "shown")],
        ["data.dataset_path=" + str(folder / "pairs.jsonl")],
    )
    own = ["--policy", args.model, "--template", "chatml"]  # SmolLM2's own template does not show tools
    policy = [*(["--policy", f"{sft}/model"] if "sft" in args.only else own), "--dtype", kind]
    arguments = {
        "sft": [*demonstration_flags, *model, "--out", sft, *STEPS, quantised],
        "dpo": [*rows, *model, "--out", dpo, *STEPS, quantised],
        "collect": [*math, *policy, "--tasks", "16", "--out", str(folder / f"collected-{kind}")],
        "eval": [*math, *policy, "--tasks", "32"],
    }
    for name, case_arguments in arguments.items():
        if name in args.only:
            command(record, kind, name, name, *case_arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), default=ALL)
    parser.add_argument("--model", default="smollm2")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    lock = threading.Lock()

    def record(row: dict[str, Any]) -> None:
        with lock:
            rows.append(row)
            print(json.dumps(row), flush=True)
            args.out.write_text(json.dumps(rows, indent=1) + "\n")

    folder = Path(tempfile.mkdtemp(prefix="gpu-quantised-")).resolve()
    pairs = [{"prompt": f"What is {n} + {n}?", "chosen": f"{2 * n}", "rejected": f"{2 * n + 1}"} for n in range(24)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    threads = [threading.Thread(target=compare, args=(record, args.model))] if "compare" in args.only else []
    for thread in threads:
        thread.start()
    if "sft" in args.only:
        tasks = ["--env", "math", "--env-arg", "levels=[1]", "--tasks", "48"]
        tokens = ["--tokenizer", args.model, "--template", "chatml"]
        command(record, "none", "demonstrations", "collect", *tasks, *tokens, "--out", str(folder / "shown"))
    for kind, key in (("int8", "load_in_8bit"), ("nf4", "load_in_4bit")):
        threads.append(threading.Thread(target=commands, args=(record, folder, kind, key, args)))
        threads[-1].start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
