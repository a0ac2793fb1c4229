"""`practicum htdag`: planners without training (`baseline`) or trained (`evaluate`) on the panel; `plan` a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from practicum.errors import UserError
from practicum.utils.tables import percent_interval, shortened, table
from practicum.utils.terminal import ArgumentParser, say

ROWS = (
    ("success rate", "success_rate", 100.0, " %"),
    ("mean depth", "mean_depth", 1.0, ""),
    ("mean subtasks", "mean_subtasks", 1.0, ""),
    ("parallelism ratio", "parallelism_ratio", 100.0, " %"),
    ("mean execution time", "mean_execution_time", 1.0, " s"),
    ("mean LLM calls", "mean_llm_calls", 1.0, ""),
    ("mean reward", "mean_reward", 1.0, ""),
    ("mean waste", "mean_waste", 100.0, " %"),
    ("cycle errors", "cycle_error_rate", 100.0, " %"),
)
"""Rows of the table: title, metric, factor, unit."""


def run(argv: list[str]) -> int:
    parser = ArgumentParser(prog="practicum htdag", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    baseline = commands.add_parser("baseline", help="run the scripted planners on the panel and write the results")
    baseline.add_argument("--out", type=Path, help="folder of the results (default: data/htdag_benchmarks)")
    baseline.add_argument("--policy", default="heuristic", help="whose results are the baseline (default: heuristic)")
    trained = commands.add_parser("evaluate", help="evaluate a trained planner on the panel and write the results")
    trained.add_argument(
        "policy", nargs="?",
        help="folder of a model, adapter, run or checkpoint (default: checkpoints/htdag_rl, the run of recipe htdag); "
        "with --url a server's model",
    )  # fmt: skip
    trained.add_argument("--url", help="an OpenAI-compatible server (…/v1)")
    trained.add_argument("--out", type=Path, help="folder of the results (default: data/htdag_benchmarks)")
    rows = commands.add_parser("demonstrations", help="write the expert's decisions as rows for `practicum sft`")
    rows.add_argument("out", type=Path, help="the JSON-lines file, for `practicum sft --dataset-path`")
    rows.add_argument("--requests", type=int, default=6000, help="training requests (default: 6000)")
    rows.add_argument(
        "--whole", type=int, help="requests that give all decisions, the others only the first (default: all)"
    )
    rows.add_argument("--seed", type=int, default=0, help="which requests (default: 0)")
    plan = commands.add_parser("plan", help="plan one request without a model and print or draw it")
    plan.add_argument("request", help="what is to be planned")
    plan.add_argument("--out", type=Path, help="file of a drawing: .svg, .png or .txt")
    args = parser.parse_args(argv)
    if args.command == "baseline":
        return _baseline(args.policy, args.out)
    if args.command == "evaluate":
        return _evaluate(args.policy, args.url, args.out)
    if args.command == "demonstrations":
        return _demonstrations(args.out, args.requests, args.whole, args.seed)
    return _plan(args.request, args.out)


def _baseline(policy: str, out: Path | None) -> int:
    from practicum.planner import benchmark

    folder = out or benchmark.FOLDER
    names = list(dict.fromkeys((*benchmark.BASELINES, policy)))
    results = {name: benchmark.run_policy(name) for name in names}
    benchmark.write_results(results[policy], policy, folder / benchmark.BASELINE_FILE)
    benchmark.eval_result(results[policy], policy).write(folder / benchmark.BASELINE_EVAL)
    benchmark.write_tasks(folder / benchmark.TASKS_FILE)
    metrics = {name: benchmark.aggregate(each) for name, each in results.items()}
    rows: list[Sequence[str]] = []
    for title, key, factor, unit in ROWS:
        expected = benchmark.EXPECTED_RANGES.get(key)
        stated = "" if expected is None else f"{factor * expected[0]:g}-{factor * expected[1]:g}{unit}"
        rows.append([title, *(_cell(metrics[name][key], factor, unit) for name in names), stated])
    print(table(["metric", *names, "HTDAG expects"], rows))
    low, high = metrics[policy]["success_low"], metrics[policy]["success_high"]
    say(f"success of {policy}: 95 % interval over templates {percent_interval(low or 0.0, high or 0.0)} %")
    say(f"results in {folder / benchmark.BASELINE_FILE}")
    warning = benchmark.sanity_warning(metrics[policy]["success_rate"])
    if warning:
        say(f"warning: {warning}")
    return 0


def _evaluate(policy: str | None, url: str | None, out: Path | None) -> int:
    from practicum.planner import benchmark
    from practicum.planner.htdag_planner import RUN_FOLDER

    if policy is None:
        if url is not None:
            raise UserError(
                "Say which of the server's models is to be evaluated: practicum htdag evaluate NAME --url URL."
            )
        if not RUN_FOLDER.is_dir():
            raise UserError(f"There is no run '{RUN_FOLDER}'; train one (recipe=htdag), or give the folder of a model.")
        policy = str(RUN_FOLDER)
    folder = out or benchmark.FOLDER
    evaluated, results = benchmark.evaluate_policy(policy, folder / benchmark.TRAINING_EVAL, url)
    benchmark.write_results(results, policy, folder / benchmark.TRAINING_FILE)
    metrics = benchmark.aggregate(results)
    print("Evaluation Results:")
    print(f"Success Rate: {100 * (metrics['success_rate'] or 0):.1f}%")
    print(f"Mean Reward: {metrics['mean_reward'] or 0:.3f}")
    rows = [[title, _cell(metrics[key], factor, unit)] for title, key, factor, unit in ROWS]
    print(table(["metric", shortened(policy, 40)], rows))
    if evaluated.unscored:
        print(f"{len(evaluated.unscored)} requests have no score and are left out")
    say(f"results in {folder / benchmark.TRAINING_FILE}")
    if (folder / benchmark.BASELINE_EVAL).is_file():
        say(f"compare: practicum compare {folder / benchmark.BASELINE_EVAL} {folder / benchmark.TRAINING_EVAL}")
    return 0


def _demonstrations(out: Path, requests: int, num_whole: int | None, seed: int) -> int:
    from practicum.data.run_folder import write_atomic
    from practicum.environments.htdag.demonstrations import demonstrations

    rows = list(demonstrations(requests, num_whole, seed=seed))
    write_atomic(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    say(f"{len(rows)} decisions of {requests} requests in {out}")
    return 0


def _cell(value: float | int | None, factor: float, unit: str) -> str:
    return "–" if value is None else f"{factor * value:.2f}{unit}" if unit != " %" else f"{factor * value:.1f}{unit}"


def _plan(request: str, out: Path | None) -> int:
    from practicum.environments.htdag.drawing import tree_text, write_drawing
    from practicum.planner import HTDAGPlanner

    dag = asyncio.run(HTDAGPlanner().decompose_task(request))
    if out is None:
        print(tree_text(dag))
        return 0
    try:
        write_drawing(dag, out, request)
    except OSError as error:
        raise UserError(f"Cannot write '{out}': {error.strerror}; choose another --out.") from None
    say(f"drawing in {out}")
    return 0
