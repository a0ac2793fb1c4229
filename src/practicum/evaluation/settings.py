"""Settings of an evaluation: which policy, on which panel, with how many attempts, and where the result goes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from practicum.errors import UserError
from practicum.evaluation.panel import Panel, read_panel
from practicum.evaluation.stats.intervals import LEVEL
from practicum.registry import environment_class
from practicum.rollout_settings import RolloutSettings
from practicum.task import content_hash

DEFAULT_NUM_TASKS = 300


@dataclass(frozen=True, kw_only=True)
class EvalSettings(RolloutSettings):
    """One policy in one environment.

    The tasks are those of `panel`, or else the ones that `split`, `num_tasks`, `sample_size`, `subset` and
    `task_registry` select (300 by default).
    """

    split: str = "test"
    panel: str | Path | Panel | None = None
    """A frozen panel, its file, or the folder of results that it was written to."""
    attempts_per_task: int = 1
    """Attempts per task: mean@k and pass@k. One attempt is greedy by default, several are sampled at temperature 1."""
    base: str | None = None
    """The base model of an adapter, where the adapter's folder does not name it."""
    name: str | None = None
    """The policy's name in tables; None: `policy`."""
    level: float = LEVEL
    """Level of the intervals."""
    out: str | Path | None = None
    """FILE.json for the result; episodes, panel and times go into the folder FILE.run."""

    def check(self) -> None:
        """Refuse numbers out of range and a name that no result file can have."""
        if not 0 < self.level < 1:
            raise UserError(f"--level {self.level:g}: a level lies between 0 and 1, such as 0.95.")
        if self.attempts_per_task < 1:
            raise UserError(f"--attempts {self.attempts_per_task} must be at least 1.")
        if self.out is not None and Path(self.out).suffix != ".json":
            raise UserError(f"--out {self.out}: a result is one JSON file; give it a name that ends in .json.")

    @property
    def default_temperature(self) -> float:
        """Greedy for one attempt; several greedy attempts would all be the same, so they are sampled."""
        return 0.0 if self.attempts_per_task == 1 else 1.0

    @property
    def rules(self) -> dict[str, Any]:
        """What changes a score without changing a task or the agent; part of the panel's hash."""
        return self._rules(self.split_options[0])

    def _rules(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"max_turns": self.max_turns, **({"options": dict(options)} if options else {})}

    def agent_record(self, panel: Panel) -> dict[str, Any]:
        """The agent's options, as a result depends on them, and the hash that the panel had while it included them."""
        options = self.split_options[1]
        if not options:
            return {}
        formerly = Panel(panel.tasks, panel.seed, self._rules(self.recorded_options))
        return {"agent_options": options, "panel_with_agent_options": formerly.hash}

    @property
    def asked_record(self) -> dict[str, Any]:
        """The names of the roles that score or answer as a part of the environment; empty where there are none."""
        model_roles = (
            [name for name in self.make_environment().model_names() if name in self.roles] if self.roles else []
        )
        return {"asked_models": model_roles} if model_roles else {}

    @property
    def run_folder(self) -> Path | None:
        """The folder of the episodes and the panel, beside the result file."""
        return None if self.out is None else Path(self.out).with_name(f"{Path(self.out).stem}.run")

    def make_panel(self) -> Panel:
        """The panel of `panel`, or one made of the selected tasks."""
        if self.panel is None:
            num_tasks = self.num_tasks
            if num_tasks is None and self.task_registry is None and self.sample_size is None:
                num_tasks = DEFAULT_NUM_TASKS
            tasks = replace(self, num_tasks=num_tasks).select_tasks(self.make_environment())
            return Panel(tuple(tasks), self.seed, self.rules)
        self._check_no_selection()
        panel, source = self._given_panel()
        environments = sorted({task.environment for task in panel.tasks})
        if environments != [self.make_environment().name]:
            raise UserError(
                f"Panel '{source}' is of {', '.join(environments)}; --env {self.environment} cannot play it."
            )
        if content_hash(self._world_rules(panel)) != content_hash(self.rules):
            raise UserError(
                f"Panel '{source}' is played under the rules {self._world_rules(panel)}, not {self.rules}; give "
                "--max-turns, --env-arg and --reward as there."
            )
        return panel

    def _world_rules(self, panel: Panel) -> dict[str, Any]:
        """The rules of a panel without options of the agent, which older panels have among them."""
        rules = dict(panel.rules)
        world, _ = environment_class(self.environment).split_options(rules.pop("options", {}))
        return {**rules, **({"options": world} if world else {})}

    def _given_panel(self) -> tuple[Panel, str]:
        """The panel, and what to call it in an error."""
        assert self.panel is not None
        if isinstance(self.panel, Panel):
            return self.panel, self.panel.hash
        path = Path(self.panel)
        if path.is_dir():
            path = path / f"{file_name(self.environment)}.run" / "panel.json"
        return read_panel(path), str(path)

    def _check_no_selection(self) -> None:
        selection = {
            "tasks": self.num_tasks,
            "sample-size": self.sample_size,
            "subset": self.subset,
            "task-registry": self.task_registry,
            "data": self.environment_options.get("files"),
        }
        for flag, value in selection.items():
            if value is not None:
                raise UserError(f"--panel says which tasks there are; leave --{flag} out.")


def file_name(environment: str) -> str:
    """An environment's name as a file name: `affine:sat` is affine-sat."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", environment).lstrip(".-")  # a path such as ../x.py:C makes no hidden file


def settings_by_environment(settings: EvalSettings, environments: Sequence[str]) -> list[EvalSettings]:
    """Return the settings of one evaluation per environment; with several, `out` and `panel` are folders of results."""
    names = list(dict.fromkeys(environments))
    if len(names) < 2:
        return [replace(settings, environment=name) for name in names]
    out = None if settings.out is None else Path(settings.out)
    if out is not None and (out.suffix == ".json" or out.is_file()):
        raise UserError(f"--out {out}: several environments give a folder of results; name a folder.")
    if isinstance(settings.panel, Panel) or (settings.panel is not None and not Path(settings.panel).is_dir()):
        raise UserError(f"--panel {settings.panel}: for several environments, name the folder of another --out.")
    return [
        replace(settings, environment=name, out=None if out is None else out / f"{file_name(name)}.json")
        for name in names
    ]
