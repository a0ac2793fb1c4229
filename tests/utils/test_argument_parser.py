"""Errors of the command line's options: one sentence that names the nearest option."""

from __future__ import annotations

import pytest

from practicum.cli.main import main
from practicum.errors import close_name, nearest_name
from practicum.utils.terminal import ArgumentParser


def error_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "usage:" not in shown.err
    (line,) = shown.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("command", "typed", "suggestion"),
    [
        ("collect --env math --policy expert --taks 5", "--taks", "--tasks"),
        ("collect --env math --taks=5", "--taks", "--tasks"),
        ("collect --evn math", "--evn", "--env"),  # named before the option that is then missing
        ("eval --env math --taks 5", "--taks", "--tasks"),
        ("eval --evn math", "--evn", "--env"),
        ("matrix --mode a=random --mode b=null --alhpa 0.1", "--alhpa", "--alpha"),
        ("train --dry-rnu", "--dry-rnu", "--dry-run"),
        ("sft --epsiodes runs", "--epsiodes", "--episodes"),
        ("dpo --epsiodes runs", "--epsiodes", "--episodes"),
        ("pipeline --untl sft", "--untl", "--until"),
        ("plan --hardwear cpu", "--hardwear", "--hardware"),
        ("compare a b --plot-folder x --plts y", "--plot-folder", None),
        ("serve tiny --prot 1", "--prot", "--port"),
        ("report --otu x", "--otu", "--out"),
    ],
)
def test_a_misspelt_option(
    command: str, typed: str, suggestion: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    name = command.split()[0]
    hint = f"did you mean '{suggestion}'? " if suggestion else ""
    expected = f"practicum {name}: there is no option '{typed}'; {hint}`practicum {name} --help` lists them."
    assert error_of(command.split(), capsys) == expected


def test_a_misspelt_option_of_a_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(["htdag", "plan", "buy a lamp", "--otu", "x"], capsys) == (
        "practicum htdag plan: there is no option '--otu'; did you mean '--out'? `practicum htdag plan --help` lists "
        "them."
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("collect", "--env is missing (environment, e.g. math or agentgym:textcraft);"),
        ("compare", "RESULT is missing (the baseline, then what to compare);"),
        ("collect --env math --split tset", "--split: 'tset' is none of train, val, test; did you mean 'test'?"),
        ("collect --env math --tasks", "--tasks: expected one argument;"),
        ("collect --env math --subset", "--subset: expected one argument;"),
        ("eval --env", "--env: expected one argument;"),
        ("collect --env math --tasks 0", "--tasks: must be at least 1;"),
        ("promote a b", "'b' is one argument too many;"),
    ],
)
def test_other_errors_are_one_sentence(command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = command.split()[0]
    assert (
        error_of(command.split(), capsys) == f"practicum {name}: {message} `practicum {name} --help` lists the options."
    )


def test_abbreviations_values_with_spaces_and_words_after_dashes_are_no_unknown_options() -> None:
    parser = ArgumentParser(prog="p")
    parser.add_argument("--output")
    parser.refuse_unknown_options(
        ["--out", "--output=x", "--a value with spaces", "--more", "--", "--taks"], ["--more"]
    )
    with pytest.raises(SystemExit):
        parser.refuse_unknown_options(["--more"])


@pytest.mark.parametrize(
    ("typed", "names", "suggestion"),
    [
        ("taks", ["task", "tasks", "tokenizer"], "tasks"),
        ("maht", ["math", "matrix", "mix"], "math"),
        ("exprt", ["expert", "random", "null"], "expert"),
        ("grop", ["grpo", "gspo", "gae"], "grpo"),
        ("stf", ["sft", "dpo"], "sft"),
        ("calc", ["answer", "calculator"], "calculator"),
        ("nosuch", ["search", "math"], None),
        ("foo", ["format", "food_court"], "food_court"),
    ],
)
def test_names_that_were_meant(typed: str, names: list[str], suggestion: str | None) -> None:
    assert close_name(typed, names) == suggestion
    assert nearest_name(typed, names) == (f" Did you mean '{suggestion}'?" if suggestion else "")
