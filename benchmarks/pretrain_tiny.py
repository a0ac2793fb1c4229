"""Pretrain `tiny` on generated text that teaches copying and look-up, and nothing else: a base model of the same shape.

    python benchmarks/pretrain_tiny.py --out FOLDER [--seconds 400] [--workers 8] [--device cuda]
    practicum sft --model FOLDER ...

`tiny` has random weights and spends most of its SFT on learning to copy from the prompt, which every real base model
can. The text (`practicum.models.pretraining`) has nothing of any environment's tasks. The shipped weights of
`tiny-pretrained` are what two runs gave on an H200 beside other work: 420 s (1.66 G tokens), then from these weights
(`--start`) `--seed 1 --lr 1.5e-3 --warmup 100`, 226 s (0.90 G tokens); `follow_goal` was in the second alone.

On a GPU worker processes generate the text while the model is trained on it, in packed rows of 1,024 tokens in which
each document attends to itself only; on a CPU the process generates padded batches itself, and 5,000 tokens/s of one
core are too few to get far. AdamW, a learning rate that warms up and falls to zero by the end of the given time. At the
end each kind of text is measured on documents of other seeds: the share of answers that greedy decoding would write
without one wrong token. FOLDER is a Hugging Face folder (weights in bfloat16) and has results.json.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import torch.nn.functional as F

from practicum.models import tiny
from practicum.models.pretraining import data
from practicum.models.pretraining.kinds import KINDS

ROW_TOKENS, SHARD_ROWS = 1024, 1024
HELD_OUT_SEED = "held out"
FIRST_KINDS = ("repeat", "look_up", "split_pairs")
STARTED = time.monotonic()


def generate(seed: int, worker: int, folder: str, shard_rows: int) -> None:
    """Write shards of packed rows until the process is ended."""
    tokenizer = tiny.build_tokenizer()
    stream = data.documents(tokenizer, f"{seed}/{worker}", ROW_TOKENS)
    shard = 0
    while True:
        rows = data.pack(stream, shard_rows if shard else shard_rows // 4, ROW_TOKENS)  # the first one comes sooner
        scratch = Path(folder) / f"{worker}-{shard}.partial.npz"
        np.savez(scratch, **rows._asdict())
        scratch.rename(Path(folder) / f"{worker}-{shard}.npz")
        shard += 1


class RowBuffer:
    """Rows on the device: each new one once, then any of those seen, while no new ones have arrived."""

    def __init__(self, folder: Path, device: str, seed: int) -> None:
        self.folder, self.device = folder, device
        self.rng = np.random.default_rng(seed)
        self.tensors: list[torch.Tensor] = []
        self.unseen: list[int] = []
        self.num_rows = 0

    def read_shards(self) -> None:
        for path in sorted(self.folder.glob("*-*.npz")):
            if ".partial" in path.name:
                continue
            with np.load(path) as arrays:
                stacked = np.stack([arrays["ids"].astype(np.int16), arrays["document"].astype(np.int16),
                                    arrays["trained"].astype(np.int16)], axis=1)  # fmt: skip
            path.unlink()
            self.tensors.append(torch.from_numpy(stacked).to(self.device))
            fresh = self.num_rows + self.rng.permutation(len(stacked))
            self.unseen.extend(fresh.tolist())
            self.num_rows += len(stacked)
        if len(self.tensors) > 1:
            self.tensors = [torch.cat(self.tensors)]

    def batch(self, size: int) -> torch.Tensor:
        """Rows (size, 3, length): ids, document, trained."""
        while not self.tensors:
            time.sleep(0.2)
            self.read_shards()
        chosen, self.unseen = self.unseen[:size], self.unseen[size:]
        if len(chosen) < size:
            chosen = [*chosen, *self.rng.integers(0, self.num_rows, size - len(chosen)).tolist()]
        return self.tensors[0][torch.tensor(chosen, device=self.device)].long()


class PaddedDocuments:
    """Batches for a CPU, generated in this process: rows of one document each, of similar lengths, longer as time goes.

    Copying is learned on short documents in a fraction of the time; longer ones then spread it over more positions.
    """

    def __init__(self, seed: int, longest: int, batch_tokens: int) -> None:
        self.seed, self.longest, self.batch_tokens = seed, longest, batch_tokens
        self.rng = np.random.default_rng(seed)
        self.tokenizer = tiny.build_tokenizer()
        self.phase, self.num_rows = -1, 0
        self.ready: list[list[data.TokenizedConversation]] = []

    def set_progress(self, done: float) -> None:
        """Choose the limit of the length by the share of the time that has passed."""
        phase = 0 if done < 0.2 else 1 if done < 0.55 else 2
        if phase != self.phase:
            self.phase, self.ready = phase, []
            limit = (self.longest // 4, self.longest // 2, self.longest)[phase]
            self.stream = data.documents(
                self.tokenizer, f"{self.seed}/{phase}", limit, FIRST_KINDS if not phase else tuple(KINDS)
            )

    def batch(self) -> torch.Tensor:
        """Rows (size, 3, length): ids, document (1, 0 for padding), trained; about `batch_tokens` tokens."""
        if not self.ready:
            items = sorted((next(self.stream) for _ in range(512)), key=lambda item: len(item.ids))
            groups: list[list[data.TokenizedConversation]] = [[]]
            for item in items:
                if (len(groups[-1]) + 1) * len(item.ids) > self.batch_tokens:
                    groups.append([])
                groups[-1].append(item)
            self.ready = [groups[index] for index in self.rng.permutation(len(groups))]
        items = self.ready.pop()
        self.num_rows += len(items)
        rows = torch.zeros(len(items), 3, max(len(item.ids) for item in items), dtype=torch.long)
        for row, item in zip(rows, items, strict=True):
            row[0, : len(item.ids)] = torch.from_numpy(item.ids.astype(np.int64))
            row[1, : len(item.ids)] = 1
            row[2, : len(item.ids)] = torch.from_numpy(item.trained.astype(np.int64))
        return rows


def attention_bias(document: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An additive mask (rows, 1, length, length): causal, and within the same document."""
    length = document.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=document.device).tril()
    allowed = (document[:, :, None] == document[:, None, :]) & causal
    bias = torch.zeros(allowed.shape, dtype=dtype, device=document.device)
    return bias.masked_fill_(~allowed, float("-inf"))[:, None]


