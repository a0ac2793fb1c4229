"""The engine of two versions of this package on one GPU, in alternation: tokens/s of SmolLM2-135M's shape.

    git archive COMMIT src benchmarks | tar -x -C /tmp/old
    python benchmarks/gpu_versions.py /tmp/old . --out FILE.json [--cases 1024x1,256x8m] [--rounds 3] [--profile]

A case is REQUESTSxSAMPLES of one prompt, `m`: six times as many requests of mixed lengths. Each version is a process of
its own, which measures by the functions of its own `benchmarks/gpu_legs`: medians of three runs after one that captures
graphs, and the seconds that Python's garbage collector took in these four. The file is complete after every
measurement. `--profile`: the functions in which the new version's engine thread spends its time, at the end.
"""

from __future__ import annotations

import argparse
import cProfile
import dataclasses
import gc
import io
import json
import os
import pstats
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASES = "1024x1,256x1,256x8,1024x8,256x8m,1024x8m"


def serve(root: Path, tiny: bool) -> None:
    """Measure a case per line of stdin and print its figures as a line; until there are no more lines."""
    sys.path[:0] = [str(root / "src"), str(root / "benchmarks")]
    from gpu_legs import engine as leg
    from gpu_legs.common import TINY, Size, make_model, make_renderer

    assert Path(leg.__file__).resolve().is_relative_to(root.resolve())
    size = TINY if tiny else dataclasses.replace(Size(), repeats=3)
    model, renderer = make_model(size), make_renderer()
    collected, started = 0.0, 0.0

    def count(phase: str, _: Any) -> None:
        nonlocal collected, started
        if phase == "start":
            started = time.perf_counter()
        else:
            collected += time.perf_counter() - started

    gc.callbacks.append(count)
    print("ready", flush=True)
    while line := sys.stdin.readline().strip():
        case, _, profiled = line.partition(" ")
        batch, samples = map(int, case.rstrip("m").split("x"))
        collected, text = 0.0, ""
        profiler = cProfile.Profile()
        if profiled:
            inner = leg.LocalEngine._run

            def run(engine: Any, inner: Any = inner, profiler: cProfile.Profile = profiler) -> None:
                profiler.runcall(inner, engine)

            leg.LocalEngine._run = run
        begun = time.perf_counter()
        row = leg.measure(size, model, renderer, batch, samples, case.endswith("m"))
        if profiled:
            stream = io.StringIO()
            pstats.Stats(profiler, stream=stream).sort_stats("tottime").print_stats(40)
            text = stream.getvalue()
        seconds = {"garbage collection": collected, "of": time.perf_counter() - begun}
        print(json.dumps({**row, **seconds, "profile": text}), flush=True)


class Version:
    """A process with one version."""

    def __init__(self, root: Path, tiny: bool) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root / "benchmarks")])}
        command = [sys.executable, str(Path(__file__).resolve()), str(root), str(root), "--serve"] + ["--tiny"] * tiny
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=root
        )
        self.wait("ready")

    def wait(self, start: str) -> str:
        """The next line that begins like this; libraries print too."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line
        raise SystemExit("A version has ended; its error is above.")

    def measure(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        result: dict[str, Any] = json.loads(self.wait("{"))
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="folder with src/ and benchmarks/ of the older version")
    parser.add_argument("new", type=Path)
    parser.add_argument("--cases", default=CASES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, which shows that it works and no more")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.new, args.tiny)
        return
    versions = {"old": Version(args.old.resolve(), args.tiny), "new": Version(args.new.resolve(), args.tiny)}
    rows: dict[str, dict[str, list[Any]]] = {case: {"old": [], "new": []} for case in args.cases.split(",")}
    profiles: dict[str, str] = {}

    def write() -> None:
        if args.out:
            args.out.write_text(json.dumps({"rows": rows, "profiles": profiles}, indent=1) + "\n")

    for number in range(args.rounds):
        for case, measured in rows.items():
            for name in list(versions)[:: 1 if number % 2 == 0 else -1]:
                measured[name].append(versions[name].measure(case))
                write()
            old, new = (statistics.median(row["tokens/s"] for row in measured[name]) for name in ("old", "new"))
            pauses = measured["new"][-1]["garbage collection"]
            print(
                f"{case:>8}: old {old:>9,.0f}, new {new:>9,.0f} tokens/s, {new / old:.3f} (gc {pauses:.3f} s)",
                flush=True,
            )
    for case in rows if args.profile else ():
        profiles[case] = versions["new"].measure(f"{case} profile").pop("profile")
        write()


if __name__ == "__main__":
    main()
