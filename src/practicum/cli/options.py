"""Flags that several commands share, and how `key=value` pairs become environment options."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from practicum.errors import UserError, did_you_mean
from practicum.utils.terminal import say

if TYPE_CHECKING:
    from practicum.agent import Deadlines, ExternalAgent


SOURCE_LINE_CHARACTERS = 90
BEGINNING = re.compile(r"[ *-]|[a-z]+: ")
"""How a line of a help text begins that does not continue the one before."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Lines of the description as they are written, long ones at the width of the terminal, and the default behind each
    flag that has one and does not name it."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        before = ""
        for line in text.strip("\n").splitlines():
            # A line of the source that is nearly full goes on in the next one.
            if len(before) > SOURCE_LINE_CHARACTERS and line and not BEGINNING.match(line):
                lines[-1] += " " + line
            else:
                lines.append(line)
            before = line
        return "\n".join(textwrap.fill(line, width, break_on_hyphens=False) for line in lines)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shows = action.default not in (None, argparse.SUPPRESS, False, True, []) and action.option_strings
        text = action.help or ""
        return f"{text} (default: %(default)s)".strip() if shows and "default" not in text else action.help


def add_environment_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--env", required=True, help="environment, e.g. math or agentgym:textcraft")
    parser.add_argument(
        "--env-arg", action="append", default=[], metavar="KEY=VALUE", help="an option of the environment (JSON value)"
    )
    parser.add_argument("--format", help="reply format: hf or react (default: the environment's own)")
    parser.add_argument("--tools", help="comma-separated tools instead of the environment's own")
    parser.add_argument("--reward", help="reward instead of the environment's own")
    parser.add_argument("--data", help="JSON file of tasks with a 'question', instead of generated ones")
    parser.add_argument("--split", default="train", choices=("train", "val", "test"), help="which tasks")
    parser.add_argument("--tasks", type=positive, default=20, help="how many tasks")
    parser.add_argument(
        "--max-turns", "--max-steps", type=positive, default=10, help="turns of an episode, at most (default: 10)"
    )
    parser.add_argument(
        "--deadline",
        action="append",
        default=[],
        metavar="WAIT=SECONDS",
        help="of reset (default: 60), generate (600), step (120), episode (3600), open (300; what all episodes "
        "share, such as a browser), tool (30) or judge (as step); may be given several times",
    )


