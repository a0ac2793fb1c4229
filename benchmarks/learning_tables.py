"""The tables of docs/algorithms.md, docs/training.md, docs/sft_dpo.md and the README, out of `benchmarks/results`.

    python benchmarks/learning_tables.py [--only learn,learn_recipes,training_stages,quickstart]
    python benchmarks/learning_tables.py --add-more runs/quickstart_plan

The second form first adds the finished cases `more` of `benchmarks/quickstart.py` to `quickstart.json`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import fisher_exact

from practicum.data.run_folder import write_atomic

RESULTS = Path(__file__).parent / "results"
MORE = "sft-on-ten-times-the-demonstrations"
Row = Mapping[str, Any]


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def rate(result: Row) -> str:
    """A success rate with its interval."""
    return f"{percent(result['success_rate'])} [{100 * result['low']:.1f}, {100 * result['high']:.1f}]"


def points(row: Row) -> str:
    """A difference in points with its interval."""
    return f"{100 * row['difference']:+.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"


def p_values(row: Row) -> list[str]:
    """The p-value of a comparison alone, and corrected over all comparisons of its table (Holm)."""
    return [f"{row['p']:.1g}", f"{row['p_holm']:.1g}"]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def against_more(name: str, trained: Row, more: Row) -> str:
    """SFT on ten times the demonstrations against another policy on the same tasks, which are not paired here: the
    results have the number of solved tasks only. Where both solve the same tasks, the test is conservative."""
    rates = (trained["success_rate"], more["success_rate"])
    counts = [
        [round(rate * row["n"]), round((1 - rate) * row["n"])] for rate, row in zip(rates, (trained, more), strict=True)
    ]
    difference = f"{100 * (rates[1] - rates[0]):+.1f} points"
    return f"{name}: SFT on ten times {difference}, Fisher's exact p = {fisher_exact(counts).pvalue:.2g}"


def learn(record: Row) -> Iterator[str]:
    yield f"seed {record['seed']}, {record['steps']} steps; start {rate(record['start'])}"
    if "sft_10x" in record:
        yield f"SFT on ten times the demonstrations {rate(record['sft_10x'])}"
    yield ""
    yield from table(
        ["entry", "held-out success", "against the SFT model, points [95 %]", "p", "p (Holm)", "minutes"],
        [[name, percent(row["success"]), points(row), *p_values(row), f"{row['minutes']:.1f}"]
         for name, row in record["rows"].items()],
    )  # fmt: skip
    if "sft_10x" in record:
        yield ""
        for name, row in record["rows"].items():
            yield against_more(name, {"success_rate": row["success"], "n": row["n"]}, record["sft_10x"])


def learn_recipes(record: Row) -> Iterator[str]:
    def cost(figures: Row) -> str:
        return f"{figures.get('best_step', figures['steps'])} of {figures['steps']}, {figures['processor_minutes']:.1f}"

    rows = []
    for name in sorted(record):
        row = record[name]
        after, trained = row["rl"], row["rl_training"]
        rows.append(
            [f"`{name}`", f"{rate(row['sft'])} ({row['sft']['mean_reward']:.3f})",
             f"{rate(after)} ({after['mean_reward']:.3f})", points(row), f"{row['p']:.1g}",
             rate(row["sft_10x"]) if "sft_10x" in row else "",
             cost(row["sft_training"]),
             f"{trained['steps']}, {trained['processor_minutes']:.1f} ({trained['minutes']:.1f})"]
        )  # fmt: skip
    heads = ["recipe", "SFT [95 %] (reward)", "after RL [95 %] (reward)", "difference, points [95 %]", "p",
             "SFT on ten times the demonstrations [95 %]", "SFT: best step, processor min",
             "RL: steps, processor min (clock)"]  # fmt: skip
    yield from table(heads, rows)
    yield ""
    for name, row in record.items():
        if "no_search" in row:
            yield (
                f"{name}: {row['searches']:.2f} searches an episode, none in {row['never_searched']} episodes; "
                f"F1 without the tool {row['no_search']['mean_reward']:.3f} (p = {row['p_no_search']:.1g})"
            )
        if "sft_10x_training" in row:
            made = row["sft_10x_training"]
            yield (
                f"{name}, ten times: {made['demonstrations']} demonstrations, best of {made['steps']} steps: "
                f"{made['best_step']}, {made['processor_minutes']:.1f} processor min"
            )
            yield against_more(name, row["rl"], row["sft_10x"])


def training_stages(record: Row) -> Iterator[str]:
    seeds = record["seeds"]
    first = next(iter(seeds.values()))
    yield from table(
        ["policy", *(f"seed {seed} [95 %]" for seed in seeds)],
        [[name, *(rate(row["policies"][name]) for row in seeds.values())] for name in first["policies"]],
    )
    yield ""
    rows = []
    for label, pooled in record["pooled"].items():
        ends = label.split(" → ")
        shares = {seed: [row["policies"][end]["success_rate"] for end in ends] for seed, row in seeds.items()}
        for seed, row in seeds.items():
            rows.append([label, seed, *map(percent, shares[seed]), *compared(row["comparisons"][label])])
        means = [sum(pair[side] for pair in shares.values()) / len(shares) for side in (0, 1)]
        rows.append([f"**{label}**", "all", *map(percent, means), *compared(pooled)])
    yield from table(["step", "seed", "lower", "higher", "difference, points [95 %]", "p", "p (Holm)", "verdict"], rows)
    yield ""
    minutes = [sum(sum(row[clock].values()) for row in seeds.values()) for clock in ("minutes", "cpu_minutes")]
    yield f"{minutes[0]:.1f} minutes in all, {minutes[1]:.1f} of processor time"
    for seed, row in seeds.items():
        yield f"seed {seed}: {row['pairs']} pairs, the BC agent solves {percent(row['logged_success'])} when it samples"


def compared(row: Row) -> list[str]:
    return [points(row), *p_values(row), row["verdict"]]


def quickstart(record: Row) -> Iterator[str]:
    runs = record["runs"]
    kinds = [
        ("base", "quickstart", "base"), ("SFT", "quickstart", "sft"), ("GRPO from there", "quickstart", "rl"),
        ("SFT with twice the epochs", "sft-twice-the-epochs", "sft"),
        ("SFT on ten times the demonstrations", MORE, "sft"),
    ]  # fmt: skip
    rows = []
    for label, case, policy in kinds:
        found = [cases.get(case) for cases in runs.values()]
        if not any(found):
            continue
        rows.append([label, *(rate(row[policy]) if row else "" for row in found)])
        levels = [row["success_by_level"][policy].values() if row else () for row in found]
        rows.append([f"{label}, by number of steps", *(", ".join(f"{100 * v:.0f}" for v in all_) for all_ in levels)])
        if policy == "rl":
            rows.append(["RL − SFT, points", *(points(row) if row else "" for row in map(gain, found))])
    yield from table(["policy", *(f"seed {seed}" for seed in runs)], rows)
    for seed, cases in runs.items():
        if MORE in cases:
            row = cases[MORE]
            rates = " ".join(f"{100 * value:.0f}" for value in row["sft_validations"])
            yield f"seed {seed}, ten times: step {row['sft_best_step']} of {row['sft_steps']}; validations {rates}"
            yield against_more(f"seed {seed}, RL", cases["quickstart"]["rl"], row["sft"])


def gain(row: Row | None) -> Row | None:
    return row and {"difference": row["difference"], "low": row["difference_low"], "high": row["difference_high"]}


def add_more(record: dict[str, Any], folder: Path) -> list[str]:
    """Add what the finished cases `more` in the folder found; returns their seeds."""
    added = []
    for seed, cases in record["runs"].items():
        path = folder / f"seed-{seed}" / "more" / "summary.json"
        if path.exists():
            cases[MORE] = json.loads(path.read_text())
            added.append(seed)
    return added


TABLES: dict[str, Callable[[Row], Iterator[str]]] = {
    "learn": learn, "learn_recipes": learn_recipes, "training_stages": training_stages, "quickstart": quickstart,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TABLES), help="comma-separated (default: all)")
    parser.add_argument("--add-more", type=Path, metavar="FOLDER", help="of benchmarks/quickstart.py")
    args = parser.parse_args()
    if unknown := set(args.only.split(",")) - set(TABLES):
        raise SystemExit(f"unknown table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    if args.add_more:
        path = RESULTS / "quickstart.json"
        record = json.loads(path.read_text())
        if not (added := add_more(record, args.add_more)):
            raise SystemExit(f"'{args.add_more}' has no finished case 'more' of seeds {', '.join(record['runs'])}.")
        write_atomic(path, (json.dumps(record, indent=1) + "\n").encode())
        print(f"added to {path}: seeds {', '.join(added)}\n")
    for name in args.only.split(","):
        print(f"## {name}.json\n")
        print("\n".join(TABLES[name](json.loads((RESULTS / f"{name}.json").read_text()))) + "\n")


if __name__ == "__main__":
    main()
