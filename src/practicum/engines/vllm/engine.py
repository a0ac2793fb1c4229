"""The vLLM engine: prompts as ids to a server, ids and log-probs back, and a check that each weight update arrived.

The server is one that already runs, or a child process that is started, and started again when it dies. A LoRA policy
is loaded at run time under a name that was never used before; full weights are reloaded in place where that is seen to
work, and otherwise the server is started again on the new folder. In each case the canary decides whether the weights
arrived.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from practicum.chat.renderer import Renderer
from practicum.config.actor_rollout_ref import VLLMConfig
from practicum.config.fields import default_of
from practicum.engines.base import Generation, Request, Sampling, Weights
from practicum.engines.canary import PROMPTS, REPLY_TOKENS, Canary, CanaryReport, Probe, ProbeLogprobs
from practicum.engines.local.runner import STOP_WINDOW
from practicum.engines.local.sampling import is_filtered
from practicum.engines.vllm.client import VLLMClient
from practicum.engines.vllm.protocol import PendingCall, cut_reply
from practicum.engines.vllm.server import KEY, ServerSettings
from practicum.environment import Message
from practicum.errors import ContextFull, EngineError, UserError
from practicum.trajectory import ActionSource
from practicum.utils.arrays import FloatArray
from practicum.utils.concurrency import in_thread, in_thread_with_slots, slot


class WeightUpdateError(EngineError, UserError):
    """A weight update did not arrive: every further reply would be another policy's, so the run stops."""


@dataclass(frozen=True)
class VLLMSettings:
    """`url` of a running server, or None to start one by `server`. `base` is the model that adapters are for.

    Policies are written into `folder` for the server to read, and the canary's reports beside them. `canary_limit` is
    the largest mean difference of log-probs per token between engine and learner; `timeout` is in seconds.
    """

    base: str
    folder: Path
    server: ServerSettings | None = None
    url: str | None = None
    max_num_seqs: int = 64
    canary_limit: float = default_of(VLLMConfig, "canary_limit")
    timeout: float = 600.0


@dataclass(frozen=True)
class ServedPolicy:
    """The weights that replies come from: their version, the name they are served under, and the folder of their files.

    `salt` separates their keys and values from those of any other version in the server's prefix cache.
    """

    version: int
    name: str
    folder: Path
    salt: str
    is_adapter: bool


