"""`practicum show FILE`: one episode, token by token; what the policy wrote, and so what is trained, in colour.

`practicum show FOLDER` lists the episodes below a folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

from practicum.report.terminal import list_episodes, show_episode
from practicum.utils.terminal import ArgumentParser, use_colour


def run(argv: list[str]) -> int:
    parser = ArgumentParser(prog="practicum show", description=__doc__)
    parser.add_argument("file", type=Path, help="an episode (...__attempt_K.jsonl), or a folder of episodes")
    parser.add_argument("--model", help="tokenizer to decode with (default: the one the episode names)")
    parser.add_argument("--logprobs", action="store_true", help="print the log-prob of every sampled token")
    parser.add_argument("--color", "--colour", dest="colour", choices=("auto", "always", "never"), default="auto")
    parser.add_argument(
        "--env", action="append", default=[], metavar="FILE.py:CLASS", help="an environment that draws its episodes"
    )
    args = parser.parse_args(argv)
    if args.file.is_dir():
        print("\n".join(list_episodes(args.file)))
        return 0
    coloured = args.colour == "always" or (args.colour == "auto" and use_colour(sys.stdout))
    print(show_episode(args.file, args.model, coloured, args.logprobs, args.env))
    return 0
