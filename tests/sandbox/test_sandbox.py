from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from practicum.errors import UserError
from practicum.sandbox import base
from practicum.sandbox.base import Sandbox
from practicum.sandbox.levels import Launcher, Level, user_ids
from practicum.sandbox.limits import KIB, MIB, Limits, Reason, SandboxError
from practicum.sandbox.runtime import find_runtime
from practicum.sandbox.seccomp import filter_program
from practicum.utils.concurrency import Deadline, in_thread_with_slots, slot
from tests.sandbox.sandbox_world import attempts, sandbox_processes, zombies

SHORT = Limits(wall=0.5, cpu=1)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    try:
        return Sandbox.open()
    except UserError as error:
        pytest.skip(f"isolation is NOT tested: {error}")


@pytest.fixture(scope="module")
def open_field() -> Sandbox:
    """No isolation: a process with limits."""
    return Sandbox.open("rlimits", only="rlimits")


@pytest.mark.parametrize(
    ("code", "reason", "status", "stdout"),
    [
        ("print(6 * 7)", Reason.OK, 0, "42\n"),
        ("x = 6\nx * 7", Reason.OK, 0, "42\n"),
        ("None", Reason.OK, 0, ""),
        ("x = 5", Reason.OK, 0, ""),
        ("", Reason.OK, 0, ""),
        ("print(input() + input())", Reason.OK, 0, "ab\n"),
        ("print('é\\u2028🙂')", Reason.OK, 0, "é\u2028🙂\n"),
        ("import sys; sys.exit(3)", Reason.ERROR, 3, ""),
        ("print('before'); 1/0", Reason.ERROR, 1, "before\n"),
        ("if:", Reason.ERROR, 1, ""),
        ("'\\ud800' * 2", Reason.OK, 0, "'\\ud800\\ud800'\n"),
        ("import os; os.kill(os.getpid(), 9)", Reason.KILLED, -9, ""),
        ("x = 'a' * 10**9", Reason.MEMORY, 112, ""),
        ("import time; time.sleep(60)", Reason.TIMEOUT, None, ""),
        ("if __name__ == '__main__':\n    print('main')", Reason.OK, 0, "main\n"),
        ("import math, json, re, collections, itertools, datetime, random, sqlite3, ssl\nmath.tau", Reason.OK, 0,
         "6.283185307179586\n"),
    ],
)  # fmt: skip
def test_how_runs_end(sandbox: Sandbox, code: str, reason: Reason, status: int | None, stdout: str) -> None:
    result = sandbox.run_sync(code, "a\nb\n", SHORT if "sleep" in code else None, show_last=True)
    assert (result.reason, result.status, result.stdout) == (reason, status, stdout), result.stderr


def test_the_traceback_shows_the_program_s_own_lines(sandbox: Sandbox) -> None:
    result = sandbox.run_sync("def half(x):\n    return x / 0\n\nhalf(1)")
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.strip() for line in lines if "File" in line] == [
        'File "<program>", line 4, in <module>',
        'File "<program>", line 2, in half',
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "return x / 0" in result.stderr


def test_output_is_cut_at_the_limit(sandbox: Sandbox) -> None:
    exactly = sandbox.run_sync("print('x' * 1023)", limits=Limits(output=KIB))
    assert (exactly.reason, len(exactly.stdout)) == (Reason.OK, KIB)
    above = sandbox.run_sync("print('x' * 1024)", limits=Limits(output=KIB))
    assert (above.reason, above.stdout) == (Reason.OUTPUT, "x" * KIB)


def test_every_program_starts_in_an_empty_folder_of_its_own(sandbox: Sandbox) -> None:
    code = "import os\nprint(os.listdir('.'))\nopen('left', 'w').write('x')\nos.environ"
    first, second = (sandbox.run_sync(code, show_last=True) for _ in range(2))
    assert first.stdout == second.stdout == "[]\nenviron({})\n"


def test_sets_come_in_the_same_order_every_time(sandbox: Sandbox) -> None:
    output = {sandbox.run_sync("print({str(n) for n in range(50)})").stdout for _ in range(3)}
    assert len(output) == 1


def test_a_long_program_and_a_long_input(sandbox: Sandbox) -> None:
    code = "import sys\ntotal = len(sys.stdin.read())\n" + "total += 1\n" * 20_000 + "print(total)"
    assert sandbox.run_sync(code, "x" * 3_000_000).stdout == "3020000\n"


def test_input_that_nobody_reads(sandbox: Sandbox) -> None:
    assert sandbox.run_sync("print(1)", "x" * 3_000_000).stdout == "1\n"


def test_limits_below_zero_are_refused() -> None:
    with pytest.raises(UserError, match="'memory' must be above zero"):
        Limits(memory=0)


def test_the_strongest_level_is_chosen_and_named(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("bwrap"):
        assert sandbox.describe() == "bubblewrap (namespaces, rlimits, seccomp)"
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "bwrap" else which(name))
    assert Sandbox.open().describe() == "plain namespaces (namespaces, rlimits, seccomp)"


def test_a_machine_without_isolation_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="install bubblewrap .* lower sandbox.level to 'rlimits'"):
        Sandbox.open()
    assert Sandbox.open("rlimits").describe() == "no isolation (rlimits, seccomp)"
    with pytest.raises(UserError, match="Unknown sandbox level 'namespace'. Did you mean 'namespaces'"):
        Sandbox.open("namespace")


