"""Run an evaluation: a policy's attempts at a panel, scored; run again, it continues where it stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from practicum.chat.response_format import read_response_format
from practicum.data.collection import Collection
from practicum.data.run_folder import locked, resolve_model
from practicum.data.run_response_format import run_response_format
from practicum.data.task_overlap import num_shared, read_train_tasks
from practicum.engines.server_check import check_server
from practicum.evaluation import policy_ref
from practicum.evaluation.attempt_log import AttemptLog
from practicum.evaluation.panel import Panel
from practicum.evaluation.policy_ref import PolicyRef
from practicum.evaluation.result import EvalResult
from practicum.evaluation.settings import EvalSettings
from practicum.rollout_settings import policy_identity
from practicum.trajectory import Trajectory
from practicum.utils.concurrency import run_async
from practicum.utils.tables import progress_label
from practicum.utils.terminal import Progress


class EvalRunner:
    """One evaluation: the policy and the panel are resolved at once, the model is loaded by `run`."""

    def __init__(self, settings: EvalSettings) -> None:
        settings.check()
        self.policy = policy_ref.find(settings.policy, settings.url, settings.base, settings.make_environment())
        panel = settings.make_panel()
        self.settings = replace(settings, seed=panel.seed)
        recorded = recorded_settings(self.settings, self.policy, panel)
        name = settings.name or settings.policy
        self.log = AttemptLog(name, settings.environment, panel, settings.attempts_per_task, recorded)
        if settings.run_folder is not None and settings.out is not None:
            about = {"run_id": Path(settings.out).stem, "experiment": "eval", "mode": self.policy.stage, "policy": name}
            self.log.collection = Collection(settings.run_folder / "episodes", self.log.planned, recorded, about)

    def warnings(self) -> list[str]:
        """Sentences on what a reader of the result should know."""
        return [warning for warning in (self.overlap_warning(), self.form_warning()) if warning is not None]

    def form_warning(self) -> str | None:
        """A sentence where the policy was trained under constrained decoding, and its replies are free here."""
        run = self.policy.run
        if run is None or self.settings.reply_form is not None:
            return None
        if read_response_format(run_response_format(Path(run)), "agent.response_format") is None:
            return None
        return (
            f"'{run}' was trained under constrained decoding, which keeps the form of replies for the model, and here "
            f"they are free; --response-format {run} evaluates it as it was trained."
        )

    def overlap_warning(self) -> str | None:
        """A sentence where tasks of the panel are among those that the policy was trained on."""
        trained = read_train_tasks(Path(self.policy.run)) if self.policy.run is not None else set()
        count = num_shared(self.log.panel.tasks, trained) if trained else 0
        if not count:
            return None
        return f"{count} of {len(self.log.panel.tasks)} tasks of the panel are training tasks of '{self.policy.run}'."

    def check_policy(self) -> None:
        """Refuse a server, or a model's tokenizer, that is not there, without loading a model."""
        if self.settings.url is not None:
            check_server(self.settings.url, self.policy.name)
        local = self.policy.stage not in ("server", "scripted")
        (self.policy if local else resolve_model(self.settings.tokenizer)).load_tokenizer()

    async def run(self, progress: bool = True) -> EvalResult:
        """Run the attempts that have no result yet; write result, episodes and panel where `out` is set."""
        folder = self.settings.run_folder if self.settings.out is not None else None
        with contextlib.nullcontext() if folder is None else locked(folder, "choose another --out"):
            return await self._run(progress)

    async def _run(self, progress: bool) -> EvalResult:
        self.log.load_existing()
        missing = self.log.missing()
        if missing:
            await self._run_missing(progress)
        result = self.log.finish()
        if self.settings.out is not None and self.settings.run_folder is not None:
            self.log.panel.write(self.settings.run_folder / "panel.json")
            result.write(Path(self.settings.out), self.settings.level)
        return result

    async def _run_missing(self, progress: bool) -> None:
        settings, missing = self.settings, self.log.missing()
        if settings.url is not None:
            check_server(settings.url, self.policy.name)
        setup = self.policy.make_setup(settings, settings.default_temperature)
        provenance = {**setup.provenance, "policy": settings.policy, "panel": self.log.panel.hash}
        if self.log.collection is not None:
            provenance["collect"] = self.log.collection.hash
        try:
            with Progress(progress_label("eval", self.log.policy), len(missing), "episodes", shown=progress) as line:

                def on_done(episode: Trajectory) -> None:
                    self.log.record(episode)
                    line.advance()

                await setup.stream(
                    self.log.planned,
                    missing,
                    round_size=settings.round_size,
                    read=self.log.read,
                    on_done=on_done,
                    make_environment=self.log.timed(setup.make_environment),
                    concurrency=settings.concurrency,
                    retries=1,
                    provenance=provenance,
                )
        finally:
            await setup.close()


def evaluate(settings: EvalSettings, *, progress: bool = True) -> EvalResult:
    """Score one policy in one environment. `progress` shows a line on stderr."""
    (result,) = evaluate_all([settings], progress=progress)
    return result


def evaluate_all(
    settings: Sequence[EvalSettings],
    *,
    progress: bool = True,
    on_result: Callable[[EvalRunner, EvalResult], None] | None = None,
) -> list[EvalResult]:
    """Evaluate one after the other. All policies and panels are resolved before the first episode runs.

    Of several, the policies without a result file yet are also checked first, so that a wrong name in the last of them
    does not wait for the others. `on_result` is called after each evaluation.
    """
    runners = [EvalRunner(item) for item in settings]
    for runner in runners if len(runners) > 1 else ():
        if runner.settings.out is None or not Path(runner.settings.out).is_file():
            runner.check_policy()
    results = []
    for runner in runners:
        results.append(run_async(runner.run(progress)))
        if on_result is not None:
            on_result(runner, results[-1])
    return results


def recorded_settings(settings: EvalSettings, policy: PolicyRef, panel: Panel) -> dict[str, Any]:
    """What a result depends on besides the panel; a change in any of these is another evaluation."""
    sampling = settings.sampling(settings.default_temperature)
    return {
        "policy": policy_identity(policy.name, settings.url),
        "stage": policy.stage,
        **({"base": policy.model} if policy.adapter else {}),
        **({"run": policy.run} if policy.run else {}),
        **({"url": settings.url} if settings.url else {}),
        "panel": panel.hash,
        "seed": panel.seed,
        "rules": settings.rules,
        **settings.agent_record(panel),
        "format": settings.format,
        "template": settings.template,
        "tokenizer": settings.tokenizer,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        **settings.device_record(),
        **settings.roles_record,
        **settings.round_record,
        **settings.decoding_record,
        **settings.external_record,
        **settings.asked_record,
    }
