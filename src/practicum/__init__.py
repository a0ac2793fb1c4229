"""Practicum trains LLM agents: collect → SFT → DPO → RL → evaluate → compare.

Tasks and records: `Task`, `Environment` (with `Message`, `Action`, `Observation`, `Step`), `Trajectory`, `Outcome`.
Extensions: the decorators `tool` and `reward`.

| function | settings | result |
|---|---|---|
| `collect` | `CollectSettings` | `CollectResult` |
| `evaluate` | `EvalSettings` | `EvalResult` |
| `compare` | two `EvalResult`s | `Comparison` |
| `sft`, `dpo`, `train` | `SFTConfig`, `DPOConfig`, `TrainConfig`, or overrides as on the command line | `TrainResult` |

What a user can put right is raised as `UserError`, one sentence each. `docs/api.md` has an example of every function.
Names are loaded on first use, so that `import practicum` stays fast and imports no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "Action",
    "CollectResult",
    "CollectSettings",
    "Comparison",
    "DPOConfig",
    "Environment",
    "EvalResult",
    "EvalSettings",
    "Message",
    "Observation",
    "Outcome",
    "SFTConfig",
    "Step",
    "Task",
    "TrainConfig",
    "TrainResult",
    "Trajectory",
    "UserError",
    "collect",
    "compare",
    "dpo",
    "evaluate",
    "reward",
    "sft",
    "tool",
    "train",
]

_MODULES = {
    "practicum.collector": ("CollectResult", "CollectSettings", "collect"),
    "practicum.environment": ("Action", "Environment", "Message", "Observation", "Step"),
    "practicum.errors": ("UserError",),
    "practicum.evaluation.compare": ("Comparison",),
    "practicum.evaluation.comparison_report": ("compare",),
    "practicum.evaluation.result": ("EvalResult",),
    "practicum.evaluation.runner": ("evaluate",),
    "practicum.evaluation.settings": ("EvalSettings",),
    "practicum.rewards.base": ("reward",),
    "practicum.task": ("Task",),
    "practicum.tools.base": ("tool",),
    "practicum.training.build": ("TrainResult", "train"),
    "practicum.training.build_supervised": ("dpo", "sft"),
    "practicum.config.dpo": ("DPOConfig",),
    "practicum.config.sft": ("SFTConfig",),
    "practicum.config.train": ("TrainConfig",),
    "practicum.trajectory": ("Outcome", "Trajectory"),
}
"""Where each public name is defined."""

if TYPE_CHECKING:
    from practicum.collector import CollectResult, CollectSettings, collect
    from practicum.config.dpo import DPOConfig
    from practicum.config.sft import SFTConfig
    from practicum.config.train import TrainConfig
    from practicum.environment import Action, Environment, Message, Observation, Step
    from practicum.errors import UserError
    from practicum.evaluation.compare import Comparison
    from practicum.evaluation.comparison_report import compare
    from practicum.evaluation.result import EvalResult
    from practicum.evaluation.runner import evaluate
    from practicum.evaluation.settings import EvalSettings
    from practicum.rewards.base import reward
    from practicum.task import Task
    from practicum.tools.base import tool
    from practicum.training.build import TrainResult, train
    from practicum.training.build_supervised import dpo, sft
    from practicum.trajectory import Outcome, Trajectory
else:
    # Under `if TYPE_CHECKING` this would make every attribute valid for a type checker.
    def __getattr__(name: str) -> Any:
        for module, names in _MODULES.items():
            if name in names:
                value = getattr(importlib.import_module(module), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module 'practicum' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
