"""A vLLM server as a child of ours: started in an environment of its own, watched, and never left behind.

vLLM pins its own torch, so it lives in another virtual environment; its interpreter is all that is known
of it here. Between us and it stands a guard (`guard.py`) that leads the process group and holds a
pipe from us: when we end, however we end, the pipe closes and the guard ends the whole group.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from practicum.engines.vllm import guard as guard_program
from practicum.errors import EngineError, UserError

KEY = "actor_rollout_ref.rollout.vllm"
HOST = "127.0.0.1"
PASSED_ON = (
    "PATH", "HOME", "USER", "LANG", "LC_", "TZ", "TMP", "TEMP", "XDG_", "SSL_", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "HIP_", "ROCR_", "HF_", "TRANSFORMERS_", "TORCH", "VLLM_", "OMP_",
    "GOMP_", "KMP_", "MKL_", "TRITON_", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""What of our environment a server sees: neither our virtual environment nor our keys."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 512)
"""Sizes that vLLM makes room for."""
CRASHES = 3
"""Restarts in a row that are too many."""


@dataclass(frozen=True)
class ServerSettings:
    """How to start a server. `python` is the interpreter of an environment that has vLLM; None: this one.

    `port` 0 takes a free one. `crash_window`: seconds within which three restarts are a crash loop.
    """

    folder: Path
    python: str | None = None
    port: int = 0
    dtype: str = "float32"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    tensor_parallel: int = 1
    memory_share: float = 0.5
    extra_args: tuple[str, ...] = ()
    start_timeout: float = 600.0
    crash_window: float = 900.0


def find_python(python: str | None) -> str:
    """The interpreter to start vLLM with, or a sentence that says how to get one."""
    if python is not None:
        found = shutil.which(os.path.expanduser(python))
        if found is None:
            raise UserError(f"{KEY}.python={python} is not a program; name the python of an environment that has vLLM.")
        return found
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"actor_rollout_ref.rollout.name=vllm needs a server: set {KEY}.url to a running one, or {KEY}.python "
            "to the python of an environment that has vLLM (`make vllm` makes one in .venv-vllm)."
        )
    return sys.executable


class VLLMServer:
    """One server process at a time. One thread starts and revives it; the rest is for any."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.python = find_python(settings.python)
        self.log = settings.folder / "server.log"
        self.pid_file = settings.folder / "server.pid"
        self.served = ""
        self.url = ""
        self.model = ""
        self.lora_rank: int | None = None
        self.starts = 0
        self._crashes: list[float] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._given_up = threading.Event()
        self._ending = threading.Lock()
        self._starting = False

    @property
    def alive(self) -> bool:
        return self._guard is not None and _running(self._guard)

    @property
    def pid(self) -> int:
        """The server's own process id."""
        return int(self.pid_file.read_text())

    def start(self, model: str, lora_rank: int | None) -> None:
        """Start on a model folder (or hub id), with room for adapters of a rank, and wait until it is well."""
        self.stop()
        place = Path(model).expanduser()
        self.model, self.lora_rank = (str(place.resolve()) if place.is_dir() else model), lora_rank
        self.served = f"practicum-{secrets.token_hex(4)}"  # no other server answers to it
        port = self._free_port()
        self.url = f"http://{HOST}:{port}"
        self.settings.folder.mkdir(parents=True, exist_ok=True)
        command = [self.python, "-m", "vllm.entrypoints.openai.api_server", *self._arguments(port)]
        self.pid_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            log.write(f"\n--- {' '.join(command)}\n".encode())
            log.flush()
            begin = log.tell()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", guard_program.__file__, str(self.pid_file.resolve()), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self.settings.folder,  # nothing there for Python to mistake for a module
                start_new_session=True,
            )
        self.starts += 1
        self._starting = True
        try:
            self._wait_until_well(begin)
        finally:
            self._starting = False

    def revive(self, model: str, lora_rank: int | None) -> None:
        """Start again after a death; more than three within the window are a crash loop."""
        while True:
            now = time.monotonic()
            self._crashes = [*(t for t in self._crashes if now - t < self.settings.crash_window), now]
            if len(self._crashes) > CRASHES:
                self.stop()
                raise UserError(
                    f"The vLLM server died {len(self._crashes)} times within {self.settings.crash_window:g} s "
                    f"({self._last_words(0)}); the run stops. Its log is '{self.log}'."
                )
            try:
                self.start(model, lora_rank)
                return
            except UserError:
                if len(self._crashes) >= CRASHES:
                    raise

    def check(self) -> bool:
        """Whether it says that it is well; one that is not, is ended, so that the next request finds it dead.

        Any thread may ask, and while another starts a new one: only the one that was looked at is ended.
        """
        looked_at = self._guard
        if looked_at is None or self._starting:
            return False
        if _running(looked_at) and self._healthy(timeout=10.0):
            return True
        self._end(looked_at)
        return False

    def give_up(self) -> None:
        """Nobody needs it any more: a start under way, in whichever thread, is broken off."""
        self._given_up.set()

    def stop(self) -> None:
        """End the whole process group: kindly, then not."""
        if self._guard is not None:
            self._end(self._guard)

    def _end(self, guard: subprocess.Popen[bytes]) -> None:
        with self._ending:
            if self._guard is not guard:
                return  # another thread has done it
            self._guard = None
        # The guard's id names the group; it stays ours until the guard is waited for, so no stranger can be hit.
        for number, patience in ((signal.SIGTERM, guard_program.PATIENCE), (signal.SIGKILL, guard_program.PATIENCE)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(guard.pid, number)
            deadline = time.monotonic() + patience
            while _others(guard.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
            if not _others(guard.pid):
                break
        if guard.stdin is not None:
            guard.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()

    # -- the inside -------------------------------------------------------------------------

    def _arguments(self, port: int) -> list[str]:
        settings = self.settings
        arguments = {
            "--model": self.model,
            "--served-model-name": self.served,
            "--host": HOST,
            "--port": port,
            "--dtype": settings.dtype,
            "--max-model-len": settings.max_model_len,
            "--max-num-seqs": settings.max_num_seqs,
            "--tensor-parallel-size": settings.tensor_parallel,
            "--gpu-memory-utilization": settings.memory_share,
            "--logprobs-mode": "processed_logprobs",
            "--generation-config": "vllm",
        }
        listed = [str(part) for name, value in arguments.items() if value is not None for part in (name, value)]
        if self.lora_rank is not None:
            room = next((size for size in LORA_RANKS if size >= self.lora_rank), None)
            if room is None:
                raise UserError(f"vLLM has room for adapters of rank {LORA_RANKS[-1]} at most, not {self.lora_rank}.")
            # The new adapter is loaded and proven while the old one is still there.
            listed += ["--enable-lora", "--max-lora-rank", str(room), "--max-loras", "1", "--max-cpu-loras", "2"]
        return [*listed, "--enable-prompt-tokens-details", *settings.extra_args]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        kept["PATH"] = f"{Path(self.python).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
        kept |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
        kept["VLLM_ALLOW_RUNTIME_LORA_UPDATING" if self.lora_rank is not None else "VLLM_SERVER_DEV_MODE"] = "1"
        if Path(self.model).is_dir():
            kept["HF_HUB_OFFLINE"] = "1"  # everything is in the folder
        return kept

    def _free_port(self) -> int:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, self.settings.port))
            except OSError as error:
                raise UserError(
                    f"{KEY}.port={self.settings.port} cannot be used ({error.strerror}); "
                    "choose another, or 0 for a free one."
                ) from None
            return int(probe.getsockname()[1])

    def _wait_until_well(self, begin: int) -> None:
        deadline = time.monotonic() + self.settings.start_timeout
        while time.monotonic() < deadline and not self._given_up.is_set():
            if not self.alive:
                self.stop()
                raise UserError(f"vLLM did not start ({self._last_words(begin)}); its log is '{self.log}'.")
            if self._healthy(timeout=5.0):
                return
            self._given_up.wait(0.2)
        self.stop()
        if self._given_up.is_set():
            raise EngineError("the engine was closed while its server started")
        raise UserError(
            f"vLLM did not answer within {KEY}.start_timeout={self.settings.start_timeout:g} s "
            f"({self._last_words(begin)}); its log is '{self.log}'."
        )

    def _healthy(self, timeout: float) -> bool:
        port = int(self.url.rpartition(":")[2])
        connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _last_words(self, begin: int) -> str:
        """The last lines of the log since an offset, errors before anything else."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(begin, self.log.stat().st_size - 20_000))
                lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        except OSError:
            return "no log"
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return " | ".join(line[-300:] for line in (errors or lines)[-3:]) or "it said nothing"


def _running(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child runs, without taking leave of it."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _others(group: int) -> bool:
    """Whether anything but its (perhaps dead) leader runs in a process group."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z" and int(entry.parent.name) != group:
                return True
    return False
