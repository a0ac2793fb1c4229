"""Two Ray nodes on this machine, each in a network namespace of its own, joined by a link that can be cut.

    with TwoNodes(folder) as nodes:
        nodes.start(); process = nodes.run(["python", "-m", "practicum.cli", ...]); nodes.cut(20.0)

Needs root (or CAP_NET_ADMIN), `ip` of iproute2, and Ray. Nothing of other Ray clusters on the machine is touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from practicum.training.cluster.ray_session import DEFAULTS

LINK = "eth0"
"""The name of both ends of the link, each in its namespace."""
SUBNET = "10.77.0"
PORT = 6379
START_SECONDS = 240.0


def can_make_namespaces() -> bool:
    """Whether this process may make network namespaces here."""
    if shutil.which("ip") is None:
        return False
    name = f"practicum-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made.returncode == 0


class TwoNodes:
    """Namespaces, link and the raylets in them; the driver runs on the first node."""

    def __init__(self, folder: Path, cpus: int = 4) -> None:
        self.folder, self.cpus = folder, cpus
        self.names = [f"practicum-{os.getpid()}-{index}" for index in range(2)]
        self.addresses = [f"{SUBNET}.{index + 1}" for index in range(2)]
        self.raylets: list[subprocess.Popen[bytes] | None] = [None, None]
        self.env = {
            **os.environ, **DEFAULTS, "RAY_AUTH_MODE": "disabled", "GLOO_SOCKET_IFNAME": LINK, "OMP_NUM_THREADS": "1",
            "RAY_ADDRESS": f"{self.addresses[0]}:{PORT}", "RAY_raylet_start_wait_time_s": "240",
        }  # fmt: skip
        self.env.pop("RAY_raylet_pid", None)

    def __enter__(self) -> TwoNodes:
        folders = [self.folder / f"ray-{index}" for index in range(2)]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        first, second = self.names
        for name in self.names:
            _ip("netns", "add", name)
        _ip("link", "add", LINK, "netns", first, "type", "veth", "peer", "name", LINK, "netns", second)
        for name, address in zip(self.names, self.addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", LINK)
            _ip("-n", name, "link", "set", LINK, "up")
            _ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *error: object) -> None:
        for node in range(2):
            self.stop_node(node)
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def start(self) -> None:
        """Start both raylets, and wait until the second one has joined."""
        self.start_node(0)
        self._wait_for_port()
        self.start_node(1)

    def start_node(self, node: int) -> None:
        """Start a raylet in its namespace; the first one is the head."""
        own = ["--head", f"--port={PORT}", "--include-dashboard=false"] if node == 0 else []
        own += [f"--address={self.env['RAY_ADDRESS']}"] if node else []
        command = [str(Path(sys.executable).parent / "ray"), "start", *own, f"--num-cpus={self.cpus}", "--num-gpus=0",
                   f"--node-ip-address={self.addresses[node]}", "--object-store-memory=200000000", "--block",
                   "--disable-usage-stats"]  # fmt: skip
        env = {name: value for name, value in self.env.items() if name != "RAY_ADDRESS"}
        with (self.folder / f"node-{node}.log").open("ab") as log:
            self.raylets[node] = subprocess.Popen(
                self._inside(node, command), env=env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def stop_node(self, node: int) -> None:
        """Kill everything that runs in a node's namespace: the machine is gone."""
        listed = subprocess.run(["ip", "netns", "pids", self.names[node]], capture_output=True, text=True, check=False)
        for pid in map(int, listed.stdout.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if (process := self.raylets[node]) is not None:
            process.wait()
        self.raylets[node] = None

    def run(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a program on the first node."""
        inside = self._inside(0, command)
        with log.open("ab") as file:
            return subprocess.Popen(
                inside, env=self.env, cwd=self.folder, stdout=file, stderr=file, start_new_session=True
            )

    def _inside(self, node: int, command: list[str]) -> list[str]:
        """A command in the namespace of a node, with a folder of its own for Ray's sockets, as on another machine."""
        mount = f'mkdir -p /tmp/ray && mount --bind {self.folder / f"ray-{node}"} /tmp/ray && exec "$@"'
        return ["ip", "netns", "exec", self.names[node], "unshare", "--mount", "sh", "-c", mount, "sh", *command]

    def cut(self, seconds: float) -> None:
        """Take the link away for some seconds."""
        _ip("-n", self.names[1], "link", "set", LINK, "down")
        try:
            time.sleep(seconds)
        finally:
            _ip("-n", self.names[1], "link", "set", LINK, "up")

    def _wait_for_port(self) -> None:
        """Wait until the head answers."""
        code = f"import socket; socket.create_connection(({self.addresses[0]!r}, {PORT}), 2).close()"
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            tried: Any = subprocess.run(
                ["ip", "netns", "exec", self.names[0], sys.executable, "-c", code], capture_output=True, check=False
            )
            if tried.returncode == 0:
                return
            time.sleep(0.5)
        raise RuntimeError(f"the first node does not answer; see {self.folder}/node-0.log on {socket.gethostname()}")


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
