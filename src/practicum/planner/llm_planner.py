"""`Planner`: decisions of a language model with the paper's prompt and JSON, its defaults and its safe action."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.environment import Message
from practicum.environments.htdag.actions import (
    SAFE_ACTION,
    UNKNOWN_CONFIDENCE,
    HTDAGAction,
    UnreadableAction,
    parse_action,
)
from practicum.environments.htdag.plan_text import PROMPTS
from practicum.environments.htdag.planning import MAX_STEPS_PER_EPISODE, HTDAGState, PlanningEpisode
from practicum.environments.htdag.task_dag import TaskDAG
from practicum.errors import UserError, did_you_mean
from practicum.planner.llm_client import JSON_REPLY, LLMClient, OpenAIClient, confidence_of
from practicum.planner.sanitise import sanitise_request

logger = logging.getLogger(__name__)
MAX_REPLY_TOKENS: Mapping[str, int] = {"short": 64, "json": 512}
"""Tokens of a reply to each prompt, for a model on this machine."""


def check_prompt(prompt: str) -> None:
    """Raise UserError for a prompt that planners do not have."""
    if prompt not in PROMPTS:
        raise UserError(f"A planner has no prompt '{prompt}'.{did_you_mean(prompt, PROMPTS)}")


class Planner:
    """A planner that calls a language model for each decision. The model's client is made once, when first needed."""

    def __init__(
        self,
        llm_engine_name: str = "gpt-4o-mini",
        toolbox_metadata: Mapping[str, Any] | None = None,
        available_tools: Sequence[str] = (),
        verbose: bool = False,
        temperature: float = 0.7,
        llm_client: LLMClient | None = None,
        prompt: str = "json",
    ) -> None:
        """`llm_client` replaces the OpenAI-compatible server that would serve `llm_engine_name`.

        `prompt` is `json`, the paper's, or `short`, the one that small models are trained with.
        """
        check_prompt(prompt)
        self.prompt = prompt
        self.llm_engine_name, self.temperature, self.verbose = llm_engine_name, temperature, verbose
        self.toolbox_metadata, self.available_tools = dict(toolbox_metadata or {}), tuple(available_tools)
        self._llm_client = llm_client

    @classmethod
    def from_checkpoint(cls, path: str | Path, prompt: str = "short", temperature: float = 0.0) -> Planner:
        """Return the planner of a trained model: a run's best model, a checkpoint, an adapter or a model's folder."""
        check_prompt(prompt)
        if not Path(path).is_dir():
            raise UserError(f"There is no folder '{path}'; give a run, a checkpoint or a model's folder.")
        from practicum.planner.local_client import LocalClient  # imports torch: only for those who have a model here

        client = LocalClient(str(path), temperature, max_tokens=MAX_REPLY_TOKENS[prompt])
        return cls(client.ref.name, temperature=temperature, llm_client=client, prompt=prompt)

    @property
    def llm_client(self) -> LLMClient:
        if self._llm_client is None:
            self._llm_client = OpenAIClient(self.llm_engine_name, temperature=self.temperature)
        return self._llm_client

    async def _sample_action(self, state: HTDAGState) -> HTDAGAction:
        """Ask the model for the next decision; a reply that cannot be read is the safe action."""
        prompt = self._build_decomposition_prompt(state)
        response_format = JSON_REPLY if self.prompt == "json" else None
        reply = await self.llm_client.reply([Message("user", prompt)], response_format=response_format)
        if self.verbose:
            logger.warning("planner prompt:\n%s\nplanner reply:\n%s", prompt, reply.text)
        return self._parse_action_from_response(reply.text, state, confidence_of(reply))

    def _build_decomposition_prompt(self, state: HTDAGState) -> str:
        prompt = PROMPTS[self.prompt](state.user_request, state.current_dag, state.step_count)
        if not self.available_tools:
            return prompt
        tools = {name: self.toolbox_metadata.get(name, {}) for name in self.available_tools}
        return f"{prompt}\nTools that steps may use: {json.dumps(tools, default=str)}\n"

    def _parse_action_from_response(
        self, response: str, state: HTDAGState, confidence: float = UNKNOWN_CONFIDENCE
    ) -> HTDAGAction:
        try:
            return parse_action(response, confidence)
        except UnreadableAction as error:
            logger.error("the planner's reply at step %d cannot be read: %s", state.step_count, error)
            return SAFE_ACTION

    async def plan(self, request: str, max_steps: int = MAX_STEPS_PER_EPISODE) -> TaskDAG:
        """Return the DAG that the model's decisions make of a request; UserError as of `HTDAGPlanner`."""
        episode = PlanningEpisode(prompt=self.prompt, max_steps=max_steps)
        episode.reset(sanitise_request(request))
        for _ in range(max_steps):
            action = await self._sample_action(episode.state)
            episode.state.step_count += 1
            episode.state.llm_call_count += 1
            episode.state.decomposition_history.append(action.to_dict())
            if not action.decompose_further:
                break
            episode.apply(action)
        return episode.dag
