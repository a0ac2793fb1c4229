"""What a planner lets in and out: requests without attempts to give it other instructions, tasks of known types."""

from __future__ import annotations

import re
from collections.abc import Iterable

from practicum.environments.htdag.task_dag import TaskNode
from practicum.errors import UserError

MAX_REQUEST_LENGTH = 5000
ALLOWED_TYPES = frozenset((
    "design", "implement", "test", "deploy", "research", "review", "architecture", "requirements", "planning", "code",
    "build", "frontend", "backend", "api", "database", "security", "monitor", "marketing", "sales", "support",
    "analytics", "finance", "generic", "api_call", "file_write", "test_run",
))  # fmt: skip
ATOMIC_TYPES = frozenset(("api_call", "file_write", "test_run"))
"""Types that are not decomposed."""
INJECTIONS = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"\b(ignore|disregard|forget)\b.{0,40}\b(instructions?|above|previous|everything)\b",
        r"\bnew\s+instructions\s*:",
        r"^\s*system\s*:|\n\s*system\s*:",
        r"<\s*script|javascript\s*:",
        r"\binstead\s+do\b",
        r"\boverride\b.{0,40}\b(rules?|instructions?|security|safety)\b",
        r"\bexfiltrate\b|\bbackdoor\b",
    )
)
DANGEROUS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(exec|eval|system)\s*\(",
        r"__import__",
        r"\bexfiltrate\b|\bbackdoor\b",
        r"\b(steal|leak|send|print)\b.{0,40}\b(passwords?|credentials?|secrets?)\b",
        r"\brm\s+-rf\b",
        r"\bdelete\b.{0,40}\blogs?\b",
        r"\bdisable\b.{0,40}\bsecurity\b",
    )
)


class SecurityError(UserError):
    """A request or a task that is refused because of what it tries to do."""


def sanitise_request(request: str) -> str:
    """Return the request with braces escaped; UserError if empty or too long, SecurityError if it is an attack."""
    if not request.strip():
        raise UserError("The request is empty; say what is to be planned.")
    if len(request) > MAX_REQUEST_LENGTH:
        raise UserError(f"The request has {len(request)} characters; at most {MAX_REQUEST_LENGTH} are planned.")
    if any(pattern.search(request) for pattern in INJECTIONS):
        raise SecurityError("The request tries to change the planner's instructions; rephrase it as a plain task.")
    return request.replace("{", "\\{").replace("}", "\\}").strip()


def check_tasks(tasks: Iterable[TaskNode], types: frozenset[str] = ALLOWED_TYPES) -> None:
    """Raise SecurityError for a task of an unknown type or with a dangerous description."""
    for task in tasks:
        if task.task_type not in types:
            raise SecurityError(f"The model proposed a task of the unknown type '{task.task_type[:40]}'.")
        if any(pattern.search(task.description) for pattern in DANGEROUS):
            raise SecurityError(f"The model proposed a dangerous task: '{task.description[:60]}'.")
