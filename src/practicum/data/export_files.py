"""Export: the episodes below a folder, written as `bc.jsonl`, `dpo.jsonl` and `sft.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.data import export
from practicum.data.jsonl import write_files
from practicum.data.preferences import mine_preferences
from practicum.data.store import read_training_episodes
from practicum.errors import UserError
from practicum.trajectory import Trajectory, Turn, is_trained, learned_roles

FORMATS = ("bc", "dpo", "sft")
Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ExportSettings:
    """Which episodes, which files, and how pairs and prompts are made of them."""

    input_dir: str | Path = "runs"
    output_dir: str | Path = "data/datasets"
    formats: Sequence[str] = FORMATS
    pairing_strategy: str = "default"
    top_percent: float | None = None
    """Share of a task's episodes for bc and sft; None: all, or 0.2 for the strategy progress_ranked."""
    include_failed: bool = False
    include_held_out: bool = False
    """Take episodes of val and test tasks too."""
    skip_empty: bool = False
    """Skip steps without an action instead of refusing them."""
    plain_prompts: bool = False
    """Prompts are messages under their roles instead of the text that the model was shown."""
    tokenizer: str | None = None
    """Tokenizer that renders the prompts; None: the one that the episodes name."""
    roles: Sequence[str] | None = None
    """Roles whose replies are learned; None: those in training, as the episodes record them."""
    dry_run: bool = False
    """Count the rows and write nothing."""


@dataclass(frozen=True)
class ExportResult:
    """How many episodes were read, and the number of rows of each file."""

    num_episodes: int
    counts: Mapping[str, int]


def export_episodes(
    settings: ExportSettings, *, progress: bool = True, log: Callable[[str], None] = print
) -> ExportResult:
    """Write the files; `log` gets a line about everything that is left out or doubtful."""
    export.check_strategy(settings.pairing_strategy, settings.top_percent)
    episodes = read_episodes(settings, progress)
    files = {f"{name}.jsonl": rows for name, rows in make_rows(settings, episodes, log).items()}
    if settings.dry_run:
        counts = {name: sum(1 for _ in rows) for name, rows in files.items()}
    else:
        counts = write_files(Path(settings.output_dir), files)
    return ExportResult(len(episodes), counts)


def read_episodes(settings: ExportSettings, progress: bool = True) -> list[Trajectory]:
    """The episodes below the folder; a step without an action is an error unless it is to be skipped."""
    episodes: list[Trajectory] = []
    for path, episode in read_training_episodes(
        Path(settings.input_dir),
        include_held_out=settings.include_held_out,
        include_setting="--include-held-out",
        progress=progress,
    ):
        episodes.append(episode)
        empty = next((n for n, turn in enumerate(episode.turns) if _is_empty(episode, turn, settings.roles)), None)
        if empty is not None and not settings.skip_empty:
            raise UserError(
                f"'{path}', line {empty + 2}: 'reply' is empty, so there is no action to learn; "
                "give --skip-empty to pass over such steps."
            )
    export.check_roles(episodes, settings.roles, "--roles")
    return episodes


def _is_empty(episode: Trajectory, turn: Turn, roles: Collection[str] | None) -> bool:
    """Whether a learned role has no reply."""
    return not turn.reply.strip() and is_trained(turn, learned_roles(episode, roles))


def make_rows(
    settings: ExportSettings, episodes: Sequence[Trajectory], log: Callable[[str], None]
) -> Mapping[str, Rows]:
    """The rows of each format, made while they are written."""
    strategy = settings.pairing_strategy
    prompt = export.plain_prompt if settings.plain_prompts else export.RenderedPrompts(settings.tokenizer)
    chosen = export.successful_episodes(episodes, strategy, settings.top_percent, settings.include_failed)
    texts = [episode for episode in episodes if not export.has_images(episode)]
    rows: dict[str, Rows] = {}
    if len(texts) < len(episodes) and set(settings.formats) & {"bc", "dpo"}:
        log(f"{len(episodes) - len(texts)} episodes show images, which rows of text cannot: only in sft.jsonl")
    if "bc" in settings.formats:
        rows["bc"] = export.bc_rows([e for e in chosen if not export.has_images(e)], prompt, settings.roles)
    if "dpo" in settings.formats:
        pairs = mine_preferences(texts, strategy, settings.roles)
        if strategy == "progress_ranked" and pairs:
            num_apart = sum(not pair.same_state for pair in pairs)
            log(f"{num_apart} of {len(pairs)} pairs compare replies given in different states (see --pairing_strategy)")
        rows["dpo"] = export.dpo_rows(pairs, prompt)
    if "sft" in settings.formats:
        rows["sft"] = export.sft_rows(_conversations(chosen, settings.roles, log), settings.roles)
    return rows


def _conversations(
    episodes: Sequence[Trajectory], roles: Collection[str] | None, log: Callable[[str], None]
) -> list[Trajectory]:
    """The episodes that sft.jsonl can hold."""
    full = [
        e for e in episodes if export.has_whole_histories(e) and not any(_is_empty(e, turn, roles) for turn in e.turns)
    ]
    if len(full) < len(episodes):
        log(f"{len(episodes) - len(full)} episodes are no conversations of full replies: not in sft.jsonl")
    if any(turn.action.calls for e in full if not _has_schemas(e) for turn in e.turns):
        log("these episodes call tools but do not record their schemas: sft.jsonl names none, bc.jsonl shows them")
    return full


def _has_schemas(episode: Trajectory) -> bool:
    return bool(episode.provenance.get("tools") or episode.provenance.get("role_tools"))
