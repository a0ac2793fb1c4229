"""What the GPU benchmarks do around their measurements: it must hold where time on a card is short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(code: str, *words: str) -> str:
    """In a process of its own: the benchmarks set up their surroundings when they are imported."""
    head = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
    done = subprocess.run([sys.executable, "-c", head + code, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_training_case_is_ended_when_its_time_is_up_and_what_it_wrote_is_gathered(tmp_path: Path) -> None:
    practice = tmp_path / "math" / "rl"
    practice.mkdir(parents=True)
    (practice / "timing.jsonl").write_text('{"step": 1, "timing/rollout": 2.0}\n{"step": 2, "timing/rollout": 3.0}\n')
    (practice / "metrics.jsonl").write_text('{"step": 1, "success/mean": 0.25}\n{"step": 2, "succ')
    code = """
import json
from pathlib import Path
import gpu_training
print(gpu_training.run_apart(["--tiny", "--only", "math"], 0.05))
print(gpu_training.run_apart(["--tiny", "--case", "nonsense"], 100))
print(json.dumps(gpu_training.gathered(Path(sys.argv[1]))))
"""
    late, wrong, gathered = run(code, str(tmp_path / "math")).splitlines()
    assert late.startswith("ended from outside")
    assert wrong == "exit code 1"
    row = json.loads(gathered)
    assert row["finished"] is False
    assert row["practice"]["steps"] == 2
    assert row["practice"]["seconds"]["rollout"] == 5.0
    assert row["practice"]["curves"] == {"success/mean": [[1, 0.25]]}


def test_profile_counts_overlapping_kernels_once_and_sees_every_thread() -> None:
    code = """
import asyncio, json, threading, time
from gpu_legs import needs
needs.prepare()
from gpu_legs import profile
over = threading.Event()
threading.Thread(target=over.wait, name="waiting").start()
async def do():
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end:
        pass
found = asyncio.run(profile.on_host(do, 2))["host"]
over.set()
busiest = max(found["MainThread"], key=lambda one: one["ms"])
print(json.dumps([profile.busy_seconds([(0, 2), (1, 3), (5, 6)]), sorted(found), busiest]))
"""
    busy, threads, busiest = json.loads(run(code))
    assert busy == 4
    assert {"MainThread", "waiting"} <= set(threads)
    assert busiest["function"].startswith("do ")


def test_each_affine_environment_has_a_pipeline_of_its_own_and_the_best_weights_come_back(tmp_path: Path) -> None:
    code = """
import json
from pathlib import Path
from types import SimpleNamespace
import affine_gpu, torch
from practicum.pipeline import stages
configs = {name: affine_gpu.config_of(name, Path(sys.argv[1]), False) for name in affine_gpu.WORLDS}
assert all(stages.environments(config) == [name] for name, config in configs.items())
assert len({config.output_dir for config in configs.values()}) == 8
worlds = affine_gpu.WORLDS
assert all(stages.demonstrations(configs[name])[name] == world.demonstrations for name, world in worlds.items())
assert all(stages.rl_config(config).algorithm.adv_estimator == "grpo" for config in configs.values())

model = torch.nn.Linear(1, 1, bias=False)
run = SimpleNamespace(state=SimpleNamespace(step=0, best_step=0, best_value=0.2),
                      policy=SimpleNamespace(loaded=SimpleNamespace(model=model)))
best = affine_gpu.Best("val/success/mean", 1)
best.start(run)
for step, value in enumerate([0.1, 0.6, None, 0.5], 1):
    run.state.step = step
    model.weight.data.fill_(step)
    best.offer(run, step, {} if value is None else {"val/success/mean": value})
best.restore(run)
print(json.dumps([model.weight.item(), best.record()]))
"""
    weight, record = json.loads(run(code, str(tmp_path)))
    assert weight == 2.0
    assert record["best_step"] == 2
    assert record["validations"] == [[0, 0.2], [1, 0.1], [2, 0.6], [4, 0.5]]
