"""`practicum sft KEY=VALUE ...`: supervised fine-tuning on collected episodes. Flags are short names of keys."""

from __future__ import annotations

from practicum.cli.supervised import Flag, SupervisedCommand, run_command

FLAGS = {
    "episodes": Flag("data.episodes", "folder written by `practicum collect`"),
    "dataset_path": Flag("data.dataset_path", "or a file of rows: messages, or prompt and action"),
    "model": Flag("model.path", "what to start from: tiny, smollm2, a folder, a hub id"),
    "base_model": Flag("model.path", "the same"),
    "out": Flag("output_dir", "folder for checkpoints, metrics and the trained model"),
    "output_dir": Flag("output_dir", "the same"),
    "epochs": Flag("training.num_epochs", "passes over the episodes"),
    "batch_size": Flag("training.batch_size", "sequences computed at once"),
    "gradient_accumulation_steps": Flag("training.gradient_accumulation_steps", "such batches in one update"),
    "lr": Flag("training.learning_rate", "peak learning rate"),
    "warmup": Flag("training.warmup_steps", "updates of warm-up"),
    "lora_r": Flag("training.lora_r", "rank of the adapter"),
    "lora_alpha": Flag("training.lora_alpha", "its scale"),
    "seed": Flag("training.seed", "seed of the data order and of the new adapter"),
}
SWITCHES = {
    "include_failed": Flag("data.include_failed=true", "train on failed episodes too"),
    "full": Flag("training.use_lora=false", "train all weights, without an adapter"),
}


def run(argv: list[str]) -> int:
    from practicum.config.sft import SFTConfig
    from practicum.training.build_supervised import sft

    return run_command(SupervisedCommand("sft", __doc__, FLAGS, SWITCHES, "actor/loss"), argv, SFTConfig, sft)
