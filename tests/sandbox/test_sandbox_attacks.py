"""Programs that try to get out, to look out, or to take down what is around them. None may succeed.

How each is known to have failed is written beside it. Whatever it does, afterwards no server was
reached, the bystander lives, the planted secret did not come out, its time was kept, and none of its
processes is left.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from practicum.errors import UserError
from practicum.sandbox.base import Sandbox
from tests.sandbox.sandbox_escapes import ESCAPES
from tests.sandbox.sandbox_exhaustion import EXHAUSTIONS
from tests.sandbox.sandbox_world import SECRET, Attack, World, sandbox_processes, zombies

ATTACKS = ESCAPES + EXHAUSTIONS


@pytest.fixture(scope="module", params=["bubblewrap", "namespaces"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    try:
        return Sandbox.open(only=request.param)
    except UserError as error:
        pytest.skip(f"isolation is NOT tested at level {request.param}: {error}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "secret.txt").chmod(0o644)
    listeners = [socket.create_server(("127.0.0.1", 0))]
    port = listeners[0].getsockname()[1]
    for address in (f"\0practicum-{port}", str(tmp_path / "socket")):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        listeners.append(listener)
    bystander = subprocess.Popen(["sleep", "600"], env={"SECRET": SECRET, "PATH": os.environ["PATH"]})
    created = World(tmp_path, port, bystander)

    def listen(listener: socket.socket) -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return
            created.reached.append(str(listener.family))

    threads = [threading.Thread(target=listen, args=(listener,), daemon=True) for listener in listeners]
    for thread in threads:
        thread.start()
    yield created
    bystander.kill()
    bystander.wait()
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(5)


def test_there_are_many_attacks_and_no_two_alike() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 25


def test_the_world_can_be_attacked(world: World) -> None:
    """Without walls the same things succeed: the tests below would notice."""
    assert (world.folder / "secret.txt").read_text() == SECRET
    assert SECRET in Path(f"/proc/{world.bystander.pid}/environ").read_text()
    for address, family in (
        (("127.0.0.1", world.port), socket.AF_INET),
        (f"\0practicum-{world.port}", socket.AF_UNIX),
        (str(world.folder / "socket"), socket.AF_UNIX),
    ):
        with socket.socket(family) as caller:
            caller.connect(address)
            assert caller.recv(1) == b""
    deadline = time.monotonic() + 30
    while len(world.reached) < 3 and time.monotonic() < deadline:  # a listener counts after it has answered
        time.sleep(0.01)
    assert len(world.reached) == 3


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack_fails(attack: Attack, sandbox: Sandbox, world: World) -> None:
    result = sandbox.run_sync(world.fill(attack.code), limits=attack.limits)
    assert attack.proof(result, world), result
    assert SECRET not in result.stdout + result.stderr
    assert not world.reached
    assert world.bystander.poll() is None
    assert result.seconds < attack.limits.wall + 1.0
    assert not sandbox_processes()
    assert not zombies()
