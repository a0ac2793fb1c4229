"""The verified action cache (VAC): what was done in a state for a goal, and worked.

A key is the state of the page and the goal, so no task reads the entries of another one. An entry names its element by
role and name; its id is looked up on the page. Entries are verified by the observation that follows: an error, an
unchanged page, or another page than the one before are a failure, and the second failure in a row removes the entry.

The cache is a resource of the run: episodes read what was committed before their step, and their own writes are
committed after it. Its form as a file is HALO's `vac.json`, a mapping of keys to entries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from practicum.chat.formats.web_actions import WebActionError, checked_call
from practicum.config.fields import annotations_of, describe_type, has_type
from practicum.data.run_folder import write_atomic
from practicum.environment import ToolCall
from practicum.environments.web.observation import Node
from practicum.environments.web.page_state import bid_of, named_like, normalised_goal
from practicum.errors import UserError
from practicum.resources import Resource
from practicum.utils.terminal import ArgumentParser

CACHE = "cache"
"""The name of the resource."""
MAX_FAILURES = 2
"""Failures in a row that remove an entry."""
MAX_ENTRIES = 10_000
"""Entries that are kept; those that were used longest ago are removed first."""
CACHED_VERBS = ("click", "fill", "select_option", "check", "uncheck", "clear", "press", "goto")
"""Actions that are cached: those on an element, and `goto`. A message to the user ends the episode and is the model's
own."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An action without its element's id, its element, the page that must follow, and how often that was so."""

    action: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    element: Mapping[str, Any] | None = None
    """Role, name, and the index among the elements of that role and name."""
    postcondition: str = ""
    """The state of the page that the action led to."""
    success_count: int = 1
    fail_count: int = 0
    last_used: int = 0
    """The number of the commit that changed it last."""

    def same_action(self, other: CacheEntry) -> bool:
        return (self.action, self.arguments, self.element) == (other.action, other.arguments, other.element)

    def bind(self, nodes: Sequence[Node]) -> ToolCall | None:
        """Return the action with its element's id on this page; None where the page has no such element."""
        arguments = dict(self.arguments)
        if self.element is not None:
            like = named_like(nodes, str(self.element["role"]), str(self.element["name"]))
            index = int(self.element["index"])
            if index >= len(like):
                return None
            arguments["bid"] = like[index].bid
        try:
            return checked_call(self.action, arguments)
        except WebActionError:
            return None


def cache_key(state: str, goal: str) -> str:
    """Return the key of a page's state and a goal."""
    return f"{state}|goal={normalised_goal(goal)}"


def make_entry(call: ToolCall, nodes: Sequence[Node], postcondition: str) -> CacheEntry | None:
    """Return the entry of an action on a page with these nodes; None for an action that is not cached."""
    if call.name not in CACHED_VERBS:
        return None
    bid = bid_of(call)
    if bid is None:
        return CacheEntry(call.name, dict(call.arguments), None, postcondition)
    node = next((node for node in nodes if node.bid == bid), None)
    if node is None:
        return None
    arguments = {name: value for name, value in call.arguments.items() if name != "bid"}
    index = named_like(nodes, node.role, node.name).index(node)
    return CacheEntry(call.name, arguments, {"role": node.role, "name": node.name, "index": index}, postcondition)


