"""What a failure of learner ranks is taken for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from practicum.errors import UserError
from practicum.training.cluster import learner_ranks
from practicum.training.cluster.learner_ranks import Ending, RankActor, _cause
from practicum.training.ranks import is_lost_connection

LOST = ("ranks_lost", "Rank 0 has lost the other ranks")


def test_a_rank_that_was_ended_from_outside_is_the_cause() -> None:
    """Whatever the others fail with comes from that, also an error that is not known to be one of messages."""
    killed, node = Ending(1, -9), Ending(1)
    for dead in (killed, node):
        assert _cause([Ending(0, 1, None, "RuntimeError: Broken pipe"), dead]) is dead
        assert _cause([Ending(0, 2, LOST), dead]) is dead
    assert _cause([Ending(0, 2, LOST)]).rank == 0


def test_an_error_of_the_program_is_none_to_start_again_from() -> None:
    with pytest.raises(RuntimeError, match="Rank 1 failed:\nZeroDivisionError"):
        _cause([Ending(0, 2, LOST), Ending(1, 1, None, "ZeroDivisionError")])
    with pytest.raises(UserError, match="no such file"):
        _cause([Ending(0, 2, ("user_error", "no such file")), Ending(1, -9)])


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
    monkeypatch.setattr(learner_ranks, "MODULE", "failing_rank")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    async def run() -> tuple[int, str]:
        actor = RankActor()
        await actor.start(json.dumps({}), {}, str(tmp_path))
        kind, (code, stderr) = await actor.next_event()
        assert kind == "exit"
        return code, stderr

    assert asyncio.run(run()) == (1, "RuntimeError: something is wrong\n")