def positions(document: torch.Tensor) -> torch.Tensor:
    """Positions within each document, from 0."""
    index = torch.arange(document.shape[1], device=document.device).expand_as(document)
    new = torch.ones_like(document, dtype=torch.bool)
    new[:, 1:] = document[:, 1:] != document[:, :-1]
    return index - torch.where(new, index, 0).cummax(dim=1).values


def loss_sum(model: Any, ids: torch.Tensor, bias: torch.Tensor, positions: torch.Tensor, targets: torch.Tensor) -> Any:
    """The summed cross-entropy of the targets that are not -100."""
    device = ids.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        logits = model(input_ids=ids, attention_mask=bias, position_ids=positions, use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


def padded_loss_sum(model: Any, rows: torch.Tensor) -> torch.Tensor:
    """The summed cross-entropy of one document per row; the output layer computes only the trained tokens."""
    ids, _, trained = rows.unbind(1)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    trained_mask = trained[:, 1:] > 0
    return F.cross_entropy(model.lm_head(hidden[trained_mask]), ids[:, 1:][trained_mask], reduction="sum")


def prepare(rows: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    ids, document, trained = rows.unbind(1)
    targets = torch.full_like(ids, -100)
    targets[:, :-1] = torch.where(trained[:, 1:] > 0, ids[:, 1:], -100)
    return ids, attention_bias(document, dtype), positions(document), targets


def learning_rate(done: float, step: int, peak: float, warmup_steps: int) -> float:
    """Linear warm-up in steps, then a cosine to zero over the share of the time that is done."""
    return peak * min(1.0, (step + 1) / warmup_steps) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def _first_call(model: Any, compute: Any, rows: torch.Tensor, dtype: torch.dtype) -> Any:
    """Compile before the clock of the schedule starts; without a compiler that works, compute without one."""
    started = time.monotonic()
    try:
        compute(model, *prepare(rows, dtype)).backward()
        print(f"first forward and backward: {time.monotonic() - started:.0f} s", flush=True)
    except Exception as error:
        if compute is loss_sum:
            raise
        print(f"torch.compile failed ({type(error).__name__}: {str(error)[:500]}); going on without it", flush=True)
        compute = loss_sum
    model.zero_grad(set_to_none=True)
    return compute


def make_optimizer(model: Any, options: argparse.Namespace) -> torch.optim.AdamW:
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=options.lr,
        betas=(0.9, 0.98),
        fused=options.device == "cuda",
    )


def train(model: Any, buffer: RowBuffer | PaddedDocuments, options: argparse.Namespace) -> dict[str, Any]:
    """Train until the time is over; returns what was used."""
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    optimizer = make_optimizer(model, options)
    compute = torch.compile(loss_sum, dynamic=False) if options.compile else loss_sum
    if isinstance(buffer, RowBuffer):
        compute = _first_call(model, compute, buffer.batch(options.micro_rows), dtype)
    started, step, tokens, recent = time.monotonic(), 0, 0, []
    seconds = max(1.0, options.seconds - (started - STARTED))
    while (elapsed := time.monotonic() - started) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(elapsed / seconds, step, options.lr, options.warmup)
        if isinstance(buffer, PaddedDocuments):
            buffer.set_progress(elapsed / seconds)
            rows = buffer.batch()
            num_targets = rows[:, 2, 1:].sum().clamp(min=1)
            total = padded_loss_sum(model, rows)
            (total / num_targets).backward()
        else:
            if step % 20 == 0:
                buffer.read_shards()
            rows = buffer.batch(options.rows)
            num_targets = rows[:, 2, 1:].sum().clamp(min=1)
            total = torch.zeros((), device=options.device)
            for part in rows.split(options.micro_rows):
                loss = compute(model, *prepare(part, dtype))
                (loss / num_targets).backward()
                total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recent.append((total / num_targets).detach())
        tokens += int(rows[:, 0].numel())
        step += 1
        if step in (1, 5, 20) or step % 50 == 0:
            now = time.monotonic() - started
            print(
                f"step {step}, {now:.0f} s: loss {torch.stack(recent).mean().item():.4f}, lr "
                f"{optimizer.param_groups[0]['lr']:.2e}, {tokens / now / 1e3:.1f} k tokens/s, {buffer.num_rows} rows",
                flush=True,
            )
            recent = []
        if options.save_every and step % options.save_every == 0:
            save(model, options.out / "partial")
    return {"steps": step, "tokens": tokens, "rows": buffer.num_rows, "seconds": round(time.monotonic() - started, 1)}


def save(model: Any, folder: Path) -> None:
    """Write the weights in bfloat16, the configuration and the tokenizer."""
    tiny_copy(model).to(torch.bfloat16).save_pretrained(folder)
    tiny.build_tokenizer().save_pretrained(folder)


def tiny_copy(model: Any) -> Any:
    copy = tiny.build_model(model.config.vocab_size)
    copy.load_state_dict(model.state_dict())
    return copy


@torch.no_grad()
def accuracies(model: Any, device: str, count: int, kinds: Sequence[str] = tuple(KINDS)) -> dict[str, dict[str, float]]:
    """Per kind, over held-out documents: the share of last answers without a wrong token, and of their tokens."""
    tokenizer = tiny.build_tokenizer()
    results = {}
    for kind in kinds:
        stream = data.documents(tokenizer, HELD_OUT_SEED, ROW_TOKENS, [kind])
        num_exact, right, num_tokens, num_prompt = 0, 0, 0, 0
        for first in range(0, count, 64):
            items = sorted((next(stream) for _ in range(min(64, count - first))), key=lambda item: len(item.ids))
            ids = torch.zeros(len(items), len(items[-1].ids), dtype=torch.long)
            for row, item in enumerate(items):
                ids[row, : len(item.ids)] = torch.from_numpy(item.ids.astype(np.int64))
            guesses = model(input_ids=ids.to(device), use_cache=False).logits.argmax(-1).cpu()
            for row, item in enumerate(items):
                span = slice(item.answer_start, len(item.ids) - 1)  # without the line break after <|im_end|>
                same = guesses[row, span.start - 1 : span.stop - 1] == ids[row, span]
                num_exact += int(same.all())
                right += int(same.sum())
                num_tokens += len(same)
                num_prompt += item.answer_start
        results[kind] = {"whole_answers": num_exact / count, "tokens": right / num_tokens, "prompt": num_prompt / count}
        print(f"{kind:18} whole answers {num_exact / count:.3f}  tokens {right / num_tokens:.4f}  "
              f"mean prompt {num_prompt / count:.0f}", flush=True)  # fmt: skip
    return results


def options_of_command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=400.0, help="from the start to the end of training")
    parser.add_argument("--workers", type=int, default=8, help="processes that generate text")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=256, help="rows of 1,024 tokens per step")
    parser.add_argument("--micro-rows", type=int, default=128)
    parser.add_argument("--shard-rows", type=int, default=SHARD_ROWS)
    parser.add_argument("--longest", type=int, default=384, help="tokens of a document, on a CPU")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="per step, on a CPU")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=150, help="steps")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=0, help="steps; 0 is never")
    parser.add_argument("--start", type=Path, help="model.safetensors to continue from")
    parser.add_argument("--evaluate", type=int, default=512, help="held-out documents per kind")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args()


def train_with_workers(model: Any, options: argparse.Namespace) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="pretraining-"))
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=generate, args=(options.seed, w, str(folder), options.shard_rows), daemon=True)
        for w in range(options.workers)
    ]
    try:
        for worker in workers:
            worker.start()
        return train(model, RowBuffer(folder, options.device, options.seed), options)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    options = options_of_command_line()
    torch.set_float32_matmul_precision("high")
    options.out.mkdir(parents=True, exist_ok=True)
    model = tiny.build_model(len(tiny.build_tokenizer()), options.seed)
    if options.start:
        from safetensors.torch import load_file

        model.load_state_dict(load_file(options.start), strict=False)
        model.tie_weights()
    model.to(options.device).train()
    if options.device == "cpu":
        results = train(model, PaddedDocuments(options.seed, options.longest, options.batch_tokens), options)
    else:
        results = train_with_workers(model, options)
    save(model, options.out)
    rounded = tiny_copy(model).to(torch.bfloat16).float().to(options.device).eval()  # as it is loaded
    results["held_out"] = accuracies(rounded, options.device, options.evaluate)
    (options.out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(json.dumps({key: value for key, value in results.items() if key != "held_out"}))


if __name__ == "__main__":
    main()
