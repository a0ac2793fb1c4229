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
    embedded_data,
    write_damaged_episodes,
    write_hostile_episodes,
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


def parsed(page_bytes: bytes) -> Elements:
    elements = Elements()
    elements.feed(page_bytes.decode())
    return elements


def packed(page_bytes: bytes, key: str, index: int) -> dict[str, object]:
    match = re.search(rf'id="e-{key}-{index}">([A-Za-z0-9+/=]*)</script>'.encode(), page_bytes)
    assert match is not None
    read: dict[str, object] = json.loads(zlib.decompress(base64.b64decode(match[1]), -15))
    return read


def test_the_file_runs_its_own_script_and_no_other(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_hostile_episodes(tmp_path / "bad", tokenizer)
    write_damaged_episodes(tmp_path / "bad", tokenizer)
    page_bytes, _ = document(find_runs([tmp_path / "bad"]))
    elements = parsed(page_bytes)
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
    allowed = "html head meta title link style body a h1 header nav span button main noscript dialog div script"
    assert {tag for tag, _ in elements.found} <= set(allowed.split())
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


def test_texts_of_models_are_escaped_in_the_page(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_hostile_episodes(tmp_path / "bad", tokenizer)
    page_bytes, (view,) = document(find_runs([tmp_path / "bad"]))
    block = page_bytes.split(b'id="data">')[1].split(b"</script>")[0]
    assert b"<" not in block
    (row,) = [row for row in view.index.rows if row.result.task.startswith("markup ")]
    episode = packed(page_bytes, view.run.key, row.number)
    assert HOSTILE_TEXTS["markup"] in str(episode["error"])
    tasks = [line[1] for line in embedded_data(page_bytes)["rows"][view.run.key]]
    assert any(HOSTILE_TEXTS["markup"] in task for task in tasks)


def test_the_file_has_the_data_of_the_runs(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    write_run(tmp_path / "a", [[0.0, 1.0], [0.0, 0.0]], tokenizer)
    write_run(tmp_path / "b", [[1.0, 1.0], [1.0, 0.0]], tokenizer)
    write_training(tmp_path / "c", 12, **{"actor/ppo_kl": 0.7})
    page_bytes, views = document(find_runs([tmp_path / "a", tmp_path / "b", tmp_path / "c"]))
    data = embedded_data(page_bytes)
    assert [run["name"] for run in data["runs"]] == ["a", "b", "c"]
    assert [len(rows) for rows in data["rows"].values()] == [4, 4, 0]
    assert data["comparisons"][0]["baseline"]["label"] == "a"
    curve = data["runs"][2]["curves"][0]
    assert curve["series"]["val/success/mean"]["points"][0] == [5, 0.5, 0.4, 0.6]
    assert "kl_high" in {event["sign"] for event in curve["events"]}
    assert data["runs"][2]["planned"] == 100
    for view in views[:2]:
        for row in view.index.rows:
            assert packed(page_bytes, view.run.key, row.number)["attempt"] == row.result.attempt


def test_episodes_beyond_the_size_limit_are_listed_without_their_text(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    write_run(tmp_path / "a", [[float(n % 2)] for n in range(120)], tokenizer)
    page_bytes, (view,) = document(find_runs([tmp_path / "a"]), episode_bytes=20_000)
    blocks = re.findall(rb'id="e-[0-9a-f]+-(\d+)"', page_bytes)
    assert len(embedded_data(page_bytes)["rows"][view.run.key]) == 120
    assert 5 < len(blocks) < 60
    chosen = {n for indices in embedded_data(page_bytes)["runs"][0]["samples"].values() for n in indices}
    assert chosen <= {int(index) for index in blocks}


def test_the_command_lists_what_it_could_not_read(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", [[1.0]], tokenizer)
    damaged = write_damaged_episodes(tmp_path / "a", tokenizer)
    out = tmp_path / "out.html"
    assert main(["report", str(tmp_path / "a"), "-o", str(out)]) == 0
    output = capsys.readouterr().out
    assert "1 run, 1 episode, " in output
    assert f"… and {len(damaged) - 5} more" in output
    assert embedded_data(out.read_bytes())["runs"][0]["unreadable_count"] == len(damaged)


def test_without_a_run_the_existing_report_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "numbers.json").write_text("[1, 2]")
    (tmp_path / "r.html").write_text("the last one")
    assert main(["report", str(tmp_path / "numbers.json"), "-o", str(tmp_path / "r.html")]) == 2
    assert "There is nothing to report" in capsys.readouterr().err
    assert (tmp_path / "r.html").read_text() == "the last one"


def test_an_address_of_another_machine_is_an_error_about_the_address(
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


def test_wrong_paths_are_errors_of_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert main(["report", str(tmp_path), "-o", str(tmp_path)]) == 2
    assert main(["ui", str(tmp_path / "nowhere")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("practicum: ") for line in lines] == [True, True, True]


def test_the_first_picture_of_the_readme_is_at_twice_the_size() -> None:
    repository = Path(__file__).parents[2]
    names = re.findall(r"!\[[^\]]*\]\((docs/images/[^)]+)\)", (repository / "README.md").read_text())
    width, height = struct.unpack(">II", (repository / names[0]).read_bytes()[16:24])
    assert width >= 2000
    assert height < width  # a first row, and not a whole page
    assert all((repository / name).is_file() for name in names)
