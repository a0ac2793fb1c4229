"""Where learner ranks are placed, and what a failure of one is taken for."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from practicum.config.resolve import resolve_train
from practicum.errors import UserError
from practicum.training.cluster import rank_actor
from practicum.training.cluster.learner_ranks import Ending, choose_first_node, first_failure, make_job
from practicum.training.cluster.rank_actor import RankActor
from practicum.training.ranks import is_lost_connection

LOST = ("ranks_lost", "Rank 0 has lost the other ranks")


def test_a_rank_that_was_ended_from_outside_is_the_cause() -> None:
    """Whatever the others fail with comes from that, also an error that is not known to be one of messages."""
    killed, node = Ending(1, -9), Ending(1)
    for dead in (killed, node):
        assert first_failure([Ending(0, 1, None, "RuntimeError: Broken pipe"), dead]) is dead
        assert first_failure([Ending(0, 2, LOST), dead]) is dead
    assert first_failure([Ending(0, 2, LOST)]).rank == 0


def test_a_rank_that_ray_has_ended_is_started_again() -> None:
    """Its node died and came back a moment before, with the same address."""
    line = "[2026-11-19 21:43:27,028 C 19928 19928] raylet_ipc_client.cc:85: Failed to connect to socket at address:x\n"
    lost = Ending(0, 1, None, "[W1119 socket.cpp:207] [c10d] no hostname\n" + line + "*** StackTrace Information ***\n")
    assert first_failure([Ending(1, 2, LOST), lost]) is lost
    assert lost.describe() == "rank 0 was ended by Ray, which has lost its node"


def test_an_error_of_the_program_is_none_to_start_again_from() -> None:
    with pytest.raises(RuntimeError, match="Rank 1 failed:\nZeroDivisionError"):
        first_failure([Ending(0, 2, LOST), Ending(1, 1, None, "ZeroDivisionError")])
    with pytest.raises(UserError, match="no such file"):
        first_failure([Ending(0, 2, ("user_error", "no such file")), Ending(1, -9)])


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("[/__w/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:13718", True),
        ("[enforce fail at gloo/transport/tcp/pair.cc:598] . writev [10.0.0.2]:30: Broken pipe", True),
        ("[/__w/gloo/transport/tcp/pair.cc:68] Timed out waiting 14400000ms for recv operation", True),
        ("NCCL error: unhandled system error, remote process exited", True),
        ("CUDA out of memory", False),
        ("The size of tensor a (3) must match the size of tensor b (4)", False),
    ],
)
def test_errors_of_messages_are_told_from_others(text: str, lost: bool) -> None:
    assert is_lost_connection(RuntimeError(text)) is lost


def test_the_message_of_an_error_is_kept_where_a_long_stack_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of torch end in a hundred lines of frames of C code."""
    (tmp_path / "failing_rank.py").write_text(
        "import sys\n"
        "sys.stdin.readline()\n"
        "print('RuntimeError: something is wrong', file=sys.stderr)\n"
        "for i in range(100):\n"
        "    print(f'/lib/libpython.so(+0x17{i}) [0x7effe6f70{i}] PyGen_am_send', file=sys.stderr)\n"
        "    print(f'frame #{i}: <unknown function> + 0x7cd', file=sys.stderr)\n"
        "sys.exit(1)\n"
    )
    monkeypatch.setattr(rank_actor, "MODULE", "failing_rank")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def run() -> tuple[int, str]:
        actor = RankActor()
        await actor.start(json.dumps({}), {}, str(tmp_path))
        kind, (code, stderr) = await actor.next_event()
        assert kind == "exit"
        return code, stderr

    assert asyncio.run(run()) == (1, "RuntimeError: something is wrong\n")


def node(address: str, cpus: float, alive: bool = True) -> dict[str, Any]:
    return {"NodeManagerAddress": address, "Alive": alive, "Resources": {"CPU": cpus, f"node:{address}": 1.0}}


def test_rank_0_is_on_the_machine_of_the_driver_where_it_fits() -> None:
    """It writes the run's folder: on another machine, after a failure, it would begin from nothing."""
    job = make_job(
        "train", resolve_train(["trainer.device=cpu", "trainer.nnodes=2", "trainer.n_gpus_per_node=2"]), None
    )
    nodes = [node("10.0.0.1", 4), node("10.0.0.2", 4), node("10.0.0.3", 1)]
    assert choose_first_node(nodes, "10.0.0.2", job) == "10.0.0.2"
    assert choose_first_node(nodes, "10.0.0.3", job) == "10.0.0.1"
    assert choose_first_node([node("10.0.0.1", 4, alive=False), *nodes[1:]], "10.0.0.3", job) == "10.0.0.2"
    assert choose_first_node(nodes[2:], "10.0.0.3", job) is None


def test_the_process_beside_a_rank_imports_no_torch() -> None:
    """Otherwise every rank starts seconds later and takes 400 MB more."""
    code = "import sys, practicum.training.cluster.rank_actor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
