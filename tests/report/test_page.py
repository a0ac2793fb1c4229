"""The self-contained file: what is in it, what it may do, and the command that writes it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from practicum.cli.main import main
from practicum.report import page
from practicum.report.document import document
from practicum.report.runs import find_runs
from tests.report.report_files import (
    HOSTILE_TEXTS,
    data_of,
    write_damaged,
    write_hostile,
    write_run,
    write_training,
)


class Elements(HTMLParser):
    """The elements of a page as a browser's parser finds them, and each script's text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


def parsed(made: bytes) -> Elements:
    elements = Elements()
    elements.feed(made.decode())
    return elements


def packed(made: bytes, key: str, number: int) -> dict[str, object]:
    found = re.search(rf'id="e-{key}-{number}">([A-Za-z0-9+/=]*)</script>'.encode(), made)
    assert found is not None
    read: dict[str, object] = json.loads(zlib.decompress(base64.b64decode(found[1]), -15))
    return read


def test_the_file_runs_its_own_script_and_no_other(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_hostile(tmp_path / "bad", tokenizer)
    write_damaged(tmp_path / "bad", tokenizer)
    made, _ = document(find_runs([tmp_path / "bad"]))
    elements = parsed(made)
    run = [text for attributes, text in elements.scripts if "type" not in attributes]
    assert run == [page.script()]
    (policy,) = [a["content"] for tag, a in elements.found if tag == "meta" and "http-equiv" in a]
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(run[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    assert "unsafe" not in policy
    assert not [a for _, a in elements.found if any(name.startswith("on") for name in a)]
    known = "html head meta title link style body a h1 header nav span button main noscript dialog div script"
    assert {tag for tag, _ in elements.found} <= set(known.split())
    links = [str(a.get(name, "")) for _, a in elements.found for name in ("src", "href")]
    outside = [link for link in links if link.startswith(("http", "//"))]
    assert not outside


def test_no_script_makes_markup_of_text() -> None:
    code = page.script()
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc",
                 "setAttribute('on", "javascript:"):  # fmt: skip
        assert sink not in code
    assert "</script" not in code
    assert "http://www.w3.org/2000/svg" in code
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", code + page.asset("style.css")) == []


def test_what_models_wrote_is_in_it_and_cannot_end_its_element(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    write_hostile(tmp_path / "bad", tokenizer)
    made, (reading,) = document(find_runs([tmp_path / "bad"]))
    block = made.split(b'id="data">')[1].split(b"</script>")[0]
    assert b"<" not in block
    (row,) = [row for row in reading.index.rows if row.result.task.startswith("markup ")]
    episode = packed(made, reading.run.key, row.number)
    assert HOSTILE_TEXTS["markup"] in str(episode["error"])
    tasks = [line[1] for line in data_of(made)["rows"][reading.run.key]]
    assert any(HOSTILE_TEXTS["markup"] in task for task in tasks)


def test_the_file_tells_what_the_runs_hold(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_run(tmp_path / "a", [[0.0, 1.0], [0.0, 0.0]], tokenizer)
    write_run(tmp_path / "b", [[1.0, 1.0], [1.0, 0.0]], tokenizer)
    write_training(tmp_path / "c", 12, **{"actor/ppo_kl": 0.7})
    made, readings = document(find_runs([tmp_path / "a", tmp_path / "b", tmp_path / "c"]))
    data = data_of(made)
    assert [run["name"] for run in data["runs"]] == ["a", "b", "c"]
    assert [len(rows) for rows in data["rows"].values()] == [4, 4, 0]
    assert data["comparisons"][0]["baseline"]["label"] == "a"
    curve = data["runs"][2]["curves"][0]
    assert curve["series"]["val/success/mean"]["points"][0] == [5, 0.5, 0.4, 0.6]
    assert "kl_high" in {event["sign"] for event in curve["events"]}
    assert data["runs"][2]["planned"] == 100
    for reading in readings[:2]:
        for row in reading.index.rows:
            assert packed(made, reading.run.key, row.number)["attempt"] == row.result.attempt


def test_episodes_beyond_the_room_are_listed_only(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_run(tmp_path / "a", [[float(n % 2)] for n in range(120)], tokenizer)
    made, (reading,) = document(find_runs([tmp_path / "a"]), episode_bytes=20_000)
    blocks = re.findall(rb'id="e-[0-9a-f]+-(\d+)"', made)
    assert len(data_of(made)["rows"][reading.run.key]) == 120
    assert 5 < len(blocks) < 60
    chosen = {n for numbers in data_of(made)["runs"][0]["samples"].values() for n in numbers}
    assert chosen <= {int(number) for number in blocks}


def test_the_command_lists_what_it_could_not_read(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", [[1.0]], tokenizer)
    damaged = write_damaged(tmp_path / "a", tokenizer)
    out = tmp_path / "out.html"
    assert main(["report", str(tmp_path / "a"), "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert "1 run, 1 episode, " in said
    assert f"… and {len(damaged) - 5} more" in said
    assert data_of(out.read_bytes())["runs"][0]["unreadable_count"] == len(damaged)


def test_a_report_of_nothing_leaves_the_last_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "numbers.json").write_text("[1, 2]")
    (tmp_path / "r.html").write_text("the last one")
    assert main(["report", str(tmp_path / "numbers.json"), "-o", str(tmp_path / "r.html")]) == 2
    assert "There is nothing to report" in capsys.readouterr().err
    assert (tmp_path / "r.html").read_text() == "the last one"


def test_an_address_of_another_machine_is_not_a_matter_of_ports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", str(tmp_path), "--host", "192.0.2.1"]) == 2
    assert "--host 192.0.2.1 cannot be listened on" in capsys.readouterr().err


def test_without_a_run_the_report_is_of_the_folder_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert "There is no run 'runs'" in capsys.readouterr().err
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    assert main(["report"]) == 0
    assert "1 run, " in capsys.readouterr().out
    assert (tmp_path / "report.html").is_file()


def test_wrong_places_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert main(["report", str(tmp_path), "-o", str(tmp_path)]) == 2
    assert main(["ui", str(tmp_path / "nowhere")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith("practicum: ") for line in said] == [True, True, True]


def test_the_first_picture_of_the_readme_is_at_twice_the_size() -> None:
    repository = Path(__file__).parents[2]
    names = re.findall(r"!\[[^\]]*\]\((docs/images/[^)]+)\)", (repository / "README.md").read_text())
    width, height = struct.unpack(">II", (repository / names[0]).read_bytes()[16:24])
    assert width >= 2000
    assert height < width  # a first row, and not a whole page
    assert all((repository / name).is_file() for name in names)