def test_only_stronger_levels_than_asked_for_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "bwrap" else which(name))
    with pytest.raises(UserError, match="level 'bubblewrap' and none works here .*'bwrap' is not installed"):
        Sandbox.open("bubblewrap")
    assert Level.RLIMITS < Level.NAMESPACES < Level.BUBBLEWRAP


def test_a_level_that_does_not_hold_is_not_used(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    command = Launcher.command.fget  # type: ignore[attr-defined]
    leak = ["--ro-bind", "/var", "/var", "--remount-ro", "/"]

    def leaking(launcher: Launcher) -> list[str]:
        words: list[str] = command(launcher)
        slot = words.index("--remount-ro", words.index("--proc"))
        return words[:slot] + leak + words[slot + 2 :]

    if sandbox.launcher.level is not Level.BUBBLEWRAP:
        pytest.skip("bubblewrap is not here to be led astray")
    monkeypatch.setattr(Launcher, "command", property(leaking))
    with pytest.raises(
        UserError, match="bubblewrap: a program inside it is not shut in: it sees other folders of the host"
    ):
        Sandbox.open("bubblewrap")


def test_the_process_s_own_sandbox(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(base, "settings", base.Settings("rlimits", 3))
    monkeypatch.setattr(base, "opened", {})
    assert base.current() is base.current()
    assert base.current().concurrency == 3
    assert capsys.readouterr().err.count("sandbox: ") == 1
    monkeypatch.setattr(base, "settings", base.Settings("jail"))
    with pytest.raises(UserError, match="Unknown sandbox level"):
        base.current()
    monkeypatch.setattr(base, "settings", base.Settings("rlimits", 0))
    with pytest.raises(UserError, match="sandbox.concurrency"):
        base.current()


def test_a_sandbox_that_does_not_start_says_nothing_about_the_program(sandbox: Sandbox) -> None:
    broken = object.__new__(Sandbox)
    broken.__dict__ |= sandbox.__dict__ | {"_command": ["/bin/sh", "-c", "echo 'no room' >&2; exit 1", "--"]}
    with pytest.raises(SandboxError, match="did not start: no room"):
        broken.run_sync("print(1)")
    broken.__dict__["_command"] = ["/nonexistent/bwrap"]
    with pytest.raises(SandboxError, match="did not start"):
        broken.run_sync("print(1)")


def test_namespaces_hold_without_the_filter(sandbox: Sandbox) -> None:
    """Two walls: what the filter refuses is out of reach without it too."""
    bare = object.__new__(Sandbox)
    bare.__dict__ |= sandbox.__dict__ | {"filter": b""}
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        port = server.getsockname()[1]
        abstract.bind(f"\0practicum-{port}")
        abstract.listen()
        result = bare.run_sync(attempts(
            "open('/etc/passwd')", f"socket.create_connection(('127.0.0.1', {port}), 1)", "os.setgroups([0])",
            f"socket.socket(socket.AF_UNIX).connect(chr(0) + 'practicum-{port}')", "os.kill(4, 9)", "os.chroot('/tmp')",
            "call('umount2', b'/proc', 2)", "call('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None)",
            "open('/proc/1/mem', 'rb')",
        ))  # fmt: skip
        for listener in (server, abstract):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()
    assert result.ok
    assert "GOT" not in result.stdout
    assert result.stdout.count("refused") == 9
    assert bare.run_sync("open('/proc/self/status').read().split('Seccomp:')[1].split()[0]", show_last=True).stdout == (
        "'0'\n"
    )


def test_without_isolation_nothing_is_promised(open_field: Sandbox) -> None:
    """The same attempts succeed there, so the programs above can tell the difference."""
    assert "GOT" in open_field.run_sync(attempts("open('/etc/passwd').read()[:4]")).stdout
    before = set(Path(tempfile.gettempdir()).glob("practicum-sandbox-*"))
    result = open_field.run_sync("import os\nopen('f', 'w').write('x')\nprint(os.getcwd())\nos.fork()")
    assert "practicum-sandbox-" in result.stdout
    assert set(Path(tempfile.gettempdir()).glob("practicum-sandbox-*")) == before
    assert open_field.run_sync("x = 'a' * 10**9").reason is Reason.MEMORY
    assert open_field.run_sync("import time; time.sleep(60)", limits=SHORT).reason is Reason.TIMEOUT


def test_the_runtime_has_no_installed_packages() -> None:
    runtime = find_runtime()
    shown = [path for path in runtime.paths if "site-packages" in path or "dist-packages" in path]
    assert not shown
    assert sys.prefix not in runtime.paths
    assert all(os.path.exists(path) for path in runtime.paths)


def test_the_filter_is_known_for_two_machines_and_empty_for_others() -> None:
    assert len(filter_program("x86_64")) % 8 == len(filter_program("aarch64")) % 8 == 0
    assert filter_program("x86_64") != filter_program("aarch64")
    assert filter_program("riscv64") == b""


def test_root_gives_every_program_a_user_of_its_own(sandbox: Sandbox) -> None:
    ids = user_ids()
    if ids is None:
        pytest.skip("not root here: a user namespace does the counting")
    users = {int(sandbox.run_sync("import os; os.getuid()", show_last=True).stdout) for _ in range(3)}
    assert len(users) == 3
    assert all(number in ids and number > 65536 for number in users)


def mixed(number: int) -> str:
    """Programs of many kinds, most of which do not end well."""
    return [
        "print('fine')",
        "1/0",
        "import time; time.sleep(60)",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(60)",
        "print('x' * 10**6)",
        "x = 'a' * 10**9",
        "open('f', 'w').write('x' * 10**6)",
        "import os; os.kill(os.getpid(), 9)",
    ][number % 8]


def around() -> dict[str, int]:
    """What a leak would change: descriptors, threads, mounts, files in the folder for temporary ones."""
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "files": len(list(Path(tempfile.gettempdir()).glob("practicum-sandbox-*"))),
        "ipc": len(Path("/proc/sysvipc/shm").read_text().splitlines()),
    }


def grown(before: dict[str, int]) -> list[str]:
    """What is more than it was; threads that have given their result take a moment to end."""
    limit = time.monotonic() + 30
    while True:
        more = [name for name, count in around().items() if count > before[name]]
        if not more or time.monotonic() > limit:
            return more
        time.sleep(0.02)


def test_200_concurrent_runs_leave_nothing_behind(sandbox: Sandbox) -> None:
    wide = Sandbox(sandbox.launcher, concurrency=16)

    async def all_of_them() -> list[Reason]:
        limits = Limits(wall=2.0, cpu=1, output=64 * KIB)
        results = await asyncio.gather(*(wide.run(mixed(number), limits=limits) for number in range(200)))
        return [result.reason for result in results]

    before = around()
    reasons = asyncio.run(all_of_them())
    assert not grown(before)
    assert not sandbox_processes()
    assert not zombies()
    for number, expected in enumerate(
        ("ok", "error", "timeout", "ok", "output", "memory", "ok", "killed")
    ):  # a busy machine may let any of them run out of time, but not most
        share = [reason == expected for reason in reasons[number::8]]
        assert sum(share) / len(share) > 0.8, (expected, reasons[number::8])


def test_no_more_than_the_stated_number_run_at_once(sandbox: Sandbox) -> None:
    narrow = Sandbox(sandbox.launcher, concurrency=2)

    async def spans() -> list[tuple[float, float]]:
        code = "import time\na = time.monotonic()\ntime.sleep(0.05)\nprint(a, time.monotonic())"
        results = await asyncio.gather(*(narrow.run(code) for _ in range(12)))
        pairs = [result.stdout.split() for result in results]
        return [(float(started), float(ended)) for started, ended in pairs]

    times = asyncio.run(spans())
    most = max(sum(started <= moment < ended for started, ended in times) for moment, _ in times)
    assert most <= 2


def test_a_cancelled_caller_leaves_nothing_behind(sandbox: Sandbox) -> None:
    before = around()

    async def cancelled() -> float:
        tasks = [asyncio.create_task(sandbox.run("import time; time.sleep(60)")) for _ in range(20)]
        await asyncio.sleep(random.uniform(0.0, 0.4))
        for task in tasks:
            task.cancel()
        started = time.monotonic()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        return time.monotonic() - started

    for _ in range(3):
        assert asyncio.run(cancelled()) < 20
        assert not sandbox_processes()
    assert not grown(before)
    assert not zombies()


def test_a_deadline_of_the_caller_s_is_kept(sandbox: Sandbox) -> None:
    async def hurried() -> None:
        async with asyncio.timeout(0.3):
            await sandbox.run("import time; time.sleep(60)")

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(hurried())
    assert time.monotonic() - started < 20
    assert not sandbox_processes()
    assert not zombies()


@pytest.mark.parametrize("way", ["run", "run_sync", "converse"])
def test_waiting_for_a_place_is_not_the_caller_s_time(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    narrow = Sandbox(sandbox.launcher, concurrency=1)
    work = 0.0
    monkeypatch.setattr(narrow, "execute", lambda *given: time.sleep(work))

    async def ask() -> None:
        if way == "run":
            await narrow.run("1")
        elif way == "run_sync":
            await in_thread_with_slots(narrow.run_sync, "1")
        else:
            await in_thread_with_slots(narrow.run_connected, "1", "2")

    async def wait() -> None:
        with slot(narrow.slots):
            pending = asyncio.ensure_future(Deadline(0.3, "the sandbox").of(ask()))
            await asyncio.sleep(0.6)
        await pending

    asyncio.run(wait())
    work = 1.0
    with pytest.raises(TimeoutError, match="the sandbox"):
        asyncio.run(wait())


@pytest.mark.parametrize("way", ["run", "run_sync"])
def test_a_caller_that_is_cancelled_in_the_queue_is_gone(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    narrow = Sandbox(sandbox.launcher, concurrency=1)

    async def wait() -> None:
        with slot(narrow.slots):
            request = narrow.run("1") if way == "run" else in_thread_with_slots(narrow.run_sync, "1")
            pending = asyncio.ensure_future(Deadline(5, "the sandbox").of(request))
            await asyncio.sleep(0.1)
            pending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pending
        await asyncio.sleep(0.2)

    asyncio.run(wait())
    assert not caplog.records


def test_nothing_outlives_a_host_that_is_killed(sandbox: Sandbox) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", "from practicum.sandbox.base import Sandbox; import threading\n"
         f"box = Sandbox.open(only={sandbox.launcher.level.title!r})\n"
         "thread = threading.Thread(target=box.run_sync, args=('import time; time.sleep(60)',))\n"
         "thread.start()\nimport time; time.sleep(0.5)\nprint('started', flush=True)\ntime.sleep(60)"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert host.stdout is not None
    assert host.stdout.readline() == b"started\n"

    def children_of_run() -> list[str]:
        mark = f"sandbox-of-{host.pid}".encode()
        matches = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if mark in (entry / "cmdline").read_bytes():
                        matches.append(entry.name)
                except OSError:
                    continue
        return matches

    limit = time.monotonic() + 30
    while len(children_of_run()) < 2:
        assert time.monotonic() < limit
        time.sleep(0.02)
    host.send_signal(signal.SIGKILL)
    host.wait()
    host.stdout.close()
    limit = time.monotonic() + 30
    while children_of_run() and time.monotonic() < limit:
        time.sleep(0.02)
    assert not children_of_run()


def test_two_programs_share_a_line_and_nothing_else(sandbox: Sandbox) -> None:
    server = "import os\nline = os.read(0, 100)\nos.write(3, line.upper())\nimport time; time.sleep(60)"
    client = "import os\nos.write(3, b'hello')\nprint(os.read(0, 100))\nprint(os.listdir('/proc'))"
    started = time.monotonic()
    served, answered = sandbox.run_connected(server, client)
    assert served is None
    assert answered.stdout.startswith("b'HELLO'\n")
    assert time.monotonic() - started < 30
    assert not sandbox_processes()
    _, alone = sandbox.run_connected("1/0", "import os\nprint(os.read(0, 100))", Limits(wall=3))
    assert alone.stdout == "b''\n"


def test_what_connects_two_programs_is_no_socket_of_the_host(sandbox: Sandbox) -> None:
    """A socket would belong to the host's network namespace: it lists the host's interfaces, and its buffers grow."""
    kinds = "import os, stat\nprint([stat.S_ISFIFO(os.fstat(n).st_mode) for n in (0, 3)])"
    _, answered = sandbox.run_connected("import time\ntime.sleep(60)", kinds)
    assert answered.stdout == "[True, True]\n"
    others = "import os\nprint([n for n in range(4, 64) if os.path.exists(f'/proc/self/fd/{n}')])"
    _, answered = sandbox.run_connected("import time\ntime.sleep(60)", others)
    assert answered.stdout == "[]\n"


def test_asyncio_works(sandbox: Sandbox) -> None:
    code = "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    print('ran')\nasyncio.run(main())"
    assert sandbox.run_sync(code).stdout == "ran\n"


def test_memory_is_counted_beside_the_interpreter(sandbox: Sandbox) -> None:
    roomy = Limits(memory=192 * MIB)
    assert sandbox.run_sync("print(len(bytearray(128 << 20)))", limits=roomy).ok
    assert sandbox.run_sync("bytearray(192 << 20)", limits=roomy).reason is Reason.MEMORY
