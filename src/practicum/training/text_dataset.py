"""Samples from JSON-lines files of text. Collected episodes keep their ids; only text from a file is tokenised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from practicum.chat.renderer import MARKER, Renderer
from practicum.chat.templates import TEMPLATES
from practicum.data.jsonl import check_row, read_objects
from practicum.environment import Message
from practicum.errors import UserError
from practicum.training.micro_batches import Sample

REPLY_FIELDS = ("action", "response", "completion")
"""Fields that may hold the reply; the first that a row has is taken."""
ROLES = ("system", "user", "assistant", "tool")


class PromptTokenizer:
    """Tokenises the prompts of a file.

    A prompt that ends with the template's generation prompt was rendered by `practicum export` and is used as it is;
    any other text becomes a user message.
    """

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.generation_prompt = _generation_prompt(renderer, renderer.template)
        self.other_templates = {_generation_prompt(renderer, text): name for name, text in TEMPLATES.items()}

    def ids(self, prompt: str, location: str) -> tuple[int, ...]:
        if prompt.endswith(self.generation_prompt):
            return tuple(self.renderer.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        other = next((name for end, name in self.other_templates.items() if end.strip() and prompt.endswith(end)), None)
        if other is not None:
            raise UserError(
                f"{location}: 'prompt' was rendered under the template '{other}', which is not this model's; "
                "choose that template, or export again with --prompt plain."
            )
        return tuple(i for span in self.renderer.start((Message("user", prompt),)) for i in span.ids)


def reply_sample(prompt: Sequence[int], reply: Sequence[int]) -> Sample:
    """A prompt and a reply to it; the mask has the tokens of the reply."""
    return _sample([(prompt, False), (reply, True)])


def read_demonstration_rows(path: Path, renderer: Renderer) -> list[tuple[str, Sample]]:
    """SFT samples of a file, each with its task id; rows have a prompt and an action (or response, or completion),
    or messages."""
    prompts = PromptTokenizer(renderer)
    samples: list[tuple[str, Sample]] = []
    for line_number, row in read_objects(path):
        location = f"'{path}', line {line_number}"
        sample = _conversation(row, renderer, location) if "messages" in row else _action(row, prompts, location)
        samples.append((str(row.get("task_id", location)), sample))
    return samples


def _action(row: Mapping[str, Any], prompts: PromptTokenizer, location: str) -> Sample:
    reply = next((field for field in REPLY_FIELDS if field in row), REPLY_FIELDS[0])
    checked = check_row(row, ("prompt", reply), location)
    before = prompts.ids(str(checked["prompt"]), location)
    return _with_weights(reply_sample(before, prompts.renderer.encode_reply(str(checked[reply]))))


def _conversation(row: Mapping[str, Any], renderer: Renderer, location: str) -> Sample:
    """A conversation in which the assistant's messages are trained, except those with `train: false`."""
    tools = row.get("tools") or ()
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise UserError(f"{location}: 'tools' must be a list of tool descriptions.")
    pieces: list[tuple[Sequence[int], bool]] = []
    ids: list[int] = []
    pending: list[Message] = []
    for message, trained in _messages(row["messages"], location):
        if message.role != "assistant":
            pending.append(message)
            continue
        if not pending:
            raise UserError(f"{location}: 'messages' has a reply with nothing before it to reply to.")
        spans = renderer.start(pending, tools) if not ids else renderer.extend(ids, pending)
        reply = renderer.encode_reply(message.content)
        new = [token for span in spans for token in span.ids]
        pieces += [(new, False), (reply, trained)]
        ids += [*new, *reply]
        pending = []
    sample = _with_weights(_sample(pieces))
    if not sample.mask.any():
        raise UserError(f"{location}: 'messages' has no reply of an assistant to learn from.")
    return sample


def _messages(value: object, location: str) -> Iterator[tuple[Message, bool]]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{location}: 'messages' must be a list of messages.")
    for index, item in enumerate(value, 1):
        where = f"{location}: message {index}"
        if not isinstance(item, Mapping) or item.get("role") not in ROLES:
            raise UserError(f"{where} needs a 'role', one of {', '.join(ROLES)}.")
        content, trained, name = item.get("content"), item.get("train", item["role"] == "assistant"), item.get("name")
        if not isinstance(content, str) or (item["role"] == "assistant" and not content.strip()):
            raise UserError(f"{where}: 'content' must be a text{' that is not empty' if content == '' else ''}.")
        if not isinstance(trained, bool) or (trained and item["role"] != "assistant"):
            raise UserError(f"{where}: 'train' must be true or false, and true for an assistant's replies only.")
        if name is not None and not isinstance(name, str):
            raise UserError(f"{where}: 'name' must be a text.")
        yield Message(str(item["role"]), content, name=name), trained


def _sample(pieces: Iterable[tuple[Sequence[int], bool]]) -> Sample:
    ids: list[int] = []
    mask: list[bool] = []
    for part, trained in pieces:
        ids += part
        mask += [trained] * len(part)
    zeros = np.zeros(len(ids), dtype=np.float32)
    return Sample(tuple(ids), np.asarray(mask, dtype=np.bool_), zeros, zeros, zeros)


def _with_weights(sample: Sample) -> Sample:
    weights = sample.mask.astype(np.float32)
    return Sample(sample.ids, sample.mask, weights, sample.advantages, sample.sampling_logprobs)


def _generation_prompt(renderer: Renderer, template: str) -> str:
    """What a template writes after the last message, before the reply."""
    without, with_prompt = (
        str(
            renderer.tokenizer.apply_chat_template(
                [{"role": "user", "content": MARKER}], chat_template=template, add_generation_prompt=on, tokenize=False
            )
        )
        for on in (False, True)
    )
    return with_prompt.removeprefix(without) if with_prompt != without else with_prompt.rpartition(MARKER)[2]
