"""Find the command, run it, and turn our own errors into one sentence and an exit code."""

from __future__ import annotations

import importlib
import os
import sys

from practicum import __version__
from practicum.errors import UserError, did_you_mean

COMMANDS = {
    "quickstart": "the whole apprenticeship on the built-in tiny model, in minutes",
    "envs": "what can be trained on; `envs check NAME` proves one sound",
    "collect": "rollouts of any policy into a folder of episodes",
    "convert": "published datasets (GSM8K, HotpotQA, SQuAD, HumanEval, MBPP) into task files",
    "export": "collected episodes as bc.jsonl, dpo.jsonl and sft.jsonl",
    "sft": "imitate collected episodes (KEY=VALUE overrides)",
    "dpo": "prefer the better of two replies (KEY=VALUE overrides)",
    "train": "practise: reinforcement learning (KEY=VALUE overrides)",
    "pipeline": "collect, sft, train and eval of one recipe over many environments; resumable (KEY=VALUE overrides)",
    "eval": "score a policy on a held-out panel, with intervals",
    "compare": "policies on the same panel: is a difference shown, and is it enough?",
    "matrix": "many modes side by side: success, steps, usefulness",
    "merge": "an adapter into full weights",
    "report": "runs in one HTML file: curves, health, tables, episodes token by token",
    "ui": "the same as a live page over a folder of runs",
    "show": "print an episode with its trained tokens coloured",
}


def usage() -> str:
    lines = [
        f"practicum {__version__}: turn a language model into a working agent",
        "",
        "usage: practicum COMMAND ...",
        "",
    ]
    lines += [f"  {name:<12} {text}" for name, text in COMMANDS.items()]
    return "\n".join([*lines, "", "`practicum COMMAND --help` tells more."])


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    # Must be set before torch is imported: its idle threads otherwise spin and starve everything else.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"practicum {__version__}")
        return 0
    try:
        if arguments[0] not in COMMANDS:
            raise UserError(f"Unknown command '{arguments[0]}'.{did_you_mean(arguments[0], COMMANDS)}")
        module = importlib.import_module(f"practicum.cli.{arguments[0]}")
        result: int = module.run(arguments[1:])
        return result
    except UserError as error:
        print(f"practicum: {error}", file=sys.stderr)
        return 2
    except BaseExceptionGroup as group:
        # An episode group raises what its members raised: a wrong setting is still one sentence.
        wrong = group.subgroup(UserError)
        if wrong is None:
            raise
        first: BaseException = wrong
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        print(f"practicum: {first}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\npracticum: stopped; finished episodes, metrics and checkpoints are saved.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
