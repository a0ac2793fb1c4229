"""`practicum show FILE`: one episode, token by token; what the policy wrote, and so what is trained, in colour."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from practicum.errors import UserError
from practicum.report.index import FAULTS, read_episode, reason
from practicum.trajectory import Origin, Trajectory
from practicum.utils.escape import is_number
from practicum.utils.tables import printable

COLOURS = {Origin.SAMPLED: "\x1b[1;32m", Origin.OBSERVATION: "\x1b[36m", Origin.TEMPLATE: "\x1b[2m"}
MARKS = {Origin.SAMPLED: ("⟦", "⟧"), Origin.OBSERVATION: ("", ""), Origin.TEMPLATE: ("", "")}
RESET = "\x1b[0m"
LONGEST = 60_000
"""Letters that are printed of one span; the rest is named and stays in the file."""


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum show", description=__doc__)
    parser.add_argument("file", type=Path, help="an episode: ...__attempt_K.jsonl")
    parser.add_argument("--model", help="tokenizer to decode with (default: the one the episode names)")
    parser.add_argument("--logprobs", action="store_true", help="print the log-prob of every sampled token")
    parser.add_argument("--colour", choices=("auto", "always", "never"), default="auto")
    args = parser.parse_args(argv)
    try:
        episode, _ = read_episode(args.file)
    except FileNotFoundError:
        raise UserError(f"There is no episode at '{args.file}'.") from None
    except FAULTS as error:
        raise UserError(f"'{args.file}' is not a whole episode file: {printable(reason(error))}.") from None
    source = args.model or str(episode.provenance.get("model", "tiny"))
    tokenizer = chosen_tokenizer(args.model) if args.model else known_tokenizer(source)
    coloured = args.colour == "always" or (args.colour == "auto" and sys.stdout.isatty())
    try:
        text = "\n".join(lines(episode, tokenizer, coloured, args.logprobs))
    except FAULTS as error:  # ids that no vocabulary has
        raise UserError(
            f"'{args.file}' does not fit the tokenizer of '{source}': {printable(reason(error))}."
        ) from None
    print(text)
    return 0


def chosen_tokenizer(name: str) -> object:
    from practicum.models import loader  # torch is slow to import: not unless it is needed

    return loader.load_tokenizer(name)


def known_tokenizer(name: str) -> object:
    """What an episode names, if it is on this machine: nothing is fetched because a file says so."""
    from tokenizers import Tokenizer

    from practicum.report.tokens import tokenizer_file

    path = tokenizer_file(name)
    if path is None:
        raise UserError(f"The tokenizer of '{printable(name[:200])}' is not on this machine; name one with --model.")
    return Tokenizer.from_file(str(path))


def figure(value: object) -> str:
    return f"{value:g}" if is_number(value) else printable(str(value)[:40])


def lines(episode: Trajectory, tokenizer: object, coloured: bool, logprobs: bool) -> list[str]:
    """The episode as printable lines."""
    decode = tokenizer.decode  # type: ignore[attr-defined]
    sampled = sum(sum(run.sampled) for run in episode.sequences())
    total = sum(len(run.ids) for run in episode.sequences())
    task = episode.task
    where = printable(f"{task.environment}, {task.split}, {task.hash}")
    result = [
        f"task     {printable(task.id)}  ({where})  attempt {episode.attempt}",
        f"outcome  {episode.outcome.value}  reward {episode.reward:g}  turns {len(episode.turns)}"
        + (f"  error: {printable(str(episode.error)[:LONGEST])}" if episode.error else ""),
        f"tokens   {total}, of which {sampled} trained "
        + (f"({COLOURS[Origin.SAMPLED]}like this{RESET})" if coloured else "(⟦like this⟧)"),
    ]
    for number, turn in enumerate(episode.turns):
        extra = "".join(f"  {printable(str(name))} {figure(value)}" for name, value in turn.components.items())
        result.append(
            f"── turn {number}: {turn.source.value}, policy {turn.policy_version}, "
            f"stopped by {turn.stop_reason.value}, reward {turn.reward:g}{extra}"
            + (f"  unusable: {printable(str(turn.action.error)[:LONGEST])}" if turn.action.error else "")
        )
        text = ""
        for span in turn.spans:
            piece = cut(str(decode(list(span.ids), skip_special_tokens=False)))
            before, after = (COLOURS[span.origin], RESET) if coloured else MARKS[span.origin]
            text += "\n".join(f"{before}{line}{after}" if line else "" for line in piece.split("\n"))
        result += text.split("\n") if any(span.ids for span in turn.spans) else [cut(turn.reply)]
        if logprobs:
            for span in turn.spans:
                for token, value in zip(span.ids, span.logprobs or (), strict=False):
                    result.append(f"    {value:9.4f}  {printable(repr(decode([token])))}")
    return result


def cut(text: str) -> str:
    """A text for a terminal, its middle left out where it is very long."""
    if len(text) <= LONGEST:
        return printable(text)
    kept = LONGEST // 2
    return f"{printable(text[:kept])}… {len(text) - 2 * kept} letters not shown …{printable(text[-kept:])}"
