"""`practicum dpo KEY=VALUE ...`: prefer the better of two replies. Flags are short names of keys."""

from __future__ import annotations

from practicum.cli.sft import FLAGS as SFT_FLAGS
from practicum.cli.stage import Flag, run_stage

FLAGS = {
    **{name: flag for name, flag in SFT_FLAGS.items() if name != "warmup"},
    "dataset_path": Flag("data.dataset_path", "rows of prompt, chosen, rejected, instead of episodes"),
    "beta": Flag("training.beta", "how strongly the reference holds"),
    "loss": Flag("training.loss", "dpo, ipo or kto"),
}
SWITCHES = {"full": Flag("training.use_lora=false", "train all weights, without an adapter")}


def run(argv: list[str]) -> int:
    from practicum.training.build_supervised import DPOConfig, build_dpo

    return run_stage("dpo", __doc__, argv, FLAGS, SWITCHES, DPOConfig, build_dpo, "dpo/loss")
