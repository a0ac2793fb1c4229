"""The first process inside a sandbox: it isolates itself and then runs the program.

It is passed to a bare interpreter as compiled code, so it imports nothing of Practicum, and little else: every import
here costs time at every start. As process 1 it mounts the working folder, drops every privilege, installs the filter of
system calls, writes `ready`, and forks. The child runs the program; process 1 only waits, reaps orphans and reports how
the child ended. When process 1 ends, the kernel kills everything else in the sandbox.

Arguments: the descriptor that this program and its job come from, the descriptor to report on.
"""

from __future__ import annotations

import _ast
import ctypes
import os
import resource
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, BinaryIO
else:
    import _signal as signal  # importing `signal`, a wrapper of it, takes longer than all the rest

PROGRAM = "<program>"
MEMORY_EXIT_STATUS = 112
"""Exit status of a program that exceeded its memory limit."""

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXECUTION, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVILEGES, AMBIENT, AMBIENT_CLEAR = 4, 22, 38, 47, 4
FILTER = 2
HOST_CHECK_SECONDS = 0.5
"""Seconds between two checks of process 1 that the host process still exists."""
MAX_PENDING_SIGNALS = 128
CHANNEL_OUT = 3
"""Descriptor to write on, of a program that is connected to another one; it reads from descriptor 0."""
CAPABILITY_VERSION = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, action: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{action}: {os.strerror(ctypes.get_errno())}")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind, data)]
    check(libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), f"mount {target}")


def bind(source: str, base: str, flags: int) -> None:
    """Bind a host path to the same path below `base`."""
    target = base + source
    if os.path.isdir(source):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_RDONLY, 0o600))
    mount(source, target, None, BIND)
    # Flags of the source's own mount may not be removed in a user namespace.
    inherited = os.statvfs(target).f_flag & (NO_SUID | NO_DEVICES | NO_EXECUTION)
    mount(None, target, None, BIND | REMOUNT | NO_SUID | flags | inherited)


