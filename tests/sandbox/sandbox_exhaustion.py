"""Attacks that want to take the machine down: processes, memory, output, time, disk; and to outlive their end."""

from __future__ import annotations

import subprocess
from pathlib import Path

from practicum.sandbox.limits import MIB, Limits, Reason
from tests.sandbox.sandbox_world import LIMITS, QUICK, Attack, attempts, ended, nothing_gained, sandbox_processes

EXHAUSTIONS = [
    Attack(
        "fork until nothing is left",
        """
        import os, time
        print("tried", flush=True)
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.01)
        """,
        lambda result, world: result.reason is Reason.TIMEOUT and subprocess.run(["true"]).returncode == 0,
        QUICK,
    ),
    Attack(
        "have more processes than it may",
        """
        import os, time
        print("tried", flush=True)
        made = 0
        try:
            for _ in range(100):
                if os.fork() == 0:
                    time.sleep(3)
                    os._exit(0)
                made += 1
            print("GOT", made)
        except OSError:
            print("refused after", made)
        """,
        lambda result, world: nothing_gained(result, world) and f"refused after {LIMITS.processes}" in result.stdout,
    ),
    Attack(
        "have more threads than it may",
        """
        import threading, time, os
        print("tried", flush=True)
        threading.stack_size(65536)
        made = 0
        try:
            for _ in range(500):
                threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
                made += 1
            print("GOT", made)
        except RuntimeError:
            print("refused after", made)
        """,
        lambda result, world: nothing_gained(result, world) and f"refused after {LIMITS.processes}" in result.stdout,
    ),
    Attack(
        "take all memory",
        """
        print("tried", flush=True)
        hoard = []
        while True:
            hoard.append(bytearray(1 << 20))
        """,
        ended(Reason.MEMORY),
    ),
    Attack(
        "take memory where the limit on address space does not count it: memory files, shared segments, queues",
        attempts(
            "os.memfd_create('hoard')", "kernel(@memfd_create@, b'hoard', 0)", "kernel(@memfd_secret@, 0)",
            "kernel(@shmget@, 0, 1 << 30, 0o1600)", "open('/dev/shm/hoard', 'w')",
            "kernel(@mq_open@, b'hoard', 0o102, 0o600, None)",
        ),
        nothing_gained,
    ),
    Attack(
        "take kernel memory that no limit of a process counts",
        attempts(
            "socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)",
            "socket.socketpair()[0].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b'\\1\\0\\0\\0')])",
            "__import__('fcntl').fcntl(os.pipe()[1], 1031, 1 << 20)", "kernel(@inotify_init1@, 0)",
            "kernel(@vmsplice@, 1, None, 0, 0)", "kernel(@timer_create@, 1, None, ctypes.byref(ctypes.c_int()))",
            "kernel(@landlock_create_ruleset@, None, 0, 1)", "kernel(@io_setup@, 1, ctypes.byref(ctypes.c_long()))",
        ),
        nothing_gained,
    ),
    Attack(
        "fill the buffers of as many sockets and pipes as it may have",
        """
        import os, socket
        print("tried", flush=True)
        kept, written = [], 0
        for make in (socket.socketpair, os.pipe):
            try:
                while True:
                    one, other = make()
                    ends = [end if isinstance(end, int) else end.detach() for end in (one, other)]
                    kept += ends
                    for end in ends[make is os.pipe:]:
                        os.set_blocking(end, False)
                        try:
                            while True:
                                written += os.write(end, b"x" * 4096)
                        except BlockingIOError:
                            pass
            except OSError:
                for end in kept[-4:]:
                    os.close(end)
                del kept[-4:]
        print("written", written)
        """,
        lambda result, world: 0 < int(result.stdout.split()[-1]) <= 16 * MIB,
    ),
    Attack(
        "write ten gigabytes to standard output",
        """
        import os
        print("tried", flush=True)
        for _ in range(10_000):
            os.write(1, b"x" * (1 << 20))
        """,
        lambda result, world: result.reason is Reason.OUTPUT and len(result.stdout) == LIMITS.output,
    ),
    Attack(
        "flood standard error",
        """
        import os
        print("tried", flush=True)
        while True:
            os.write(2, b"x" * (1 << 16))
        """,
        lambda result, world: result.reason is Reason.OUTPUT and len(result.stderr) == LIMITS.output,
    ),
    Attack(
        "print one line of 20 million characters",
        "print('tried', flush=True)\nprint('x' * 20_000_000)",
        lambda result, world: result.reason is Reason.OUTPUT and len(result.stdout) == LIMITS.output,
    ),
    Attack(
        "sleep for ever",
        "import time\nprint('tried', flush=True)\ntime.sleep(10**6)",
        ended(Reason.TIMEOUT),
        QUICK,
    ),
    Attack(
        "ignore every signal and sleep for ever",
        """
        import signal, time
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        print("tried", flush=True)
        while True:
            time.sleep(1)
        """,
        ended(Reason.TIMEOUT),
        QUICK,
    ),
    Attack(
        "compute for ever",
        "print('tried', flush=True)\nwhile True:\n    pass",
        lambda result, world: result.reason is Reason.TIMEOUT and result.status == -24,
        Limits(wall=30.0, cpu=1),
    ),
    Attack(
        "compute for ever, with the warning ignored",
        """
        import signal
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        print("tried", flush=True)
        while True:
            pass
        """,
        ended(Reason.TIMEOUT),
        Limits(wall=30.0, cpu=1),
    ),
    Attack(
        "fill the disk",
        """
        print("tried", flush=True)
        written = 0
        for number in range(20):
            try:
                with open(f"file{number}", "wb", buffering=0) as file:
                    while True:
                        written += file.write(b"x" * 65536)
            except OSError:
                pass
        print("written", written)
        """,
        lambda result, world: 0 < int(result.stdout.split()[-1]) <= LIMITS.disk,
    ),
    Attack(
        "make a file larger than the disk, with a hole in it",
        attempts("open('hole', 'wb').truncate(1 << 40)"),
        nothing_gained,
    ),
    Attack(
        "make thousands of files and folders",
        """
        import os
        print("tried", flush=True)
        made = 0
        for number in range(5000):
            try:
                os.mkdir(f"folder{number}") if number % 2 else open(f"file{number}", "w").close()
                made += 1
            except OSError:
                break
        print("made", made)
        """,
        lambda result, world: 0 < int(result.stdout.split()[-1]) <= LIMITS.files,
    ),
    Attack(
        "open thousands of files",
        attempts("[open('/dev/null') for _ in range(5000)]"),
        nothing_gained,
    ),
    Attack(
        "leave a core dump",
        "import os, resource\nprint('tried', resource.getrlimit(resource.RLIMIT_CORE), flush=True)\nos.abort()",
        lambda result, world: result.status == -6 and "(0, 0)" in result.stdout and not list(Path.cwd().glob("core*")),
    ),
    Attack(
        "leave a daemon behind",
        """
        import os, time
        print("tried", flush=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in range(3):
                    os.close(number)
                time.sleep(60)
            os._exit(0)
        """,
        lambda result, world: result.ok and not sandbox_processes(),
    ),
    Attack(
        "leave a daemon behind that keeps the output open",
        """
        import os, time
        print("tried", flush=True)
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
        """,
        lambda result, world: result.ok and result.seconds < 3 and not sandbox_processes(),
    ),
    Attack(
        "close everything it has and work on",
        """
        import os, time
        print("tried", flush=True)
        for number in range(64):
            try:
                os.close(number)
            except OSError:
                pass
        while True:
            time.sleep(1)
        """,
        ended(Reason.TIMEOUT),
        QUICK,
    ),
]  # fmt: skip
