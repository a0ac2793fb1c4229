"""The entry point: find the command, run it, and turn a `UserError` into one sentence and exit code 2."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from practicum import __version__
from practicum.errors import UserError, did_you_mean
from practicum.utils.terminal import print_whatever_the_encoding, say, wrap

COMMANDS = {
    "quickstart": "SFT and RL of the built-in tiny model on two CPU cores, evaluated, in minutes",
    "envs": "list the environments; `envs check NAME` tests one, `envs serve NAME` serves it",
    "tasks": "`tasks snapshot` writes a frozen, hashed file of tasks (REAL's, or any environment's)",
    "collect": "run episodes of any policy (expert, model, server) and write them to a folder",
    "convert": "turn published datasets (GSM8K, HotpotQA, SQuAD, MBPP, WorFBench, …) into task files",
    "export": "write collected episodes as bc.jsonl, dpo.jsonl and sft.jsonl",
    "sft": "supervised fine-tuning on collected episodes (KEY=VALUE overrides)",
    "dpo": "direct preference optimization on pairs of replies (KEY=VALUE overrides)",
    "train": "reinforcement learning, online or from logged episodes (KEY=VALUE overrides)",
    "plan": "memory and time of a training step before it starts",
    "pipeline": "collect, sft, train and eval of one recipe over many environments; resumable",
    "eval": "score a policy on a frozen panel of held-out tasks, with intervals",
    "compare": "compare policies on the same panel: is a difference shown?",
    "matrix": "evaluate and compare many policies or settings in one table",
    "htdag": "plan requests as task graphs; `htdag baseline` and `evaluate` score planners",
    "promote": "hand a model over to production through the gate; --rollback goes back",
    "serve": "serve a model and its adapters behind OpenAI's and Anthropic's APIs",
    "merge": "merge a LoRA adapter into the full weights",
    "report": "write runs into one HTML file: curves, health, tables, episodes token by token",
    "ui": "serve the same report as a live page over a folder of runs",
    "show": "print one episode with its trained tokens in colour",
}

RESUMABLE = ("collect", "sft", "dpo", "train", "pipeline", "eval", "matrix")
"""Commands that continue where they were stopped; `quickstart` begins again, and says so itself."""


def usage() -> str:
    lines = [
        f"practicum {__version__}: train LLM agents: collect, SFT, DPO, RL, evaluate, compare",
        "",
        "usage: practicum COMMAND ...",
        "",
    ]
    for name, text in COMMANDS.items():
        lines += wrap(f"  {name:<12} {text}", sys.stdout, 15 * " ")
    return "\n".join([*lines, "", "`practicum COMMAND --help` shows its options."])


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    # Set before torch is imported: its idle threads otherwise spin and take the CPU from everything else.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    print_whatever_the_encoding(sys.stdout, sys.stderr)
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(usage(), flush=True)
            return 0
        if arguments[0] in ("-V", "--version"):
            print(f"practicum {__version__}", flush=True)
            return 0
        if arguments[0] not in COMMANDS:
            raise UserError(f"Unknown command '{arguments[0]}'.{did_you_mean(arguments[0], COMMANDS)}")
        if is_launched():
            start_rank(arguments[0])
        module = importlib.import_module(f"practicum.cli.{arguments[0]}")
        with terminated_as_interrupted():
            result: int = module.run(arguments[1:])
        return result
    except UserError as error:
        say(f"practicum: {rank_prefix()}{error}", sys.stderr)
        return 2
    except BaseExceptionGroup as group:
        # A task group raises what its members raised: a wrong setting is still one sentence.
        user_errors = group.subgroup(UserError)
        if user_errors is None:
            raise
        first: BaseException = user_errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        say(f"practicum: {first}", sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        from practicum.utils.memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        say(
            f"practicum: out of memory ({(str(error).splitlines() or ['the machine has no more'])[0][:200]}); lower "
            "--concurrency or --max-tokens, or use a smaller model (docs/troubleshooting.md).",
            sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        goes_on = "; the same command goes on from there" if arguments[0] in RESUMABLE else ""
        saved = "finished episodes, metrics and checkpoints are saved"
        print(f"\npracticum: stopped; {saved}{goes_on}.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


ON_SEVERAL_RANKS = ("train", "sft", "dpo")
"""Commands that a launcher may start several ranks of."""


def is_launched() -> bool:
    """Whether a launcher (`torchrun`) has started several processes, of which this is one."""
    return (os.environ.get("WORLD_SIZE") or "1") != "1"


def rank_prefix() -> str:
    """Which rank a message is from, where it is not the first one."""
    rank = os.environ.get("RANK", "0") if is_launched() else "0"
    return "" if rank == "0" else f"rank {rank}: "


def start_rank(command: str) -> None:
    """Give this process the GPU of its rank; only the first rank prints."""
    from practicum.config.resolve import read_launch, select_gpu

    launch = read_launch()
    if command not in ON_SEVERAL_RANKS:
        raise UserError(
            f"`practicum {command}` is one process, and a launcher has started {launch.num_ranks}; start it without "
            f"one (several ranks: {', '.join(ON_SEVERAL_RANKS)})."
        )
    select_gpu(launch)
    if not launch.is_first:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Handle SIGTERM in this block as Ctrl-C: everything is closed and saved on the way out."""

    def handle(signal_number: int, frame: FrameType | None) -> None:
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # a shell's background job ignores Ctrl-C
            raise KeyboardInterrupt
        interrupt(signal.SIGINT, frame)

    try:
        before = signal.signal(signal.SIGTERM, handle)
    except ValueError:  # not the main thread: signals are handled elsewhere
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def recipes_and_keys(command: str) -> str:
    """The end of a help text: recipes, where the keys are listed, and what `--dry-run` is for."""
    from practicum.config.overrides import recipe_names

    kind = [name for name in recipe_names() if name.startswith("affine") == (command == "pipeline")]
    recipes = f"recipes: {', '.join(kind)}"
    return (
        f"{recipes if command in ('train', 'pipeline') else ''}\n"
        f"keys: `practicum {command} --dry-run` prints every key with its value and source; docs/config.md says what "
        "they mean."
    ).strip()
