"""`practicum dpo KEY=VALUE ...`: direct preference optimization on pairs of replies. Flags are short names of keys."""

from __future__ import annotations

from practicum.cli.sft import FLAGS as SFT_FLAGS
from practicum.cli.supervised import Flag, SupervisedCommand, run_command

FLAGS = {
    **{name: flag for name, flag in SFT_FLAGS.items() if name != "warmup"},
    "dataset_path": Flag("data.dataset_path", "rows of prompt, chosen, rejected, instead of episodes"),
    "beta": Flag("training.beta", "strength of the pull towards the reference model"),
    "loss": Flag("training.loss", "dpo, ipo or kto"),
}
SWITCHES = {"full": Flag("training.use_lora=false", "train all weights, without an adapter")}


def run(argv: list[str]) -> int:
    from practicum.config.dpo import DPOConfig
    from practicum.training.build_supervised import dpo

    return run_command(SupervisedCommand("dpo", __doc__, FLAGS, SWITCHES, "dpo/loss"), argv, DPOConfig, dpo)
