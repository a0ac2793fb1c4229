"""A vLLM server as a child process: started in a virtual environment of its own, checked, and always ended with us.

vLLM pins its own torch, so it is installed in another virtual environment, of which only the interpreter is known here.
The direct child is a guard process (`guard.py`) that leads the server's process group and reads a pipe from us: when
we end, in whatever way, the pipe closes and the guard ends the whole group.
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

from practicum.config.actor_rollout_ref import RolloutConfig, VLLMConfig
from practicum.config.fields import default_of
from practicum.engines.vllm import guard as guard_program
from practicum.errors import EngineError, UserError

KEY = "actor_rollout_ref.rollout.vllm"
HOST = "127.0.0.1"
PASSED_ENVIRONMENT = (
    "PATH", "HOME", "USER", "LANG", "LC_", "TZ", "TMP", "TEMP", "XDG_", "SSL_", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "HIP_", "ROCR_", "HF_", "TRANSFORMERS_", "TORCH", "VLLM_", "OMP_",
    "GOMP_", "KMP_", "MKL_", "TRITON_", "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip
"""Beginnings of the environment variables that a server gets: not our virtual environment, and not our keys."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 512)
"""Values that vLLM accepts for --max-lora-rank."""
MAX_RESTARTS = 3
"""Restarts within `crash_window` seconds; one more is a crash loop."""
HEALTH_TIMEOUT_SECONDS = 10.0
START_HEALTH_TIMEOUT_SECONDS = 5.0
LOG_TAIL_BYTES = 20_000


@dataclass(frozen=True)
class ServerSettings:
    """How to start a server. `python` is the interpreter of an environment that has vLLM; None: this one.

    `folder` is for its log. `port` 0 takes a free one. `start_timeout` and `crash_window` are in seconds. `gpus` are
    those that it sees (as in CUDA_VISIBLE_DEVICES), None: those of this process.
    """

    folder: Path
    python: str | None = default_of(VLLMConfig, "python")
    port: int = default_of(VLLMConfig, "port")
    dtype: str = default_of(VLLMConfig, "dtype")
    max_model_len: int | None = default_of(VLLMConfig, "max_model_len")
    max_num_seqs: int = 64
    tensor_model_parallel_size: int = default_of(RolloutConfig, "tensor_model_parallel_size")
    gpu_memory_utilization: float = default_of(RolloutConfig, "gpu_memory_utilization")
    extra_args: tuple[str, ...] = ()
    start_timeout: float = default_of(VLLMConfig, "start_timeout")
    crash_window: float = 900.0
    gpus: str | None = None


def find_python(python: str | None) -> str:
    """Return the interpreter to start vLLM with; raise UserError that says how to get one."""
    if python is not None:
        path = shutil.which(os.path.expanduser(python))
        if path is None:
            raise UserError(f"{KEY}.python={python} is not a program; name the python of an environment that has vLLM.")
        return path
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            f"actor_rollout_ref.rollout.name=vllm needs a server: set {KEY}.url to a running one, or {KEY}.python "
            "to the python of an environment that has vLLM (`make vllm` makes one in .venv-vllm)."
        )
    return sys.executable