class ActionCache(Resource):
    """The cache of a run. It begins with the entries of a file, or empty; an evaluation begins with the same."""

    def __init__(self, path: str | None = None) -> None:
        self.entries: dict[str, CacheEntry] = {} if path is None else read_cache(Path(path))
        self.num_commits = 0

    def get(self, key: str) -> CacheEntry | None:
        """Return the entry of a key."""
        return self.entries.get(key)

    def state_dict(self) -> Any:
        return {"commits": self.num_commits, "entries": {key: asdict(entry) for key, entry in self.entries.items()}}

    def load_state_dict(self, state: Any) -> None:
        self.num_commits = int(state["commits"])
        self.entries = {key: CacheEntry(**values) for key, values in state["entries"].items()}

    def commit(self, writes: Sequence[Any]) -> None:
        """Add verified actions ({"key", "entry"}) and failures ({"key"}), and remove what is ambiguous ({"key",
        "is_ambiguous"}), in their order."""
        self.num_commits += 1
        for write in writes:
            if write.get("is_ambiguous"):
                self.entries.pop(str(write["key"]), None)
            else:
                self._apply(str(write["key"]), write.get("entry"))
        while len(self.entries) > MAX_ENTRIES:
            del self.entries[min(self.entries, key=lambda key: (self.entries[key].last_used, key))]

    def _apply(self, key: str, values: Mapping[str, Any] | None) -> None:
        known = self.entries.get(key)
        if values is not None:
            # An entry of the cache that worked again is written as it was read: a success ends its row of failures.
            entry = replace(CacheEntry(**values), fail_count=0, last_used=self.num_commits)
            if known is not None and known.same_action(entry):
                entry = replace(entry, success_count=known.success_count + 1)
            self.entries[key] = entry  # the last action in a state is the one from which the episode went on
        elif known is not None and known.fail_count + 1 >= MAX_FAILURES:
            del self.entries[key]
        elif known is not None:
            self.entries[key] = replace(known, fail_count=known.fail_count + 1, last_used=self.num_commits)


def read_cache(path: Path) -> dict[str, CacheEntry]:
    """Return the entries of a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = {str(key): CacheEntry(**values) for key, values in content.items()}
    except OSError as error:
        raise UserError(f"Cannot read the action cache '{path}': {error.strerror}.") from None
    except (ValueError, TypeError, AttributeError):
        raise UserError(f"'{path}' is not an action cache: a JSON object of entries by their key.") from None
    for key, entry in entries.items():
        problem = _problem(entry)
        if problem:
            raise UserError(f"The entry '{key}' of the action cache '{path}' is not valid: {problem}.")
    return entries


def _problem(entry: CacheEntry) -> str:
    """What is wrong with an entry of a file; "" where nothing is."""
    for name, annotation in annotations_of(CacheEntry.__init__).items():
        value = getattr(entry, name, None)
        if not has_type(value, annotation):
            return f"'{name}' is {describe_type(annotation)}, not {value!r}"
    for name in ("success_count", "fail_count", "last_used"):
        if getattr(entry, name) < 0:
            return f"'{name}' is at least 0, not {getattr(entry, name)}"
    if entry.element is None:
        return ""
    index = entry.element.get("index")
    is_named = all(isinstance(entry.element.get(name), str) for name in ("role", "name"))
    is_index = has_type(index, int) and int(str(index)) >= 0
    return "" if is_named and is_index else "'element' needs a role and a name, which are texts, and an index from 0"


def write_cache(path: Path, entries: Mapping[str, CacheEntry]) -> None:
    """Write entries as a file."""
    content = {key: asdict(entries[key]) for key in sorted(entries)}
    write_atomic(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))


def main(argv: Sequence[str] | None = None) -> None:
    """Make a file of what recorded episodes wrote, e.g. of those of `practicum collect`."""
    from practicum.data.store import read_episodes

    parser = ArgumentParser(prog="python -m practicum.environments.web.action_cache", description=main.__doc__)
    parser.add_argument("episodes", type=Path, help="folder of episodes that were played with cache=true")
    parser.add_argument("out", type=Path, help="the file, such as data/cache/vac.json")
    args = parser.parse_args(argv)
    if not args.episodes.is_dir():
        parser.error(f"there is no folder '{args.episodes}'; make one with `practicum collect --env-arg cache=true`.")
    cache = ActionCache()
    for episode in read_episodes(args.episodes):
        writes = [value for name, value in episode.provenance.get("writes", ()) if name == CACHE]
        if writes and episode.scored:
            cache.commit(writes)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_cache(args.out, cache.entries)
    print(f"{len(cache.entries)} actions in {args.out}")


if __name__ == "__main__":
    main()
