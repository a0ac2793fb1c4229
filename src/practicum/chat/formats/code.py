"""The reply format `code`: a fenced Python block that is run, or an <answer>."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.environment import Action, Message, ToolCall
from practicum.errors import UserError


class CodeFormat:
    """`code`: one fenced Python block is run; `<answer>` ends, and so does a reply with neither.

    The text from the first opening, a fence or `<answer>`, up to its end belongs to it. So an answer may contain a
    fenced program, and a program may print the word `<answer>`.
    """

    name = "code"
    stop: tuple[str, ...] = ()
    schema_in_template = False
    tool = "python_executor"
    opening = re.compile(r"^[ \t]*```([^`\n]*)$|<answer>", re.M)
    closing = re.compile(r"^[ \t]*```[ \t]*$", re.M)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        ending = "Give the answer as <answer>...</answer>."
        return f"To run Python, reply with one ```python block. {ending}" if tools else ending

    def parse(self, text: str, has_tools: bool) -> Action:
        blocks: list[str] = []
        answers: list[str] = []
        plain: list[str] = []
        position = 0
        while match := self.opening.search(text, position):
            plain.append(text[position : match.start()])
            if match[0] == "<answer>":
                end = text.find("</answer>", match.end())
                if end < 0:
                    return Action(text, error="The <answer> needs its </answer>.")
                answers.append(text[match.end() : end])
                position = end + len("</answer>")
                continue
            close = self.closing.search(text, match.end())
            if close is None:
                return Action(text, error="A block needs a line ``` at its end.")
            if match[1].strip() == "python":
                blocks.append(text[match.end() + 1 : close.start() - 1])
            position = close.end()
        plain.append(text[position:])
        error = self._error(blocks, answers, plain, has_tools)
        if error is None and not (blocks or answers or [text])[0].strip():
            error = f"The {'block' if blocks else 'answer' if answers else 'reply'} is empty."
        if error is not None:
            return Action(text, error=error)
        if answers:
            return Action(text, content=answers[0].strip(), thought=plain[0].strip())
        if blocks:
            call = ToolCall(self.tool, {"code": blocks[0]})
            return Action(text, calls=(call,), thought=text[: text.index("```")].strip())
        return Action(text, content=text.strip())

    @staticmethod
    def _error(blocks: list[str], answers: list[str], plain: list[str], has_tools: bool) -> str | None:
        if any("</answer>" in piece for piece in plain):
            return "The </answer> needs an <answer> before it."
        if any("```python" in piece for piece in plain):
            return "A block begins with a line ```python and ends with a line ```."
        if blocks and answers:
            return "Give either a block to run or an <answer>, not both."
        if len(blocks) > 1 or len(answers) > 1:
            return f"Give exactly one {'block' if blocks else '<answer>'}."
        if blocks and not has_tools:
            return "There are no tools here; reply in plain text."
        return None

    def write(self, action: Action, has_tools: bool) -> str:
        lines = [action.thought] if action.thought else []
        for call in action.calls:
            if set(call.arguments) != {"code"}:
                raise UserError(f"The reply format 'code' can only write Python to run, not a call of '{call.name}'.")
            lines.append(f"```python\n{call.arguments['code']}\n```")
        if not action.calls:
            lines.append(f"<answer>{action.content}</answer>" if has_tools else action.content)
        return "\n".join(lines)

    def observe(self, name: str, text: str) -> Message:
        return Message("user", f"Output:\n{text}")