class VLLMServer:
    """One server process at a time. `start` and `restart` are for one thread at a time, the rest is for any."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.python = find_python(settings.python)
        if any(word.partition("=")[0] == "--api-key" for word in settings.extra_args):
            raise UserError(f"{KEY}.extra_args: leave --api-key out; a started server gets a key of its own.")
        self.log = settings.folder / "server.log"
        self.pid_file = settings.folder / "server.pid"
        self.model_name = ""
        """The name that the model is served under."""
        self.url = ""
        self.key = secrets.token_urlsafe(32)
        """The API key of the server: other users of this machine can reach its port too."""
        self.model = ""
        self.lora_rank: int | None = None
        self.num_starts = 0
        self._restart_times: list[float] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._start_cancelled = threading.Event()
        self._stop_lock = threading.Lock()
        self._starting = False

    @property
    def alive(self) -> bool:
        return self._guard is not None and _is_running(self._guard)

    @property
    def pid(self) -> int:
        """The server's own process id."""
        return int(self.pid_file.read_text())

    def start(self, model: str, lora_rank: int | None) -> None:
        """Start on a model folder (or hub id), for adapters up to a rank, and wait until it is healthy."""
        self.stop()
        path = Path(model).expanduser()
        self.model, self.lora_rank = (str(path.resolve()) if path.is_dir() else model), lora_rank
        self.model_name = f"practicum-{secrets.token_hex(4)}"  # no other server has a model of this name
        port = self._free_port()
        self.url = f"http://{HOST}:{port}"
        self.settings.folder.mkdir(parents=True, exist_ok=True)
        command = [self.python, "-m", "vllm.entrypoints.openai.api_server", *self._arguments(port)]
        self.pid_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            log.write(f"\n--- {' '.join(command)}\n".encode())
            log.flush()
            log_start = log.tell()
            self._guard = subprocess.Popen(
                [sys.executable, "-I", guard_program.__file__, str(self.pid_file.resolve()), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                cwd=self.settings.folder,  # nothing there for Python to mistake for a module
                start_new_session=True,
            )
        self.num_starts += 1
        self._starting = True
        try:
            self._wait_until_healthy(log_start)
        finally:
            self._starting = False

    def restart(self, model: str, lora_rank: int | None) -> None:
        """Start again after the process died; more than MAX_RESTARTS within the window raise UserError."""
        while True:
            now = time.monotonic()
            self._restart_times = [*(t for t in self._restart_times if now - t < self.settings.crash_window), now]
            if len(self._restart_times) > MAX_RESTARTS:
                self.stop()
                raise UserError(
                    f"The vLLM server died {len(self._restart_times)} times within {self.settings.crash_window:g} s "
                    f"({self._log_tail(0)}); the run stops. Its log is '{self.log}'."
                )
            try:
                self.start(model, lora_rank)
                return
            except UserError:
                if len(self._restart_times) >= MAX_RESTARTS:
                    raise

    def check_health(self) -> bool:
        """Return whether it answers that it is healthy; end it if not, so that the next request finds it dead.

        Any thread may call this, also while another starts a new process: only the one that was checked is ended.
        """
        checked = self._guard
        if checked is None or self._starting:
            return False
        if _is_running(checked) and self._is_healthy(HEALTH_TIMEOUT_SECONDS):
            return True
        self._end(checked)
        return False

    def cancel_start(self) -> None:
        """Break off a start that is under way in any thread."""
        self._start_cancelled.set()

    def stop(self) -> None:
        """End the whole process group, with SIGTERM and then with SIGKILL."""
        if self._guard is not None:
            self._end(self._guard)

    def _end(self, guard: subprocess.Popen[bytes]) -> None:
        with self._stop_lock:
            if self._guard is not guard:
                return  # another thread has done it
            self._guard = None
        # The guard's id names the group; until the guard is waited for, no other process can get that id.
        for number, seconds in (
            (signal.SIGTERM, guard_program.TERMINATE_SECONDS),
            (signal.SIGKILL, guard_program.TERMINATE_SECONDS),
        ):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(guard.pid, number)
            deadline = time.monotonic() + seconds
            while _has_members(guard.pid) and time.monotonic() < deadline:
                time.sleep(0.05)
            if not _has_members(guard.pid):
                break
        if guard.stdin is not None:
            guard.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()

    def _arguments(self, port: int) -> list[str]:
        settings = self.settings
        arguments = {
            "--model": self.model,
            "--served-model-name": self.model_name,
            "--host": HOST,
            "--port": port,
            "--dtype": settings.dtype,
            "--max-model-len": settings.max_model_len,
            "--max-num-seqs": settings.max_num_seqs,
            "--tensor-parallel-size": settings.tensor_model_parallel_size,
            "--gpu-memory-utilization": settings.gpu_memory_utilization,
            "--logprobs-mode": "processed_logprobs",
            "--generation-config": "vllm",
        }
        listed = [str(word) for name, value in arguments.items() if value is not None for word in (name, value)]
        if self.lora_rank is not None:
            max_rank = next((rank for rank in LORA_RANKS if rank >= self.lora_rank), None)
            if max_rank is None:
                raise UserError(f"vLLM takes adapters of rank {LORA_RANKS[-1]} at most, not {self.lora_rank}.")
            # The new adapter is loaded and checked while the old one is still there.
            listed += ["--enable-lora", "--max-lora-rank", str(max_rank), "--max-loras", "1", "--max-cpu-loras", "2"]
        return [*listed, "--enable-prompt-tokens-details", *settings.extra_args]

    def _environment(self) -> dict[str, str]:
        variables = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ENVIRONMENT)}
        variables["PATH"] = f"{Path(self.python).parent}{os.pathsep}{variables.get('PATH', os.defpath)}"
        variables["VLLM_API_KEY"] = self.key  # not on the command line, which every process list shows
        variables |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING" if self.lora_rank is not None else "VLLM_SERVER_DEV_MODE"] = "1"
        if self.settings.gpus is not None:
            variables["CUDA_VISIBLE_DEVICES"] = self.settings.gpus
        if Path(self.model).is_dir():
            variables["HF_HUB_OFFLINE"] = "1"  # everything is in the folder
        return variables

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

    def _wait_until_healthy(self, log_start: int) -> None:
        deadline = time.monotonic() + self.settings.start_timeout
        while time.monotonic() < deadline and not self._start_cancelled.is_set():
            if not self.alive:
                self.stop()
                raise UserError(f"vLLM did not start ({self._log_tail(log_start)}); its log is '{self.log}'.")
            if self._is_healthy(START_HEALTH_TIMEOUT_SECONDS):
                return
            self._start_cancelled.wait(0.2)
        self.stop()
        if self._start_cancelled.is_set():
            raise EngineError("the engine was closed while its server started")
        raise UserError(
            f"vLLM did not answer within {KEY}.start_timeout={self.settings.start_timeout:g} s "
            f"({self._log_tail(log_start)}); its log is '{self.log}'."
        )

    def _is_healthy(self, timeout: float) -> bool:
        port = int(self.url.rpartition(":")[2])
        connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _log_tail(self, start: int) -> str:
        """Return the last lines of the log since an offset; errors, where it has any."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(start, self.log.stat().st_size - LOG_TAIL_BYTES))
                lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        except OSError:
            return "no log"
        errors = [line for line in lines if "Error" in line or "error:" in line]
        return " | ".join(line[-300:] for line in (errors or lines)[-3:]) or "the log is empty"


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child process runs, without reaping it."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False


def _has_members(group: int) -> bool:
    """Whether anything but its leader, dead or not, runs in a process group."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = entry.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z" and int(entry.parent.name) != group:
                return True
    return False
