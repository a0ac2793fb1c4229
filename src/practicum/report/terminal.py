"""One episode as text for a terminal, token by token."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from practicum.environment import DEFAULT_ROLE
from practicum.errors import UserError
from practicum.report.drawings import Drawings
from practicum.report.index import READ_ERRORS, error_text, read_episode
from practicum.report.tokens import tokenizer_file
from practicum.trajectory import Origin, Trajectory, Turn, continued_turns, describe_branch
from practicum.utils.escape import is_number
from practicum.utils.tables import table
from practicum.utils.terminal import fit, printable

COLOURS = {Origin.SAMPLED: "\x1b[1;32m", Origin.OBSERVATION: "\x1b[36m", Origin.TEMPLATE: "\x1b[2m"}
MARKS = {Origin.SAMPLED: ("⟦", "⟧"), Origin.OBSERVATION: ("", ""), Origin.TEMPLATE: ("", "")}
RESET = "\x1b[0m"
MAX_LISTED = 50
"""Episodes that are listed of a folder."""
MAX_SPAN_CHARACTERS = 60_000
"""Characters printed of one span at most; the rest stays in the file."""


def show_episode(
    path: Path,
    model: str | None = None,
    coloured: bool = False,
    logprobs: bool = False,
    environments: Sequence[str] = (),
) -> str:
    """The episode of a file, and its drawing where its environment has one.

    `model` names the tokenizer to decode with; None: the one that the episode names. `environments` are further ones
    that draw their episodes, besides those of the package.
    """
    drawings = Drawings(environments)
    try:
        episode, _ = read_episode(path, follow_links=True)
    except FileNotFoundError:
        raise UserError(f"There is no episode at '{path}'.") from None
    except READ_ERRORS as error:
        raise UserError(f"'{path}' is not a whole episode file: {printable(error_text(error))}.") from None
    source = model or str(episode.provenance.get("model", "tiny"))
    tokenizer = load_tokenizer(model) if model else local_tokenizer(source)
    try:
        drawing = drawings.text(episode)
        lines = episode_lines(episode, tokenizer, coloured, logprobs)
        return "\n".join([*lines, *(["── drawing", *shortened(drawing).split("\n")] if drawing else [])])
    except READ_ERRORS as error:  # ids that no vocabulary has
        raise UserError(f"'{path}' does not fit the tokenizer of '{source}': {printable(error_text(error))}.") from None


def list_episodes(folder: Path) -> list[str]:
    """The episodes below a folder, a line each, with how they ended; of many the first, and how many more there are."""
    paths = sorted(folder.rglob("*__attempt_*.jsonl"))
    if not paths:
        raise UserError(f"There is no episode below '{folder}'; name an episode or a folder that `collect` wrote.")
    rows = []
    for path in paths[:MAX_LISTED]:
        try:
            episode, _ = read_episode(path, follow_links=True)
        except (*READ_ERRORS, OSError) as error:
            rows.append([str(path), printable(error_text(error))[:40], "", ""])
            continue
        rows.append([str(path), str(episode.outcome.value), f"{episode.reward:.3f}", str(len(episode.turns))])
    lines = [table(["episode", "outcome", "reward", "turns"], rows)]
    if len(paths) > MAX_LISTED:
        lines.append(f"... and {len(paths) - MAX_LISTED} more")
    return [*lines, fit(f"`practicum show {rows[0][0]}` prints one.", sys.stdout)]


def load_tokenizer(name: str) -> object:
    from practicum.models import loader  # torch is slow to import: not unless it is needed

    return loader.load_tokenizer(name)


def local_tokenizer(name: str) -> object:
    """The tokenizer that an episode names, if it is on this machine: nothing is downloaded because a file says so."""
    from tokenizers import Tokenizer

    path = tokenizer_file(name)
    if path is None:
        raise UserError(f"The tokenizer of '{printable(name[:200])}' is not on this machine; name one with --model.")
    return Tokenizer.from_file(str(path))


def _format_value(value: object) -> str:
    return f"{value:g}" if is_number(value) else printable(str(value)[:40])


def episode_lines(episode: Trajectory, tokenizer: object, coloured: bool, logprobs: bool) -> list[str]:
    """The episode as lines for a terminal; sampled tokens are coloured, or set in ⟦ ⟧."""
    decode = tokenizer.decode  # type: ignore[attr-defined]
    sampled = sum(sum(run.sampled) for run in episode.sequences())
    total = sum(len(run.ids) for run in episode.sequences())
    task = episode.task
    task_source = printable(f"{task.environment}, {task.split}, {task.hash}")
    result = [
        f"task     {printable(task.id)}  ({task_source})  attempt {episode.attempt}",
        f"outcome  {episode.outcome.value}  reward {episode.reward:g}  turns {len(episode.turns)}"
        + (f"  error: {printable(str(episode.error)[:MAX_SPAN_CHARACTERS])}" if episode.error else ""),
        f"tokens   {total}, of which {sampled} trained "
        + (f"({COLOURS[Origin.SAMPLED]}like this{RESET})" if coloured else "(⟦like this⟧)"),
    ]
    continued = continued_turns(episode.turns)
    result += tree_lines(episode.turns, continued)
    for index, turn in enumerate(episode.turns):
        extra = "".join(f"  {printable(str(name))} {_format_value(value)}" for name, value in turn.components.items())
        source = printable(turn.source[:200])
        result.append(
            f"── turn {index}: {_role(episode.turns, continued, index)}{source}, policy {turn.policy_version}, "
            f"stopped by {turn.stop_reason.value}, reward {turn.reward:g}{extra}"
            + (f"  unusable: {printable(str(turn.action.error)[:MAX_SPAN_CHARACTERS])}" if turn.action.error else "")
        )
        result += _tool_exceptions(turn)
        text = ""
        for span in turn.spans:
            piece = shortened(str(decode(list(span.ids), skip_special_tokens=False)))
            before, after = (COLOURS[span.origin], RESET) if coloured else MARKS[span.origin]
            text += "\n".join(f"{before}{line}{after}" if line else "" for line in piece.split("\n"))
        result += text.split("\n") if any(span.ids for span in turn.spans) else [shortened(turn.reply)]
        if logprobs:
            for span in turn.spans:
                for token, value in zip(span.ids, span.logprobs or (), strict=False):
                    result.append(f"    {value:9.4f}  {printable(repr(decode([token])))}")
    if episode.traceback:
        result += ["── the exception that ended it", *shortened(episode.traceback).rstrip().split("\n")]
    return result


def tree_lines(turns: Sequence[Turn], continued: Sequence[int | None]) -> list[str]:
    """The turns as a tree: a line for each run of turns that go on from each other; none where there is one run."""
    children: dict[int | None, list[int]] = {}
    for index, parent in enumerate(continued):
        if turns[index].spans:
            children.setdefault(parent, []).append(index)
    lines: list[str] = []
    waiting = [(index, 0) for index in reversed(children.get(None, []))]
    while waiting:
        first, depth = waiting.pop()
        run = [first]
        while len(following := children.get(run[-1], [])) == 1:
            run.append(following[0])
        waiting += [(index, depth + 1) for index in reversed(following)]
        reason, role = describe_branch(turns, first), turns[first].role
        explanation = f"  {printable(str(reason)[:200])}" if reason else ""
        name = "" if role == DEFAULT_ROLE else f"{printable(role[:200])} "
        lines.append(f"tree     {'  ' * depth}{name}{' → '.join(map(str, run))}{explanation}")
    return lines if len(lines) > 1 else []


def _role(turns: Sequence[Turn], continued: Sequence[int | None], index: int) -> str:
    """The role of a turn and what its prompt continues, where an episode has several roles, prompts or branches."""
    turn, parent = turns[index], continued[index]
    words = [] if turn.role == DEFAULT_ROLE else [printable(turn.role[:200])]
    if not turn.spans:
        words.append("without a prompt")
    elif parent is None and index:
        words.append("new prompt")
    elif parent is not None and parent != index - 1:
        words.append(f"continues turn {parent}")
    reason = describe_branch(turns, index)
    if reason and words:
        words[-1] += f" ({printable(str(reason)[:200])})"
    elif reason:
        words.append(printable(str(reason)[:200]))
    return "".join(f"{word}, " for word in words)


def _tool_exceptions(turn: Turn) -> list[str]:
    """A line for each tool of the turn whose own code raised an exception, with file and line."""
    tools = turn.info.get("tools")
    raised = (
        [error for error in tools if isinstance(error, dict) and "exception" in error]
        if isinstance(tools, list)
        else []
    )
    return [
        f"   {printable(str(error.get('name'))[:200])} raised {shortened(str(error['exception']))}" for error in raised
    ]


def shortened(text: str) -> str:
    """A text for a terminal, without its middle where it is very long."""
    if len(text) <= MAX_SPAN_CHARACTERS:
        return printable(text)
    kept = MAX_SPAN_CHARACTERS // 2
    return f"{printable(text[:kept])}… {len(text) - 2 * kept} characters not shown …{printable(text[-kept:])}"