class VLLMEngine:
    """Ids in, ids and log-probs out, over HTTP; at most `max_num_seqs` requests at once."""

    name = "vllm"

    def __init__(self, renderer: Renderer, settings: VLLMSettings) -> None:
        self.renderer = renderer
        self.settings = settings
        self.client = VLLMClient(renderer, settings.base, settings.url, settings.server, settings.timeout)
        self.canary = Canary(settings.canary_limit)
        self.reports: list[CanaryReport] = []
        self.logprobs_are_processed = False
        """Whether the server's log-probs are of the distribution that it samples from, after temperature and top_k."""
        self._policy: ServedPolicy | None = None
        self._reload_works = True
        self._num_running = 0
        self._slots = threading.BoundedSemaphore(max(1, settings.max_num_seqs))

    # -- replies ----------------------------------------------------------------------------

    async def generate(self, request: Request) -> Generation:
        sampling, context = request.sampling, self.client.context
        if self._policy is None:
            raise EngineError("the engine has no weights: none were loaded, or it was closed")
        if not request.ids:
            raise EngineError("the prompt is empty")
        if len(request.ids) >= context:
            raise ContextFull(f"the prompt has {len(request.ids)} tokens; the server's window is {context}")
        if any(len(text) > STOP_WINDOW for text in sampling.stop):
            raise UserError(f"Stop strings may have at most {STOP_WINDOW} characters.")
        if request.response_format is not None:
            raise UserError("The vllm engine has no response formats; use actor_rollout_ref.rollout.name=local.")
        if not self.logprobs_are_processed and (sampling.temperature not in (0.0, 1.0) or is_filtered(sampling)):
            raise UserError(
                f"The server at {self.client.url} gives log-probs of another distribution than it samples from; "
                "start it with --logprobs-mode processed_logprobs, or sample at temperature 1 without top_k and top_p."
            )
        call = PendingCall()
        self._num_running += 1
        try:
            return await in_thread_with_slots(self._generate, request, call)
        except asyncio.CancelledError:
            call.abort()
            raise
        finally:
            self._num_running -= 1

    def _generate(self, request: Request, call: PendingCall) -> Generation:
        sampling, end_ids = request.sampling, self.renderer.end_ids
        with slot(self._slots):
            if call.aborted:
                raise EngineError("the request was cancelled")
            self.client.restart_if_dead(self._restore)
            policy = self._policy
            if policy is None:
                raise EngineError("the engine was closed")
            choice = self.client.complete(policy.name, policy.salt, request.ids, sampling, end_ids, call)
        full = len(request.ids) + sampling.max_tokens > self.client.context
        count, reason = cut_reply(
            self.renderer.tokenizer, choice.ids, end_ids, sampling, choice.finish_reason, full
        )  # fmt: skip
        return Generation(
            ids=choice.ids[:count],
            logprobs=choice.logprobs[:count],
            stop_reason=reason,
            policy_version=policy.version,
            source=ActionSource.POLICY,
            prompt_cached=choice.num_cached_tokens,
        )

    def end_session(self, session: str) -> None:
        return None

    async def close(self) -> None:
        policy, self._policy = self._policy, None
        if policy is not None and policy.is_adapter and self.client.server is None:
            await in_thread(self.client.unload_adapter, policy.name)
        await in_thread(self.client.close)
        if policy is not None:
            shutil.rmtree(policy.folder, ignore_errors=True)

    # -- updates ----------------------------------------------------------------------------

    async def update_weights(self, version: int, weights: Weights) -> None:
        """Load the weights and check that they arrived. The same version with the same weights is left as it is."""
        if self._num_running:
            raise EngineError("weights changed while requests were under way")
        previous, started = self._policy, time.perf_counter()
        unchanged = previous is not None and previous.version == version
        if unchanged and self.canary.is_unchanged(_expected(weights, self.canary.probes)):
            return
        folder = self._write(version, weights)
        load = self._load_adapter if (folder / "adapter_config.json").is_file() else self._load_model
        try:
            try:
                policy, report = await load(version, folder, weights)
            except EngineError:
                if self.client.alive:
                    raise
                policy, report = await load(version, folder, weights)  # the server died; once more, on a new one
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, EngineError) and not isinstance(error, UserError):
                raise WeightUpdateError(
                    f"The update to version {version} did not reach the engine: {error}."
                ) from error
            raise
        self._policy = policy
        self._log_report(report, policy, time.perf_counter() - started)
        if previous is not None:
            if previous.is_adapter:
                await in_thread(self.client.unload_adapter, previous.name)
            shutil.rmtree(previous.folder, ignore_errors=True)

    def _write(self, version: int, weights: Weights) -> Path:
        """Write the policy into a folder that was never there before, and return that."""
        parent = self.settings.folder.resolve()
        try:
            if self._policy is None:  # what a run that was killed left behind
                for stale in parent.glob("v*-*"):
                    shutil.rmtree(stale, ignore_errors=True)
            folder = parent / f"v{version}-{secrets.token_hex(4)}"
            weights.write(folder)
        except (OSError, SafetensorError) as error:
            raise UserError(f"Cannot write the policy into '{parent}' ({error}); free some space.") from error
        return folder

    async def _load_adapter(self, version: int, folder: Path, weights: Weights) -> tuple[ServedPolicy, CanaryReport]:
        """Load an adapter under a new name, beside the one before it."""
        if not self.client.alive:
            rank = int(json.loads((folder / "adapter_config.json").read_text())["r"])
            await in_thread(self.client.start, self.settings.base, rank)
        policy = ServedPolicy(version, _fresh_name(version), folder, secrets.token_hex(8), True)
        await in_thread(self.client.load_adapter, policy.name, folder)
        try:
            return policy, await self._check_arrival(policy, weights)
        except WeightUpdateError:
            await in_thread(self.client.unload_adapter, policy.name)
            raise

    async def _load_model(self, version: int, folder: Path, weights: Weights) -> tuple[ServedPolicy, CanaryReport]:
        """Load full weights: in place if the canary agrees, else by starting the server again on the folder."""
        if self.client.server is None:
            raise UserError(
                f"A running server ({KEY}.url) can be given adapters, not whole models: set "
                f"actor_rollout_ref.model.lora_rank (say 16), or {KEY}.python instead of the url to have one started."
            )
        policy = ServedPolicy(version, self.client.model_name, folder, secrets.token_hex(8), False)
        if self.client.alive and self._reload_works and await in_thread(self.client.reload_weights, folder):
            try:
                return policy, await self._check_arrival(policy, weights)
            except WeightUpdateError:
                self._reload_works = False  # seen on CPU: an output layer tied to the embedding stays the old one
        await in_thread(self.client.start, str(folder), None)
        policy = replace(policy, name=self.client.model_name, salt=secrets.token_hex(8))
        return policy, await self._check_arrival(policy, weights)

    def _restore(self) -> None:
        """Load the current weights into a server that was started again."""
        previous = self._policy
        if previous is None:
            raise EngineError("the engine was closed")
        policy = replace(previous, name=self.client.model_name, salt=secrets.token_hex(8))
        if previous.is_adapter:
            policy = replace(policy, name=_fresh_name(previous.version))
            self.client.load_adapter(policy.name, policy.folder)
        if not self.canary.has_accepted_weights(self._score_probes(policy, self.canary.probes)):
            raise UserError(f"Version {previous.version} did not reach the vLLM server that was started again.")
        self._policy = policy

    # -- the canary -------------------------------------------------------------------------

    async def _check_arrival(self, policy: ServedPolicy, weights: Weights) -> CanaryReport:
        """Return the canary's report on a policy that was just loaded; raise WeightUpdateError where it is lost."""
        if not self.logprobs_are_processed:
            self.logprobs_are_processed = await in_thread(self._gives_processed_logprobs, policy)
        sampled = await in_thread(self._sample_probes, policy)
        probes = tuple(probe for probe, _ in sampled)
        fresh = ProbeLogprobs(_expected(weights, probes), _joined([values for _, values in sampled]))
        rescored: ProbeLogprobs | None = None
        if self.canary.probes:
            returned = await in_thread(self._score_probes, policy, self.canary.probes)
            rescored = ProbeLogprobs(_expected(weights, self.canary.probes), returned)
        report = self.canary.judge(policy.version, fresh, rescored)
        if report.verdict == "lost":
            self._log_report(report, policy, 0.0)
            raise WeightUpdateError(
                f"The update to version {policy.version} did not reach the engine: {report.reason}."
            )
        self.canary.accept(fresh, rescored)
        if report.verdict != "too small to tell":
            returned = await in_thread(self._score_probes, policy, probes)
            self.canary.set_probes(probes, ProbeLogprobs(fresh.expected, returned))
        return report

    def _log_report(self, report: CanaryReport, policy: ServedPolicy, seconds: float) -> None:
        self.reports.append(report)
        self.settings.folder.mkdir(parents=True, exist_ok=True)
        line = {**asdict(report), "served": policy.name, "seconds": round(seconds, 3)}
        with (self.settings.folder / "canary.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _prompts(self) -> list[tuple[int, ...]]:
        rendered = (self.renderer.start([Message("user", question)]) for question in PROMPTS)
        prompts = [tuple(token for span in spans for token in span.ids) for spans in rendered]
        return [prompt[-max(1, self.client.context - REPLY_TOKENS - 1) :] for prompt in prompts]

    def _sample_probes(self, policy: ServedPolicy) -> list[tuple[Probe, FloatArray]]:
        """Return replies to the fixed prompts and their log-probs, sampled in the same way as rollouts."""

        def one(prompt: tuple[int, ...], seed: int) -> tuple[Probe, FloatArray]:
            sampling = Sampling(max_tokens=REPLY_TOKENS, seed=seed)
            choice = self.client.complete(policy.name, policy.salt, prompt, sampling)
            return Probe(prompt, choice.ids), np.array(choice.logprobs)

        prompts = self._prompts()
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(one, prompts, range(len(prompts))))

    def _score_probes(self, policy: ServedPolicy, probes: Sequence[Probe]) -> FloatArray:
        """Return the engine's log-probs of given replies, [tokens].

        One at a time: vLLM 0.32 on CPU crashes on prompt log-probs under an adapter when it serves other requests too.
        """
        values = []
        for probe in probes:
            ids = (*probe.prompt, *probe.reply)
            choice = self.client.complete(policy.name, policy.salt, ids, Sampling(max_tokens=1), prompt_logprobs=0)
            if len(choice.prompt_logprobs) != len(ids) - 1:
                raise EngineError("the server does not give log-probs of a prompt (prompt_logprobs)")
            values.append(np.array(choice.prompt_logprobs[len(probe.prompt) - 1 :]))
        return _joined(values)

    def _gives_processed_logprobs(self, policy: ServedPolicy) -> bool:
        """Whether log-probs are of the distribution sampled from: with top_k=1 the one token left has log-prob 0."""
        sampling = Sampling(2.0, top_k=1, max_tokens=16)
        choice = self.client.complete(policy.name, policy.salt, self._prompts()[0], sampling)
        return max(abs(value) for value in choice.logprobs) < 1e-6


def _fresh_name(version: int) -> str:
    return f"policy-v{version}-{secrets.token_hex(4)}"


def _expected(weights: Weights, probes: Sequence[Probe]) -> FloatArray:
    return _joined([np.array(weights.score(probe.prompt, probe.reply), dtype=np.float64) for probe in probes])


def _joined(values: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate(values) if values else np.zeros(0)
