"""An argument parser whose errors are one sentence that names the nearest option, without the usage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from practicum.errors import close_name
from practicum.utils.terminal import say

MISSING = "the following arguments are required: "
"""How argparse's message about arguments that are missing begins."""


class ArgumentParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` with errors of one sentence; a misspelt option is named before a missing one."""

    _words: tuple[str, ...] = ()
    """The arguments that are being parsed."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        self._words = tuple(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed, unknown = self.parse_known_args(args, namespace)
        self._refuse(unknown)
        return parsed

    def parse_intermixed_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        self._refuse(unknown)
        return parsed

    def option_names(self) -> list[str]:
        """Every option, as it is typed."""
        return list(self._option_string_actions)

    def refuse_unknown_options(self, words: Sequence[str], also: Iterable[str] = ()) -> None:
        """End with an error if one of the words is an option that neither this parser nor `also` has."""
        names = [*self.option_names(), *also]
        for word in words:
            option = word.partition("=")[0]
            if word == "--":
                return
            # A word with a space is a value, as for argparse; the beginning of an option is its abbreviation.
            if option.startswith("--") and " " not in word and not any(name.startswith(option) for name in names):
                self._refuse_option(option, names)

    def error(self, message: str) -> NoReturn:
        if message.startswith(MISSING):
            self.refuse_unknown_options(self._words)
            message = self._describe_missing(message.removeprefix(MISSING))
        message = message.removeprefix("argument ").rstrip()
        if not message.endswith("."):
            message = f"{message}{'' if message.endswith('?') else ';'} `{self.prog} --help` lists the options."
        self._end(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        close = close_name(str(value), choices)
        hint = f"; did you mean '{close}'?" if close else ""
        raise argparse.ArgumentError(action, f"'{value}' is none of {', '.join(choices)}{hint}")

    def _describe_missing(self, names: str) -> str:
        helps = {"/".join(action.option_strings) or action.metavar or action.dest: action for action in self._actions}
        text = helps[names].help if names in helps else None
        explanation = f" ({text})" if text and "%" not in text else ""
        return f"{names} {'are' if ', ' in names else 'is'} missing{explanation}"

    def _refuse(self, unknown: Sequence[str]) -> None:
        """End with an error about the first of the words that the parser could not place."""
        if not unknown:
            return
        parser = self._chosen_subparser()
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if options:
            parser._refuse_option(options[0], parser.option_names())
        parser.error(f"'{unknown[0]}' is one argument too many")

    def _chosen_subparser(self) -> ArgumentParser:
        """The parser of the subcommand that is being parsed; this one where there is none."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return next((action.choices[word] for word in self._words if word in action.choices), self)
        return self

    def _refuse_option(self, option: str, names: Iterable[str]) -> NoReturn:
        by_word = {name.lstrip("-"): name for name in names if name.startswith("--")}
        close = close_name(option.lstrip("-"), by_word)
        hint = f"did you mean '{by_word[close]}'? " if close else ""
        self._end(f"there is no option '{option}'; {hint}`{self.prog} --help` lists them.")

    def _end(self, message: str) -> NoReturn:
        say(f"{self.prog}: {message}", sys.stderr)
        sys.exit(2)
