"""The in-process engine: continuous batching over the trainer's own weights."""
