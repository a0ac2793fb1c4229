"""The vLLM engine: ids out to a server, ids and log-probs back, and proof that each update reached it.

The server is one that already runs, or a child that is started, watched and started again. A LoRA policy
is loaded at run time under a name that was never used before; a policy of full weights is reloaded in
place where that is seen to work, and otherwise the server is started again on the new folder. Whichever
way, the canary decides whether the weights arrived.
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
from practicum.engines.base import Generation, Request, Sampling, Weights
from practicum.engines.canary import QUESTIONS, REPLY_TOKENS, Canary, Probe, Reading, Report
from practicum.engines.local.stop_strings import STOP_WINDOW
from practicum.engines.vllm.client import VLLMClient
from practicum.engines.vllm.protocol import Call, ending
from practicum.engines.vllm.server import KEY, ServerSettings
from practicum.environment import Message
from practicum.errors import ContextFull, EngineError, UserError
from practicum.trajectory import ActionSource, StopReason
from practicum.utils.arrays import FloatArray
from practicum.utils.threads import in_thread


class UpdateLost(EngineError, UserError):
    """An update that did not arrive: every reply from here on would be another policy's, so the run stops."""


@dataclass(frozen=True)
class VLLMSettings:
    """`url` of a running server, or None to start one by `server`. `base` is the model that adapters lie upon.

    `folder` is where policies are written for the server to read, and the canary's reports.
    """

    base: str
    folder: Path
    server: ServerSettings | None = None
    url: str | None = None
    max_num_seqs: int = 64
    canary_limit: float = 0.1
    timeout: float = 600.0


@dataclass(frozen=True)
class Policy:
    """The weights that replies come from: a version, the name it is served under, and where its files are.

    `salt` sets its keys and values apart from those of any other version in the server's prefix cache.
    """

    version: int
    served: str
    files: Path
    salt: str
    adapter: bool


