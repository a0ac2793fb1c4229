from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from practicum.errors import UserError
from practicum.models import loader, tiny


def folder_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def test_tiny_is_built_the_same_everywhere(tmp_path: Path) -> None:
    """Two processes with different hash seeds write the same bytes."""
    tiny.build(tmp_path / "here")
    code = f"from pathlib import Path; from practicum.models import tiny; tiny.build(Path({str(tmp_path / 'there')!r}))"
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": seed})
    assert folder_hash(tmp_path / "here") == folder_hash(tmp_path / "there")


def test_tiny_has_the_promised_size() -> None:
    loaded = loader.load("tiny")
    count = sum(parameter.numel() for parameter in loaded.model.parameters())
    assert 1_000_000 <= count <= 4_000_000
    assert type(loaded.model).__name__ == "LlamaForCausalLM"


def test_any_text_survives_the_tokenizer() -> None:
    tokenizer = loader.load_tokenizer("tiny")
    for text in ("naïve café №7", "日本語 🙂", "tabs\tand\n\nlines", "1234567890"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer("4711")["input_ids"]) == 4  # digits stand alone


def test_other_seeds_give_other_weights_and_keep_the_global_random_state() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second = tiny.build_model(100, 0), tiny.build_model(100, 1)
    assert torch.equal(torch.rand(1), expected)
    assert not torch.equal(first.lm_head.weight, second.lm_head.weight)


@pytest.mark.parametrize("name", ["./nowhere", "/nonexistent/model"])
def test_missing_folder(name: str) -> None:
    with pytest.raises(UserError, match="There is no folder"):
        loader.load(name)


def test_unknown_name() -> None:
    with pytest.raises(UserError, match="Unknown model 'tinny'. Did you mean 'tiny'?"):
        loader.load("tinny")


def test_broken_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be loaded"):
        loader.load(str(tmp_path))


def test_damaged_models_give_a_one_sentence_error(tmp_path: Path) -> None:
    """Weights cut short, of another shape or too few, no tokenizer: never a traceback, nor half a sentence."""
    cut, other, few, mute = (tmp_path / name for name in ("cut", "other", "few", "mute"))
    for folder in (cut, other, few, mute):
        shutil.copytree(loader.model_folder("tiny"), folder)
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(UserError, match=r"weights of model '.*/cut' are damaged \(.*\); copy or save them again"):
        loader.load(str(cut))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "hidden_size": 2 * config["hidden_size"]}))
    with pytest.raises(UserError, match=r"'.*/other' cannot be loaded: its weights do not fit its config.json\.$"):
        loader.load(str(other))
    deeper = {**config, "num_hidden_layers": config["num_hidden_layers"] + 1}
    (few / "config.json").write_text(json.dumps({key: v for key, v in deeper.items() if key != "layer_types"}))
    with pytest.raises(
        UserError, match=r"'.*/few' cannot be loaded: its files lack \d+ of the weights that its config"
    ):
        loader.load(str(few))
    (mute / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"'.*/mute' cannot be loaded: the files of its tokenizer are missing or dam"):
        loader.load(str(mute))


@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_code_of_a_model_folder_is_never_run(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where someone answers yes to the question that transformers asks."""
    folder = tmp_path / "m"
    loader.save(loader.load_tiny(0), folder)
    ran = tmp_path / "ran"
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Own: pass\n")
    if part == "model":
        config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
        (folder / "config.json").write_text(json.dumps(config))
    else:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config |= {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    monkeypatch.setattr("builtins.input", lambda *arguments: "y")
    with pytest.raises(UserError, match="never run"):
        loader.load(str(folder))
    assert not ran.exists()


def test_a_cache_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRACTICUM_CACHE", "/proc/cache")
    with pytest.raises(UserError, match="cannot be written to the cache '/proc/cache' .*PRACTICUM_CACHE"):
        loader.model_folder("tiny")


def test_a_model_that_several_build_at_once_is_never_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the ranks on a new machine do: the first one's folder stays, since it is read already."""
    num_threads = 8
    barrier = threading.Barrier(num_threads)

    def build(folder: Path) -> None:
        folder.mkdir()
        for name in ("config.json", *map(str, range(20))):
            (folder / name).touch()
        barrier.wait(60)  # all are about to move theirs into place

    monkeypatch.setitem(loader.BUILDERS, "tiny", build)

    def inode(_: int) -> int:
        return (Path(loader.model_folder("tiny")) / "config.json").stat().st_ino

    for attempt in range(10):
        monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path / str(attempt)))
        with ThreadPoolExecutor(num_threads) as pool:
            assert len(set(pool.map(inode, range(num_threads)))) == 1


def test_an_incomplete_model_in_the_cache_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path))
    folder = Path(loader.model_folder("tiny"))
    (folder / "config.json").unlink()
    assert Path(loader.model_folder("tiny")) == folder
    assert (folder / "config.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_gguf_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its content: the same file again costs nothing, another one under its name is another model."""
    monkeypatch.setenv("PRACTICUM_CACHE", str(tmp_path / "cache"))
    converted: list[bytes] = []

    def convert(file: Path, folder: Path) -> None:
        converted.append(file.read_bytes())
        tiny.build(folder)

    monkeypatch.setattr(loader.smollm2, "convert", convert)
    file = tmp_path / "own.gguf"
    file.write_bytes(b"one")
    first = loader.model_folder(str(file))
    assert loader.model_folder(str(file)) == first
    assert converted == [b"one"]
    file.write_bytes(b"two")
    assert loader.model_folder(str(file)) != first
    assert converted == [b"one", b"two"]
    assert loader.load(str(file)).model.config.model_type == "llama"
    with pytest.raises(UserError, match="There is no file '.*none.gguf'; give a GGUF file"):
        loader.load(str(tmp_path / "none.gguf"))


def test_smollm2_is_read_from_the_file_one_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights.gguf"
    monkeypatch.setenv("PRACTICUM_SMOLLM2", str(file))
    with pytest.raises(UserError, match="PRACTICUM_SMOLLM2 names '.*weights.gguf', which is no file"):
        loader.smollm2.weights_file()
    file.touch()
    assert loader.smollm2.weights_file() == file


@pytest.mark.parametrize(
    ("cpuinfo", "branch"),
    [
        ("vendor_id : GenuineIntel\nflags : fpu avx2 avx512f amx_tile\n", "AVX512,STRICT"),
        ("vendor_id : GenuineIntel\nflags : fpu avx2\n", "AVX2,STRICT"),
        ("vendor_id : GenuineIntel\nflags : fpu sse4_2\n", None),
        ("vendor_id : AuthenticAMD\nflags : fpu avx2 avx512f\n", None),
        ("CPU implementer : 0x41\n", None),
    ],
)
def test_mkl_is_strict_where_its_products_depend_on_their_rows(cpuinfo: str, branch: str | None) -> None:
    assert loader.strict_mkl_branch(cpuinfo) == branch