def build_root(plan: dict[str, Any]) -> None:
    """Without bubblewrap: build a root folder that holds the Python runtime and nothing else."""
    base = "/proc"  # any folder that exists on every machine: it is covered only in this mount namespace
    mount(None, "/", None, RECURSIVE | PRIVATE)
    mount("tmpfs", base, "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    for path in plan["paths"]:
        bind(path, base, READ_ONLY | NO_DEVICES)
    for path in plan["hidden"]:
        mount("tmpfs", base + path, "tmpfs", READ_ONLY | NO_SUID | NO_DEVICES, "size=4k,mode=755")
    for path in plan["devices"]:
        bind(path, base, 0)
    for folder in ("/proc", "/tmp"):
        os.mkdir(base + folder, 0o755)
    mount("proc", f"{base}/proc", "proc", NO_SUID | NO_DEVICES | NO_EXECUTION)
    os.chdir(base)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount the old root")
    os.chdir("/")
    mount(None, "/", None, BIND | REMOUNT | READ_ONLY | NO_SUID | NO_DEVICES)


def mount_work_folder(job: dict[str, Any]) -> None:
    """Mount the working folder, limited in bytes and files, and a /proc that shows processes only."""
    try:  # noqa: SIM105 (contextlib is one more import at every start)
        mount("proc", "/proc", "proc", NO_SUID | NO_DEVICES | NO_EXECUTION, "subset=pid")
    except OSError:
        pass  # a kernel before 5.8: the existing /proc shows only these processes, but also facts about the kernel
    options = f"size={job['disk']},nr_inodes={job['files'] + 1},mode=777"
    mount("tmpfs", "/tmp", "tmpfs", NO_SUID | NO_DEVICES | NO_EXECUTION, options)
    os.chdir("/tmp")


def drop_privileges(uid: int | None, filter: bytes) -> None:
    """Drop user rights, capabilities and the means to regain them; no core dumps, no tracing."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when the machine runs out of memory, this process is killed first and not the training
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    libc.prctl(AMBIENT, AMBIENT_CLEAR, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    check(libc.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")
    check(libc.prctl(SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
    if filter:
        code = ctypes.create_string_buffer(filter, len(filter))

        class Program(ctypes.Structure):
            _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]

        install = Program(len(filter) // 8, ctypes.addressof(code))
        libc.prctl(SET_SECCOMP, FILTER, ctypes.byref(install), 0, 0)  # the host reports a kernel without seccomp


def set_limits(job: dict[str, Any]) -> None:
    """Set the limits of each process; they are inherited and cannot be raised again."""
    fixed = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: MAX_PENDING_SIGNALS,
        resource.RLIMIT_STACK: 8 * 1024 * 1024,
        resource.RLIMIT_NOFILE: job["open_files"],
        resource.RLIMIT_FSIZE: job["disk"],
        resource.RLIMIT_AS: job["memory"],
    }
    for kind, value in fixed.items():
        resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (job["cpu"], job["cpu"] + 1))  # SIGXCPU, and SIGKILL if that is ignored


def print_traceback(error: BaseException, source: str) -> None:
    """The traceback as the program's author would see it: its own frames with their lines, the last few."""
    import linecache
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != PROGRAM:
        trace = trace.tb_next
    linecache.cache[PROGRAM] = (len(source), None, source.splitlines(True), PROGRAM)
    traceback.print_exception(type(error), error, trace, limit=-5)


def run(source: str, show_last: bool) -> None:
    """Run a program as `__main__`; with `show_last`, print the value of a last line that is an expression."""
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    sys.argv = [PROGRAM]
    try:
        tree: Any = compile(source, PROGRAM, "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
        last = tree.body.pop() if show_last and tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, PROGRAM, "exec", dont_inherit=True), main.__dict__)
        if last is not None:
            exec(compile(_ast.Interactive([last]), PROGRAM, "single", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except MemoryError:
        exit_out_of_memory()
    except BaseException as error:  # whatever the program raised ends it
        try:
            print_traceback(error, source)
        except MemoryError:
            exit_out_of_memory()
        sys.exit(1)


def exit_out_of_memory() -> None:
    try:
        sys.stdout.flush()
    finally:
        os._exit(MEMORY_EXIT_STATUS)


def wait(child: int, report_out: int, cpu: int) -> str:
    """Reap ended processes until the program itself ends; return `exit STATUS` or `signal NUMBER`.

    If the host process was killed, the other end of the report pipe is closed and everything here is killed: the
    kernel's own parent-death signal does not reach processes of another user.
    """
    host = select.poll()
    host.register(report_out, 0)
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            break
        if ended == 0:
            if host.poll(0):
                os.kill(child, signal.SIGKILL)
                os._exit(1)
            signal.sigtimedwait([signal.SIGCHLD], HOST_CHECK_SECONDS)
    if os.WIFEXITED(status):
        return f"exit {os.WEXITSTATUS(status)}"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    signal_number = os.WTERMSIG(status)
    if signal_number == signal.SIGKILL and used.ru_utime + used.ru_stime >= cpu:
        signal_number = signal.SIGXCPU  # it had ignored SIGXCPU
    return f"signal {int(signal_number)}"


def main(source: BinaryIO) -> None:
    import marshal

    report_out = int(sys.argv[2])
    with source:
        job: dict[str, Any] = marshal.load(source)
    first_free = 3
    if job["channel"] is not None:
        while report_out <= CHANNEL_OUT:
            report_out = os.dup(report_out)
        os.dup2(job["channel"], CHANNEL_OUT, inheritable=False)
        first_free = CHANNEL_OUT + 1
    os.closerange(first_free, report_out)
    os.closerange(report_out + 1, 1 << 16)
    os.environ.clear()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # signals that process 1 does not handle have no effect on it
    os.umask(0o022)
    if job["build"] is not None:
        build_root(job["build"])
    if job["isolated"]:
        mount_work_folder(job)
        # Counted per user: in a new user namespace, or for a user id that nobody else has.
        resource.setrlimit(resource.RLIMIT_NPROC, (job["processes"] + job["counted"],) * 2)
    drop_privileges(job["uid"], job["filter"])
    os.write(report_out, b"ready\n")
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    child = os.fork()
    if child:
        exit_line = wait(child, report_out, job["cpu"])
        os.write(report_out, exit_line.encode())
        os._exit(0)
    os.close(report_out)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_limits(job)
    run(job["code"], job["show_last"])


if __name__ == "__main__":
    main(globals()["source"])  # set by the line that loaded this code (`Launcher.command`)
