"""Modes of `practicum eval`, `matrix` and `collect`: named on the command line, or in a file of experiments."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from practicum.config.experiments import Experiment, read_experiments, url_source
from practicum.errors import NoServerAnswers, UserError
from practicum.utils.terminal import ArgumentParser


def named_modes(pairs: Sequence[str], path: Path | None = None) -> list[Experiment]:
    """`NAME=POLICY`, an experiment of the file, or a policy that is its own name."""
    file = read_experiments(path)
    modes = []
    for pair in pairs:
        name, equals, policy = pair.partition("=")
        if not name or (equals and not policy):
            raise UserError(f"--mode '{pair}': write NAME=POLICY, such as sft=runs/quickstart-0/sft.")
        is_in_file = not equals and name in file.entries
        modes += file.choose([name], os.environ) if is_in_file else [Experiment(name, ("--policy", policy or name))]
    return _distinct(modes)


def read_modes(path: Path | None, names: Sequence[str]) -> list[Experiment]:
    """The experiments of a file with these names, or all."""
    return _distinct(read_experiments(path).choose(names, os.environ))


def with_subset(path: Path | None, arguments: Sequence[str]) -> list[str]:
    """Arguments in which `--subset NAME` of the file's `task_subsets` is replaced by its items."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--subset", nargs="?")  # without a value, the command's own parser refuses it
    options, rest = parser.parse_known_args(list(arguments))
    if options.subset is None:
        return list(arguments)
    items = read_experiments(path).subset(options.subset)
    return [*rest, *(["--subset", items] if items is not None else [])]


def typed_over(mode: Experiment, typed: Sequence[str]) -> list[str]:
    """The flags of a mode and then those that were typed, which win; a typed --env takes the place of the mode's."""
    flags = list(mode.flags)
    if any(word == "--env" or word.startswith("--env=") for word in typed):
        flags = without_flag(flags, "--env")
    if any(word == "--policy" or word.startswith("--policy=") for word in typed):
        flags = without_flag(flags, "--url")  # the url of another model
    return [*flags, *typed]


@contextlib.contextmanager
def explained_url(typed: Sequence[str]) -> Iterator[None]:
    """Where no server answers and --url was not typed, say where its address came from and how to do without it."""
    try:
        yield
    except NoServerAnswers as error:
        if any(word == "--url" or word.startswith("--url=") for word in typed):
            raise
        raise NoServerAnswers(
            error.url,
            f"{url_source(error.url, os.environ)}; {error.reason}",
            "start one there, set HALO_VLLM_URL to another address, or load the model here with "
            "HALO_WORKER_BACKEND=local and HALO_WORKER_MODEL=FOLDER",
        ) from None


def without_flag(words: Sequence[str], flag: str) -> list[str]:
    """Words of `--flag value` pairs without those of one flag."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word != flag:
            kept.append(word)
        skip = word == flag and not skip
    return kept


def _distinct(modes: Iterable[Experiment]) -> list[Experiment]:
    """The modes; two of one name are refused, because they would be one line of the matrix and one file."""
    by_name: dict[str, Experiment] = {}
    for mode in modes:
        if mode.name in by_name:
            raise UserError(f"Two modes are called '{mode.name}'; give each a name of its own.")
        if "/" in mode.name or mode.name.startswith("."):
            raise UserError(f"A mode's name is a file's name too, so '{mode.name}' cannot be one; write NAME=POLICY.")
        by_name[mode.name] = mode
    chosen_outside = [mode.name for mode in by_name.values() if mode.worker_from_outside]
    if len(chosen_outside) > 1:
        raise UserError(
            f"HALO_WORKER_MODEL names one model, and {', '.join(chosen_outside)} would all be that model: unset it."
        )
    return list(by_name.values())
