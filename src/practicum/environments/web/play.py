"""Play a task by hand: `python -m practicum.environments.web.play shop/buy` serves it to an ordinary browser.

It prints the goal, an address to open, and the evaluator's verdict whenever it changes.
"""

from __future__ import annotations

import sys
import time

from practicum.environments.web.evaluator import Evaluation
from practicum.environments.web.sites.server import SiteServer
from practicum.environments.web.sites.variation import AXES
from practicum.environments.web.tasks import SiteTask, find_template, make_tasks
from practicum.errors import UserError
from practicum.utils.terminal import ArgumentParser

POLL_SECONDS = 0.2


def main(arguments: list[str] | None = None) -> int:
    """Serve the task until it is solved or interrupted; return the exit status."""
    parser = ArgumentParser(prog="python -m practicum.environments.web.play", description=__doc__)
    parser.add_argument("template", help="such as shop/buy; docs/web.md lists them")
    parser.add_argument("--seed", type=int, default=0, help="which task of the template")
    parser.add_argument("--vary", nargs="*", default=[], metavar="AXIS", help=f"axes of variation: {', '.join(AXES)}")
    options = parser.parse_args(arguments)
    try:
        task = SiteTask(make_tasks([find_template(options.template)], 1, options.seed, options.vary)[0])
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    with SiteServer() as server:
        session_id = server.open_session(task.session)
        print(f"Goal: {task.case.goal}\nOpen {server.entry_url(session_id)}  (Ctrl-C ends)", flush=True)
        try:
            return _watch(task)
        except KeyboardInterrupt:
            return 130


def _watch(task: SiteTask) -> int:
    """Print the verdict whenever it changes, until the task is solved."""
    last: Evaluation | None = None
    while last is None or not last.success:
        verdict = task.evaluate()
        if verdict != last:
            extra = "".join(f"\n  not asked for: {change}" for change in verdict.unrequested)
            print(f"{'Solved' if verdict.success else f'Progress {verdict.progress:.2f}'}{extra}", flush=True)
        last = verdict
        time.sleep(POLL_SECONDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
