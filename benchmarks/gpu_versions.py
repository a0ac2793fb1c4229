"""Engine, learner and GRPO step of two versions of this package on one GPU, in alternation: SmolLM2-135M's shape.

    git archive COMMIT src benchmarks | tar -x -C /tmp/old
    python benchmarks/gpu_versions.py /tmp/old . --out FILE.json [--cases 1024x1,256x8m,learner8,step] [--rounds 3]

A case of the engine is REQUESTSxSAMPLES of one prompt, `m`: six times as many requests of mixed lengths. `learnerS` is
an update on 256 sequences, S of them per prompt; `step` a whole GRPO step. Each version is a process of its own, which
measures by the functions of its own `benchmarks/gpu_legs`: medians of three runs after one that captures graphs, and
the seconds that Python's garbage collector took in these four. The file is complete after every measurement, and
`--seconds` ends the rounds. `--kernels CASES`: the kernels of one run of each version, and when the GPU was idle.
`--profile CASES`: the functions in which the new version's engine thread spends its time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CASES = "1024x1,256x1,256x8,1024x8,64x1,learner8,step,256x8m"


@contextlib.contextmanager
def profiled(leg: Any) -> Iterator[cProfile.Profile]:
    """A profile of the engines' threads."""
    profiler, inner = cProfile.Profile(), leg.LocalEngine._run

    def run(engine: Any) -> None:
        profiler.runcall(inner, engine)

    leg.LocalEngine._run = run
    try:
        yield profiler
    finally:
        leg.LocalEngine._run = inner


def measure_case(case: str, size: Any, model: Any, renderer: Any) -> dict[str, Any]:
    """The figures of one case, by the functions of the version that this process has."""
    from gpu_legs import engine, learner, step

    if case == "step":
        row = step.measure_practicum(size)
        return {"tokens/s": size.tasks * size.chains * size.new / row["seconds"], **row}
    if case.startswith("learner"):
        return dict(learner.measure(size, int(case.removeprefix("learner")), False))
    batch, samples = map(int, case.rstrip("m").split("x"))
    return dict(engine.measure(size, model, renderer, batch, samples, case.endswith("m")))


def kernels(case: str, size: Any, model: Any, renderer: Any) -> dict[str, Any]:
    """How long the GPU was busy in a run of the engine after two others, with its longest kernels and idle times."""
    from gpu_legs import engine as leg
    from gpu_legs.common import make_requests
    from gpu_legs.profile import on_gpu

    batch, samples = map(int, case.rstrip("m").split("x"))
    mixed = case.endswith("m")
    engine = leg.LocalEngine(leg.Decoder(model), renderer, max_batch=batch)
    requests = make_requests(size, batch * (6 if mixed else 1), samples, 0, mixed)
    version = 0

    async def generate() -> None:
        nonlocal version
        version += 1
        engine.weights_changed(version)
        await asyncio.gather(*map(engine.generate, requests))

    async def run() -> dict[str, Any]:
        await generate()
        await generate()
        row = await on_gpu(size, generate)
        await engine.close()
        return dict(row)

    return asyncio.run(run())


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
        case, _, wanted = line.partition(" ")
        collected, text, begun = 0.0, "", time.perf_counter()
        if wanted == "kernels":
            row = kernels(case, size, model, renderer)
        elif wanted == "profile":
            with profiled(leg) as profiler:
                row = measure_case(case, size, model, renderer)
            stream = io.StringIO()
            pstats.Stats(profiler, stream=stream).sort_stats("tottime").print_stats(40)
            text = stream.getvalue()
        else:
            row = measure_case(case, size, model, renderer)
        seconds = {"garbage collection": collected, "of": time.perf_counter() - begun}
        print(json.dumps({**row, **seconds, "profile": text}), flush=True)


class Version:
    """A process with one version."""

    def __init__(self, root: Path, tiny: bool) -> None:
        folders = [str(root / "src"), str(root / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
        command = [sys.executable, str(Path(__file__).resolve()), str(root), str(root), "--serve"] + ["--tiny"] * tiny
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=root
        )

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
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no case begins later than this")
    parser.add_argument("--kernels", default="", metavar="CASES")
    parser.add_argument("--profile", default="", metavar="CASES")
    parser.add_argument("--tiny", action="store_true", help="on a CPU, which shows that it works and no more")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.new, args.tiny)
        return
    from gpu_legs import needs
    from gpu_legs.clock import Clock

    needs.prepare()
    clock = Clock(args.seconds / 60)
    versions = {"old": Version(args.old.resolve(), args.tiny), "new": Version(args.new.resolve(), args.tiny)}
    for version in versions.values():
        version.wait("ready")
    rows: dict[str, dict[str, list[Any]]] = {case: {"old": [], "new": []} for case in args.cases.split(",")}
    ran: dict[str, dict[str, Any]] = {}
    profiles: dict[str, str] = {}

    def write() -> None:
        if args.out:
            args.out.write_text(json.dumps({"rows": rows, "kernels": ran, "profiles": profiles}, indent=1) + "\n")

    for number in range(args.rounds):
        for case, measured in rows.items():
            if clock.over:
                break
            for name in list(versions)[:: 1 if number % 2 == 0 else -1]:
                measured[name].append(versions[name].measure(case))
                write()
            clock.say(summary(case, measured))
    for case in filter(None, args.kernels.split(",")):
        ran[case] = {} if clock.over else {name: one.measure(f"{case} kernels") for name, one in versions.items()}
        for name, row in ran[case].items():
            clock.say(f"{case} {name}: {row.get('recorded seconds')} s, GPU busy {row.get('gpu busy')} s")
        write()
    for case in filter(None, args.profile.split(",")):
        if not clock.over:
            profiles[case] = versions["new"].measure(f"{case} profile").pop("profile")
            write()


def summary(case: str, measured: dict[str, list[Any]]) -> str:
    """The medians of a case so far, and their ratio."""
    old, new = (statistics.median(row["tokens/s"] for row in measured[name]) for name in ("old", "new"))
    pauses = measured["new"][-1]["garbage collection"]
    return f"{case:>8}: old {old:>9,.0f}, new {new:>9,.0f} tokens/s, {new / old:.3f} (gc {pauses:.3f} s)"


if __name__ == "__main__":
    main()