class VLLMEngine:
    """Ids in, ids and log-probs out, over HTTP."""

    name = "vllm"

    def __init__(self, renderer: Renderer, settings: VLLMSettings) -> None:
        self.renderer = renderer
        self.settings = settings
        self.host = VLLMClient(renderer, settings.base, settings.url, settings.server, settings.timeout)
        self.canary = Canary(settings.canary_limit)
        self.reports: list[Report] = []
        self.processed = False
        """Whether the server's log-probs are those of the distribution sampled from."""
        self._policy: Policy | None = None
        self._reload_works = True
        self._under_way = 0
        self._slots = threading.BoundedSemaphore(max(1, settings.max_num_seqs))

    # -- replies ----------------------------------------------------------------------------

    async def generate(self, request: Request) -> Generation:
        sampling, context = request.sampling, self.host.context
        if self._policy is None:
            raise EngineError("the engine has no weights: none were adopted, or it was closed")
        if not request.ids:
            raise EngineError("the prompt is empty")
        if len(request.ids) >= context:
            raise ContextFull(f"the prompt has {len(request.ids)} tokens; the server's window is {context}")
        if any(len(text) > STOP_WINDOW for text in sampling.stop):
            raise UserError(f"Stop strings may have at most {STOP_WINDOW} characters.")
        if not self.processed and (sampling.temperature not in (0.0, 1.0) or sampling.top_k or sampling.top_p < 1):
            raise UserError(
                f"The server at {self.host.url} gives log-probs of another distribution than it samples from; "
                "start it with --logprobs-mode processed_logprobs, or sample at temperature 1 without top_k and top_p."
            )
        call = Call()
        self._under_way += 1
        try:
            return await in_thread(self._generate, request, call)
        except asyncio.CancelledError:
            call.abort()
            raise
        finally:
            self._under_way -= 1

    def _generate(self, request: Request, call: Call) -> Generation:
        sampling, ends = request.sampling, self.renderer.end_ids
        with self._slots:
            if call.aborted:
                raise EngineError("nobody waits for this reply any more")
            self.host.mend(self._restore)
            policy = self._policy
            if policy is None:
                raise EngineError("the engine was closed")
            choice = self.host.complete(policy.served, policy.salt, request.ids, sampling, ends, call)
        count, reason = ending(self.renderer.tokenizer, choice.ids, ends, sampling.stop)
        if reason is None and choice.finish == "length":
            full = len(request.ids) + sampling.max_tokens > self.host.context
            reason = StopReason.CONTEXT if full else StopReason.LENGTH
        return Generation(
            ids=choice.ids[:count],
            logprobs=choice.logprobs[:count],
            stop_reason=reason or (StopReason.STRING if sampling.stop else StopReason.END),
            policy_version=policy.version,
            source=ActionSource.POLICY,
            prompt_cached=choice.cached,
        )

    def end_session(self, session: str) -> None:
        return None

    async def close(self) -> None:
        policy, self._policy = self._policy, None
        if policy is not None and policy.adapter and self.host.server is None:
            await in_thread(self.host.unload, policy.served)
        await in_thread(self.host.close)
        if policy is not None:
            shutil.rmtree(policy.files, ignore_errors=True)

    # -- updates ----------------------------------------------------------------------------

    async def update_weights(self, version: int, weights: Weights) -> None:
        """Take the weights over, and prove it. The same version with the same weights is left as it is."""
        if self._under_way:
            raise EngineError("weights changed while requests were under way")
        held, begun = self._policy, time.perf_counter()
        if held and held.version == version and self.canary.unchanged(_expected(weights, self.canary.probes)):
            return
        files = self._write(version, weights)
        place = self._place_adapter if (files / "adapter_config.json").is_file() else self._place_model
        try:
            try:
                policy, report = await place(version, files, weights)
            except EngineError:
                if self.host.lives:
                    raise
                policy, report = await place(version, files, weights)  # it died of something; once more, on a new one
        except BaseException as error:
            shutil.rmtree(files, ignore_errors=True)
            if isinstance(error, EngineError) and not isinstance(error, UserError):
                raise UpdateLost(f"The update to version {version} did not reach the engine: {error}.") from error
            raise
        self._policy = policy
        self._write_down(report, policy, time.perf_counter() - begun)
        if held is not None:
            if held.adapter:
                await in_thread(self.host.unload, held.served)
            shutil.rmtree(held.files, ignore_errors=True)

    def _write(self, version: int, weights: Weights) -> Path:
        """The policy's files, in a folder that was never there before."""
        folder = self.settings.folder.resolve()
        try:
            if self._policy is None:  # what a run that was killed left behind
                for left in folder.glob("v*-*"):
                    shutil.rmtree(left, ignore_errors=True)
            files = folder / f"v{version}-{secrets.token_hex(4)}"
            weights.write(files)
        except (OSError, SafetensorError) as error:
            raise UserError(f"Cannot write the policy into '{folder}' ({error}); free some space.") from error
        return files

    async def _place_adapter(self, version: int, files: Path, weights: Weights) -> tuple[Policy, Report]:
        """Load an adapter under a name that no cache knows, beside the one before it."""
        if not self.host.lives:
            rank = int(json.loads((files / "adapter_config.json").read_text())["r"])
            await in_thread(self.host.begin, self.settings.base, rank)
        policy = Policy(version, _fresh_name(version), files, secrets.token_hex(8), True)
        await in_thread(self.host.load, policy.served, files)
        try:
            return policy, await self._prove(policy, weights)
        except UpdateLost:
            await in_thread(self.host.unload, policy.served)
            raise

    async def _place_model(self, version: int, files: Path, weights: Weights) -> tuple[Policy, Report]:
        """Full weights: reloaded in place if the canary agrees, else by a fresh start on the folder."""
        if self.host.server is None:
            raise UserError(
                f"A running server ({KEY}.url) can be given adapters, not whole models: set "
                f"actor_rollout_ref.model.lora_rank (say 16), or {KEY}.python instead of the url to have one started."
            )
        policy = Policy(version, self.host.served, files, secrets.token_hex(8), False)
        if self.host.lives and self._reload_works and await in_thread(self.host.reload, files):
            try:
                return policy, await self._prove(policy, weights)
            except UpdateLost:
                self._reload_works = False  # seen on CPU: an output layer tied to the embedding stays the old one
        await in_thread(self.host.begin, str(files), None)
        policy = replace(policy, served=self.host.served, salt=secrets.token_hex(8))
        return policy, await self._prove(policy, weights)

    def _restore(self) -> None:
        """Put the weights in force back on a server that was started again."""
        lost = self._policy
        if lost is None:
            raise EngineError("the engine was closed")
        policy = replace(lost, served=self.host.served, salt=secrets.token_hex(8))
        if lost.adapter:
            policy = replace(policy, served=_fresh_name(lost.version))
            self.host.load(policy.served, policy.files)
        if not self.canary.still_there(self._score_probes(policy, self.canary.probes)):
            raise UserError(f"Version {lost.version} did not reach the vLLM server that was started again.")
        self._policy = policy

    # -- the canary -------------------------------------------------------------------------

    async def _prove(self, policy: Policy, weights: Weights) -> Report:
        """The canary's word on a policy that was just placed."""
        if not self.processed:
            self.processed = await in_thread(self._gives_processed_logprobs, policy)
        sampled = await in_thread(self._sample_probes, policy)
        probes = tuple(probe for probe, _ in sampled)
        fresh = Reading(_expected(weights, probes), _joined([values for _, values in sampled]))
        held: Reading | None = None
        if self.canary.probes:
            answered = await in_thread(self._score_probes, policy, self.canary.probes)
            held = Reading(_expected(weights, self.canary.probes), answered)
        report = self.canary.judge(policy.version, fresh, held)
        if report.verdict == "lost":
            self._write_down(report, policy, 0.0)
            raise UpdateLost(f"The update to version {policy.version} did not reach the engine: {report.reason}.")
        self.canary.accept(fresh, held)
        if report.verdict != "too small to tell":
            answered = await in_thread(self._score_probes, policy, probes)
            self.canary.keep(probes, Reading(fresh.expected, answered))
        return report

    def _write_down(self, report: Report, policy: Policy, seconds: float) -> None:
        self.reports.append(report)
        self.settings.folder.mkdir(parents=True, exist_ok=True)
        line = {**asdict(report), "served": policy.served, "seconds": round(seconds, 3)}
        with (self.settings.folder / "canary.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _prompts(self) -> list[tuple[int, ...]]:
        rendered = (self.renderer.start([Message("user", question)]) for question in QUESTIONS)
        prompts = [tuple(token for span in spans for token in span.ids) for spans in rendered]
        return [prompt[-max(1, self.host.context - REPLY_TOKENS - 1) :] for prompt in prompts]

    def _sample_probes(self, policy: Policy) -> list[tuple[Probe, FloatArray]]:
        """Replies to the fixed prompts, by the very way that rollouts take."""

        def one(prompt: tuple[int, ...], seed: int) -> tuple[Probe, FloatArray]:
            sampling = Sampling(max_tokens=REPLY_TOKENS, seed=seed)
            choice = self.host.complete(policy.served, policy.salt, prompt, sampling)
            return Probe(prompt, choice.ids), np.array(choice.logprobs)

        prompts = self._prompts()
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(one, prompts, range(len(prompts))))

    def _score_probes(self, policy: Policy, probes: Sequence[Probe]) -> FloatArray:
        """The engine's own log-probs of given replies.

        One at a time: vLLM 0.32 on CPU dies of prompt log-probs under an adapter when it serves anything beside them.
        """
        values = []
        for probe in probes:
            whole = (*probe.prompt, *probe.reply)
            choice = self.host.complete(policy.served, policy.salt, whole, Sampling(max_tokens=1), prompt_logprobs=0)
            if len(choice.prompt_logprobs) != len(whole) - 1:
                raise EngineError("the server does not give log-probs of a prompt (prompt_logprobs)")
            values.append(np.array(choice.prompt_logprobs[len(probe.prompt) - 1 :]))
        return _joined(values)

    def _gives_processed_logprobs(self, policy: Policy) -> bool:
        """A distribution cut down to its likeliest token gives it log-prob 0, if log-probs are of that distribution."""
        sampling = Sampling(2.0, top_k=1, max_tokens=16)
        choice = self.host.complete(policy.served, policy.salt, self._prompts()[0], sampling)
        return max(abs(value) for value in choice.logprobs) < 1e-6


def _fresh_name(version: int) -> str:
    return f"policy-v{version}-{secrets.token_hex(4)}"


def _expected(weights: Weights, probes: Sequence[Probe]) -> FloatArray:
    return _joined([np.array(weights.score(probe.prompt, probe.reply), dtype=np.float64) for probe in probes])


def _joined(values: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate(values) if values else np.zeros(0)
