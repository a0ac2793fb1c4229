"""A guard process, run as a program: `python guard.py PID_FILE COMMAND ...`, its standard input a pipe from its parent.

It leads a process group, starts the command in it, and ends the group when the command ends or when the pipe closes,
which happens when the parent dies in any way at all. It imports nothing of ours: it must run wherever a Python does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

TERMINATE_SECONDS = 15.0
"""Seconds between SIGTERM and SIGKILL to the group."""


def main(pid_file: str, command: list[str]) -> int:
    """Run the command to its end and return its exit status, 128 + N after signal N."""
    signal.signal(signal.SIGTERM, lambda signal_number, frame: None)  # the group's signal reaches us too; we end last
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    with open(pid_file, "w", encoding="ascii") as file:
        file.write(f"{child.pid}\n")
    threading.Thread(target=end_with_parent, daemon=True).start()
    code = child.wait()
    os.killpg(0, signal.SIGTERM)
    return code if code >= 0 else 128 - code


def end_with_parent() -> None:
    """Wait until the pipe closes, then end the process group."""
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(TERMINATE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    os._exit(main(sys.argv[1], sys.argv[2:]))