def add_policy_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        default="expert",
        help="expert, random, null, another scripted policy of the environment, or a model: tiny, smollm2, a hub id, "
        "the folder of a model, adapter, run or checkpoint",
    )
    parser.add_argument(
        "--agent-command", metavar="COMMAND",
        help="the agent is a program of its own, or FILE.py:FUNCTION, that talks to --policy through an API",
    )  # fmt: skip
    parser.add_argument(
        "--reward-from", choices=("environment", "callback", "exit_code"),
        help="reward of such an agent: the environment's for its answer (default), what it posts, or its exit code",
    )  # fmt: skip
    parser.add_argument("--agent-sandbox", action="store_true", help="run such an agent's program in a sandbox")
    parser.add_argument("--url", help="an OpenAI-compatible server (…/v1); --policy then names its model")
    parser.add_argument("--tokenizer", default="tiny", help="tokenizer for replies that no local model wrote")
    parser.add_argument("--template", help="chat template by name instead of the model's own")
    parser.add_argument(
        "--role", action="append", default=[], metavar="NAME=MODEL[@URL]",
        help="policy of a single role, or of a model that the environment asks, such as a judge",
    )  # fmt: skip
    parser.add_argument(
        "--device", default="auto", help="of a model: cpu, cuda, cuda:N (default: a GPU if there is one)"
    )
    parser.add_argument(
        "--dtype", default="auto",
        help="of its weights: float32, bfloat16 (default on a GPU), or int8 or nf4 by bitsandbytes (GPU only)",
    )  # fmt: skip
    parser.add_argument("--temperature", type=float, help="of sampling (default: 1 for collect, 0 for eval)")
    parser.add_argument("--top-k", type=int, default=0, help="sample from the k likeliest tokens (default: 0, all)")
    parser.add_argument("--top-p", type=float, default=1.0, help="sample from the likeliest tokens of this mass")
    parser.add_argument(
        "--min-p", type=float, default=0.0, help="leave out tokens below this share of the likeliest (default: 0, none)"
    )
    parser.add_argument("--max-tokens", type=positive, default=256, help="tokens per reply, at most")
    parser.add_argument(
        "--response-format", metavar="TYPE|JSON|FILE|RUN",
        help="form that every reply must have: json_object, a mapping as JSON, a file that holds one, or a run that "
        "was trained with one",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of tasks and sampling")
    parser.add_argument("--concurrency", type=positive, default=64, help="episodes under way at once")
    parser.add_argument(
        "--round", type=positive, metavar="N",
        help="episodes after which what they wrote to a shared resource is visible to the next (default: never)",
    )  # fmt: skip


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def rollout_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `RolloutSettings` that the flags of `add_environment_flags` and `add_policy_flags` set."""
    return {
        "environment": args.env,
        "environment_options": environment_options(args),
        "format": args.format,
        "split": args.split,
        "num_tasks": args.tasks,
        "sample_size": args.sample_size,
        "subset": args.subset,
        "task_registry": args.task_registry,
        "max_turns": args.max_turns,
        "deadlines": deadlines(args.deadline),
        "policy": args.policy,
        "url": args.url,
        "tokenizer": args.tokenizer,
        "template": args.template,
        "roles": role_models(args.role),
        "device": args.device,
        "dtype": args.dtype,
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "max_tokens": args.max_tokens,
        "response_format": args.response_format,
        "external": external_agent(args),
        "seed": args.seed,
        "concurrency": args.concurrency,
        "round_size": args.round,
    }


def external_agent(args: argparse.Namespace) -> ExternalAgent | None:
    """The agent of --agent-command."""
    from practicum.agent import ExternalAgent

    if args.agent_command is None:
        if args.reward_from is not None or args.agent_sandbox:
            raise UserError("--reward-from and --agent-sandbox go with --agent-command.")
        return None
    return ExternalAgent(args.agent_command, args.reward_from or "environment", sandbox=args.agent_sandbox).checked()


def deadlines(pairs: Iterable[str]) -> Deadlines:
    """The deadlines of `--deadline WAIT=SECONDS` flags."""
    from practicum.agent import Deadlines

    names = [field.name for field in dataclasses.fields(Deadlines)]
    values: dict[str, float] = {}
    for pair in pairs:
        name, _, seconds = pair.partition("=")
        if name not in names:
            raise UserError(f"--deadline '{pair}': write WAIT=SECONDS.{did_you_mean(name, names)}")
        try:
            values[name] = float(seconds)
        except ValueError:
            raise UserError(f"--deadline '{pair}': '{seconds}' is no number of seconds.") from None
    return Deadlines(**values)


def environment_options(args: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in args.env_arg:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"--env-arg '{pair}': write KEY=VALUE.")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    if args.tools is not None:
        options["tools"] = [name for name in args.tools.split(",") if name]
    if args.reward is not None:
        options["reward"] = args.reward
    if args.data is not None:
        options["files"] = {args.split: args.data}
    return options


def print_warnings(warnings: Iterable[str]) -> None:
    """Print what a dry run found to be missing on this machine."""
    for warning in warnings:
        say(f"practicum: warning: {warning}", sys.stderr)


def normalize_flags(argv: list[str]) -> list[str]:
    """Flags may be written with - or _ between their words: --rollouts_per_task is --rollouts-per-task."""
    result = []
    for word in argv:
        flag, equals, value = word.partition("=")
        result.append(flag.replace("_", "-") + equals + value if flag.startswith("--") else word)
    return result


def role_models(assignments: Iterable[str]) -> dict[str, str]:
    """The models of roles from `NAME=MODEL` or `NAME=MODEL@URL`."""
    models = {}
    for text in assignments:
        name, equals, model = text.partition("=")
        if not (name and equals and model):
            raise UserError(f"--role {text}: write it as NAME=MODEL, or NAME=MODEL@URL for a model of a server.")
        models[name] = model
    return models
