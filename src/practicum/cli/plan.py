"""`practicum plan KEY=VALUE ...`: memory and time of a step of `practicum train` before it starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from practicum.cli.options import HelpFormatter, positive
from practicum.utils.terminal import ArgumentParser, say

if TYPE_CHECKING:
    from practicum.training.plan import Plan

GIB = 2**30
DEFAULT_HARDWARE = "h200"


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="practicum plan",
        description=__doc__,
        formatter_class=HelpFormatter,
        epilog="example: practicum plan actor_rollout_ref.model.path=Qwen/Qwen2.5-32B-Instruct --nnodes 64 "
        "--gpus-per-node 8",
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as of `practicum train`; also recipe=NAME")
    parser.add_argument(
        "--hardware", help="h200, h100, a100-80gb, a100-40gb or cpu (default: h200; cpu with trainer.device=cpu)"
    )
    parser.add_argument("--nnodes", type=positive, help="machines (trainer.nnodes; default: 1)")
    parser.add_argument("--gpus-per-node", type=positive, help="devices per machine, a rank each (default: 1)")
    parser.add_argument("--prompt-tokens", type=positive, default=512, help="tokens of a prompt (default: 512)")
    parser.add_argument("--reply-tokens", type=positive, help="tokens of a reply, on average (default: the maximum)")
    parser.add_argument("--points", action="store_true", help="compare the estimates with what was measured")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(argv: list[str]) -> int:
    args = make_parser().parse_intermixed_args(argv)
    if args.points:
        return print_points(args.json)
    from practicum.training.plan import estimate, find_hardware, read_plan_overrides, size_of_model, workload_of

    config, nnodes, gpus = read_plan_overrides(args.overrides)
    nnodes, gpus = args.nnodes or nnodes, args.gpus_per_node or gpus
    hardware = find_hardware(args.hardware or ("cpu" if config.trainer.device == "cpu" else DEFAULT_HARDWARE))
    separator, assumed = ("; ", "") if args.hardware else ("\n", " (assumed; change with --hardware)")
    name, size = size_of_model(config)
    work = workload_of(config, hardware, args.prompt_tokens, args.reply_tokens)
    plan = estimate(size, hardware, work, nnodes * gpus, nnodes)
    if args.json:
        print(json.dumps({"model": name, "weights": size.weights, "hardware": hardware.name, "ranks": nnodes * gpus,
                          "workload": vars(work), **vars(plan), "total_bytes": plan.total_bytes,
                          "step_seconds": plan.step_seconds}, indent=1))  # fmt: skip
        return 0
    trained = size.lora_weights(work.lora_rank) if work.lora_rank else size.weights
    machines = f"{nnodes} × {gpus} " if nnodes * gpus > 1 else ""
    machines += f"{hardware.name}{assumed}"
    say(f"{name}: {billions(size.weights)} weights, {billions(trained)} trained{separator}{machines}")
    print(
        f"{work.groups} prompts of {work.prompt_tokens:g} tokens × {work.chains} episodes × {work.turns:g} turns of "
        f"{work.reply_tokens:g} tokens"
    )
    print_plan(plan, hardware.memory, nnodes * gpus, config.actor_rollout_ref.rollout.num_workers)
    return 0


REMEDIES = {
    "KV cache": "the KV cache: lower\nactor_rollout_ref.rollout.gpu_memory_utilization or max_num_seqs",
    "activations": "activations: shorten replies, or set\nactor_rollout_ref.model.enable_gradient_checkpointing=true",
}


def billions(count: float) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e8 else f"{count / 1e6:.2f} M"


def print_plan(plan: Plan, memory: float, num_ranks: int, num_workers: int) -> None:
    from practicum.training.plan_points import largest_errors
    from practicum.utils.tables import percent, table

    sharded = num_ranks > 1
    columns = [plan.memory, plan.sharded_memory] if sharded else [plan.memory]
    names = list({name: None for column in columns for name in column})
    rows = [[name, *(f"{column.get(name, 0.0) / GIB:,.2f}" for column in columns)] for name in names]
    totals = [sum(column.values()) for column in columns]
    rows.append(["in all", *(f"{total / GIB:,.2f}" for total in totals)])
    rows.append([f"of {memory / GIB:,.0f} GiB", *("fits" if total <= memory else "does not fit" for total in totals)])
    print()
    print(table(["memory per device", "GiB", *(["if sharded, GiB"] if sharded else [])], rows))
    print()
    rows = [
        [name, f"{seconds:,.3f}", percent(seconds / plan.step_seconds, digits=0)]
        for name, seconds in plan.seconds.items()
    ]
    rows.append(["in all", f"{plan.step_seconds:,.3f}", ""])
    print(table(["one step", "seconds", "share"], rows))
    print()
    mfu = "" if plan.mfu is None else f"; MFU {percent(plan.mfu, digits=0)}"
    say(f"Update: {plan.update_flops:.3g} model FLOPs{mfu}.")
    print("Environments, tools and judges are not in it.")
    if num_workers:
        print("Nor are rollout workers: it is a plan of ranks that also roll out.")
    most = max(plan.memory, key=lambda name: plan.memory[name])
    if most in REMEDIES and totals[0] > memory:
        print(f"Most of it is {REMEDIES[most]}.")
    if sharded:
        print("Ranks hold the whole model; with strategy=fsdp2 they divide it:\nits column is computed, not measured.")
    memory_error, time_error = largest_errors()
    print(
        f"Errors on the points that the rates were fitted to: memory up to {percent(memory_error, digits=0)},\n"
        f"time up to {percent(time_error, digits=0)} (`practicum plan --points`)."
    )


def print_points(as_json: bool) -> int:
    from practicum.training.plan_points import point_errors
    from practicum.utils.tables import percent, table

    errors = point_errors()
    if as_json:
        print(json.dumps([
            {"name": error.point.name, "model": error.point.model, "hardware": error.point.hardware,
             "measured_seconds": error.point.seconds, "seconds": error.seconds, "time_error": error.time_error,
             "measured_bytes": error.point.peak_bytes, "bytes": error.peak_bytes, "memory_error": error.memory_error}
            for error in errors
        ], indent=1))  # fmt: skip
        return 0
    rows = []
    for error in errors:
        point = error.point
        time = 2 * [""]
        if point.seconds is not None and error.time_error is not None:
            time = [f"{point.seconds:.3g}", percent(error.time_error, signed=True, digits=0)]
        memory = 2 * [""]
        if point.peak_bytes is not None and error.memory_error is not None:
            memory = [f"{point.peak_bytes / GIB:.2f}", percent(error.memory_error, signed=True, digits=0)]
        rows.append([f"{point.model}, {point.hardware}: {point.name}", *time, *memory])
    print(table(["measured", "s", "error", "GiB", "error"], rows))
    return 0
