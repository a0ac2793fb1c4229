"""`practicum show FILE`: one episode, token by token; what the policy wrote, and so what is trained, in colour."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from practicum import store
from practicum.trajectory import Origin, Trajectory
from practicum.watching import harmless

COLOURS = {Origin.SAMPLED: "\x1b[1;32m", Origin.OBSERVATION: "\x1b[36m", Origin.TEMPLATE: "\x1b[2m"}
MARKS = {Origin.SAMPLED: ("⟦", "⟧"), Origin.OBSERVATION: ("", ""), Origin.TEMPLATE: ("", "")}
RESET = "\x1b[0m"


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum show", description=__doc__)
    parser.add_argument("file", type=Path, help="an episode: ...__attempt_K.jsonl")
    parser.add_argument("--model", help="tokenizer to decode with (default: the one the episode names)")
    parser.add_argument("--logprobs", action="store_true", help="print the log-prob of every sampled token")
    parser.add_argument("--colour", choices=("auto", "always", "never"), default="auto")
    args = parser.parse_args(argv)
    episode = store.read_episode(args.file)
    from practicum.models import loader  # torch is slow to import: not before the file is known to be good

    source = args.model or str(episode.provenance.get("model", "tiny"))
    tokenizer = loader.load_tokenizer(source)
    coloured = args.colour == "always" or (args.colour == "auto" and sys.stdout.isatty())
    print("\n".join(lines(episode, tokenizer, coloured, args.logprobs)))
    return 0


def lines(episode: Trajectory, tokenizer: object, coloured: bool, logprobs: bool) -> list[str]:
    """The episode as printable lines."""
    decode = tokenizer.decode  # type: ignore[attr-defined]
    sampled = sum(sum(run.sampled) for run in episode.sequences())
    total = sum(len(run.ids) for run in episode.sequences())
    task = episode.task
    result = [
        f"task     {harmless(task.id)}  ({task.environment}, {task.split}, {task.hash})  attempt {episode.attempt}",
        f"outcome  {episode.outcome.value}  reward {episode.reward:g}  turns {len(episode.turns)}"
        + (f"  error: {harmless(episode.error)}" if episode.error else ""),
        f"tokens   {total}, of which {sampled} trained "
        + (f"({COLOURS[Origin.SAMPLED]}like this{RESET})" if coloured else "(⟦like this⟧)"),
    ]
    for number, turn in enumerate(episode.turns):
        extra = "".join(f"  {name} {value:g}" for name, value in turn.parts.items())
        result.append(
            f"── turn {number}: {turn.source.value}, policy {turn.policy_version}, "
            f"stopped by {turn.stop_reason.value}, reward {turn.reward:g}{extra}"
            + (f"  unusable: {turn.action.error}" if turn.action.error else "")
        )
        text = ""
        for span in turn.spans:
            piece = harmless(str(decode(list(span.ids), skip_special_tokens=False)))
            before, after = (COLOURS[span.origin], RESET) if coloured else MARKS[span.origin]
            text += "\n".join(f"{before}{line}{after}" if line else "" for line in piece.split("\n"))
        result += text.split("\n")
        if logprobs:
            for span in turn.spans:
                for token, value in zip(span.ids, span.logprobs or (), strict=False):
                    result.append(f"    {value:9.4f}  {harmless(repr(decode([token])))}")
    return result
