"""The verified action cache by itself: counts, files and its command."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from practicum.environments.web.action_cache import ActionCache, CacheEntry, main, read_cache, write_cache
from practicum.errors import UserError

KEY = "page|goal=buy"
ENTRY = CacheEntry("click", {}, {"role": "button", "name": "Buy", "index": 0}, "bought")


def test_a_success_resets_the_count_of_failures() -> None:
    cache = ActionCache()
    cache.commit([{"key": KEY, "entry": asdict(ENTRY)}])
    cache.commit([{"key": KEY}])
    read = cache.entries[KEY]
    assert read.fail_count == 1
    cache.commit([{"key": KEY, "entry": asdict(read)}])  # what an episode writes whose cached action worked
    assert (cache.entries[KEY].success_count, cache.entries[KEY].fail_count) == (2, 0)
    cache.commit([{"key": KEY}])
    assert KEY in cache.entries, "one failure after a success is the first of its row"
    cache.commit([{"key": KEY}])
    assert KEY not in cache.entries, "the second failure in a row removes the entry"


def test_an_ambiguous_page_loses_its_entry() -> None:
    cache = ActionCache()
    cache.commit([{"key": KEY, "entry": asdict(ENTRY)}, {"key": KEY, "is_ambiguous": True}])
    assert KEY not in cache.entries
    cache.commit([{"key": KEY, "is_ambiguous": True}, {"key": KEY, "entry": asdict(ENTRY)}])
    assert KEY in cache.entries


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    entries = {KEY: ENTRY, "other": CacheEntry("goto", {"url": "http://shop"}, None, "shop")}
    write_cache(tmp_path / "vac.json", entries)
    assert read_cache(tmp_path / "vac.json") == entries


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"action": 3}, "'action' is a text, not 3"),
        ({"arguments": "x"}, "'arguments' is a mapping, not 'x'"),
        ({"element": [1]}, "'element' is a mapping, not"),
        ({"element": {"role": "button", "name": "Buy"}}, "'element' needs a role"),
        ({"element": {"role": "button", "name": "Buy", "index": "x"}}, "'element' needs a role"),
        ({"element": {"role": "button", "name": "Buy", "index": -1}}, "'element' needs a role"),
        ({"fail_count": "none"}, "'fail_count' is a whole number, not 'none'"),
        ({"success_count": -1}, "'success_count' is at least 0"),
        ({"colour": 1}, "is not an action cache"),
    ],
)
def test_a_malformed_entry_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = tmp_path / "vac.json"
    path.write_text(json.dumps({KEY: asdict(ENTRY) | changed}))
    with pytest.raises(UserError, match=message):
        read_cache(path)


def test_a_missing_folder_of_episodes_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(tmp_path / "nope"), str(tmp_path / "out.json")])
    assert stopped.value.code == 2
    assert "there is no folder" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
