"""Structured generation: a model's reply as a value of a pydantic type.

The JSON schema is passed as `response_format`, which engines that support it enforce while they decode, and is also in
the prompt for those that do not. Of a reply the text from the first `{` to the last `}` is read.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from practicum.chat.renderer import Renderer
from practicum.data.run_folder import resolve_model
from practicum.engines.base import Sampling
from practicum.environment import ChatModel, Message, Usage
from practicum.environments.rubric.manager_prompt import extract_json
from practicum.errors import UserError
from practicum.models.loader import resolve_device
from practicum.policy import Policy
from practicum.rollout_setup import local_engine, served_engine

Response = TypeVar("Response", bound=BaseModel)
MAX_TOKENS = 4096
MAX_TRIES = 3
DEFAULT_MODEL = "gpt-4o"
TRUE = ("1", "true", "yes")


class StructuredOutputError(Exception):
    """A model did not reply with a valid value after all tries; `text` is its last reply, `usage` that of all tries."""

    def __init__(self, message: str, text: str, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.text, self.usage = text, usage or Usage(0, 0)


def make_model(
    model: str | None = None,
    use_local: bool | None = None,
    model_path: str | None = None,
    url: str | None = None,
    temperature: float = 1.0,
    max_tokens: int = MAX_TOKENS,
    dtype: str = "auto",
) -> Policy:
    """Return a model by name: one of a server, or with `use_local` one that is loaded here.

    `use_local` None follows USE_LOCAL_MODELS, `model_path` None LOCAL_MODEL_PATH, `url` None OPENAI_BASE_URL. `dtype`
    is of a local model: `auto` is bfloat16 on a GPU and float32 on a CPU.
    """
    sampling = Sampling(temperature, max_tokens=max_tokens)
    if use_local is None:
        use_local = os.environ.get("USE_LOCAL_MODELS", "").lower() in TRUE
    if use_local:
        path = model_path or os.environ.get("LOCAL_MODEL_PATH") or model
        if not path:
            raise UserError("A local model needs model_path (or LOCAL_MODEL_PATH): a folder, a run or a hub id.")
        engine, renderer = local_engine(
            resolve_model(path), resolve_device(dtype=dtype, dtype_key="dtype", may_quantise=True)
        )
        return Policy(engine, renderer, sampling=sampling)
    base = url or os.environ.get("OPENAI_BASE_URL")
    if not base:
        raise UserError("A server's model needs a URL (OPENAI_BASE_URL); or use_local=True with a model_path.")
    renderer = Renderer(resolve_model("tiny").load_tokenizer())
    return Policy(served_engine(base, model or DEFAULT_MODEL, "hf", renderer), renderer, sampling=sampling)


def response_format(response_type: type[BaseModel]) -> dict[str, Any]:
    """Return the chat completions API's `response_format` of a type."""
    return {
        "type": "json_schema",
        "json_schema": {"name": response_type.__name__, "schema": response_type.model_json_schema()},
    }


def schema_prompt(system_prompt: str, user_prompt: str, response_type: type[BaseModel]) -> tuple[Message, ...]:
    """Return the messages of a structured call: the schema stands in the prompt."""
    schema = json.dumps(response_type.model_json_schema())
    question = f"{user_prompt}\n\nRespond with JSON matching:\n{schema}"
    return (
        (Message("system", system_prompt), Message("user", question)) if system_prompt else (Message("user", question),)
    )


async def generate_structured(
    system_prompt: str,
    user_prompt: str,
    response_type: type[Response],
    temperature: float | None = None,
    seed: int | None = None,
    return_usage: bool = False,
    *,
    model: ChatModel | str | None = None,
    use_local: bool | None = None,
    model_path: str | None = None,
    max_tries: int = MAX_TRIES,
) -> Any:
    """Return a value of `response_type` written by a model; with `return_usage` the value and the tokens used.

    `model` is a policy, or a name (see `make_model`; a local one is loaded for this call, so make it once for several).
    `temperature` None is the policy's own, or 1 for a model by name. A reply that is not valid is tried again with
    other random numbers; then it is a `StructuredOutputError`.
    """
    if model is None or isinstance(model, str):
        configured_model: ChatModel = make_model(
            model, use_local, model_path, temperature=1.0 if temperature is None else temperature
        )
    elif use_local or model_path:
        raise UserError("generate_structured was given a policy as model, and use_local or model_path; leave one out.")
    else:
        configured_model = model if temperature is None else with_temperature(model, temperature)
    try:
        value, usage = await _ask(configured_model, system_prompt, user_prompt, response_type, seed, max_tries)
    finally:
        if isinstance(configured_model, Policy) and (model is None or isinstance(model, str)):
            await configured_model.engine.close()
    return (value, usage) if return_usage else value


def with_temperature(model: ChatModel, temperature: float) -> Policy:
    """Return a policy that samples at another temperature, on the same engine."""
    if not isinstance(model, Policy):
        raise UserError(
            f"A {type(model).__name__} has a temperature of its own, which cannot be set; leave temperature out."
        )
    return replace(model, sampling=replace(model.sampling, temperature=temperature))


async def _ask(
    model: ChatModel, system_prompt: str, user_prompt: str, response_type: type[Response], seed: int | None, tries: int
) -> tuple[Response, Usage]:
    messages, format = schema_prompt(system_prompt, user_prompt, response_type), response_format(response_type)
    prompt_tokens = completion_tokens = cached_tokens = 0
    problem, text = "", ""
    for attempt in range(max(1, tries)):
        own_seed = None if seed is None and attempt == 0 else (seed or 0) + 7919 * attempt
        reply = await model.reply(messages, response_format=format, seed=own_seed)
        prompt_tokens += reply.usage.prompt_tokens
        completion_tokens += reply.usage.completion_tokens
        cached_tokens += reply.usage.cached_tokens
        text = reply.text
        try:
            value = response_type.model_validate_json(extract_json(text))
            return value, Usage(prompt_tokens, completion_tokens, cached_tokens)
        except ValidationError as error:
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    raise StructuredOutputError(
        f"the model's reply is no valid {response_type.__name__} after {tries} tries ({problem[:200]})",
        text,
        Usage(prompt_tokens, completion_tokens, cached_tokens),
    )
