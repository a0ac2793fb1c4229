"""Rows of text to samples. Episodes of our own keep their ids; only what comes from a file has to be tokenised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from practicum.chat.renderer import MARKER, Renderer
from practicum.chat.templates import TEMPLATES
from practicum.data.export import BC_FIELDS
from practicum.data.jsonl import check_row, read_objects
from practicum.environment import Message
from practicum.errors import UserError
from practicum.training.micro_batches import Sample

ROLES = ("system", "user", "assistant", "tool")


class Prompts:
    """Prompts as a file has them. One that ends with the template's own opening of a reply is one that
    `practicum export` rendered, and is taken as it stands; any other text becomes the message of a user.
    """

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.opening = _opening(renderer, renderer.template)
        self.foreign = {_opening(renderer, text): known for known, text in TEMPLATES.items()}

    def ids(self, prompt: str, place: str) -> tuple[int, ...]:
        if prompt.endswith(self.opening):
            return tuple(self.renderer.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        other = next((known for end, known in self.foreign.items() if end.strip() and prompt.endswith(end)), None)
        if other is not None:
            raise UserError(
                f"{place}: 'prompt' was rendered under the template '{other}', which is not this model's; "
                "choose that template, or export again with --prompt plain."
            )
        return tuple(i for span in self.renderer.start((Message("user", prompt),)) for i in span.ids)


def reply_sample(before: Sequence[int], reply: Sequence[int]) -> Sample:
    """A reply after its prompt; only the reply is judged."""
    return _sample([(before, False), (reply, True)])


def read_demonstration_rows(path: Path, renderer: Renderer) -> list[tuple[str, Sample]]:
    """Imitation samples of a file, each with the task it is of: rows of prompt and action, or of messages."""
    prompts = Prompts(renderer)
    found: list[tuple[str, Sample]] = []
    for number, row in read_objects(path):
        place = f"'{path}', line {number}"
        sample = _conversation(row, renderer, place) if "messages" in row else _action(row, prompts, place)
        found.append((str(row.get("task_id", place)), sample))
    return found


def _action(row: Mapping[str, Any], prompts: Prompts, place: str) -> Sample:
    checked = check_row(row, BC_FIELDS[:2], place)
    before = prompts.ids(str(checked["prompt"]), place)
    return _weighed(reply_sample(before, prompts.renderer.encode_reply(str(checked["action"]))))


def _conversation(row: Mapping[str, Any], renderer: Renderer, place: str) -> Sample:
    """Every reply of an assistant is trained, unless its message says `train: false`; nothing else is."""
    tools = row.get("tools") or ()
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise UserError(f"{place}: 'tools' must be a list of tool descriptions.")
    pieces: list[tuple[Sequence[int], bool]] = []
    held: list[int] = []
    waiting: list[Message] = []
    for message, trained in _messages(row["messages"], place):
        if message.role != "assistant":
            waiting.append(message)
            continue
        if not waiting:
            raise UserError(f"{place}: 'messages' has a reply with nothing before it to reply to.")
        spans = renderer.start(waiting, tools) if not held else renderer.extend(held, waiting)
        reply = renderer.encode_reply(message.content)
        new = [token for span in spans for token in span.ids]
        pieces += [(new, False), (reply, trained)]
        held += [*new, *reply]
        waiting = []
    sample = _weighed(_sample(pieces))
    if not sample.mask.any():
        raise UserError(f"{place}: 'messages' has no reply of an assistant to learn from.")
    return sample


def _messages(found: object, place: str) -> Iterator[tuple[Message, bool]]:
    if not isinstance(found, list) or not found:
        raise UserError(f"{place}: 'messages' must be a list of messages.")
    for number, item in enumerate(found, 1):
        where = f"{place}: message {number}"
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
    nothing = np.zeros(len(ids), dtype=np.float32)
    return Sample(tuple(ids), np.asarray(mask, dtype=np.bool_), nothing, nothing, nothing)


def _weighed(sample: Sample) -> Sample:
    weights = sample.mask.astype(np.float32)
    return Sample(sample.ids, sample.mask, weights, sample.advantages, sample.sampling_logprobs)


def _opening(renderer: Renderer, template: str) -> str:
    """What a template writes after the last message for the reply to follow."""
    shut, opened = (
        str(
            renderer.tokenizer.apply_chat_template(
                [{"role": "user", "content": MARKER}], chat_template=template, add_generation_prompt=on, tokenize=False
            )
        )
        for on in (False, True)
    )
    return opened.removeprefix(shut) if opened != shut else opened.rpartition(MARKER)[2]
