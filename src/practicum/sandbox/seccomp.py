"""A seccomp filter that denies system calls which ordinary programs do not need.

Namespaces already leave these calls nothing to reach. The filter is a second barrier: it keeps the parts of the kernel
in which most escapes were found out of reach (sockets of every family, new namespaces, mounts, tracing, keys, BPF,
io_uring), and the calls that take kernel memory which no limit of a process counts: larger buffers of sockets and
pipes, messages that carry descriptors, inotify queues, timers, Landlock rules. A pair of connected sockets may be made,
since asyncio needs one; its buffers keep their default size. A denied call fails with EPERM. The filter is classic BPF,
built here and passed to `prctl(PR_SET_SECCOMP)` inside the sandbox.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16
X32 = 0x40000000
"""Call numbers from here on belong to x86-64's x32 table, which a filter of the first table would not match."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""ioctl TIOCSTI and TIOCLINUX: type into the terminal of whoever started us."""
SET_PIPE_SIZE = 1031
"""fcntl F_SETPIPE_SZ: up to 1 MiB per pipe instead of 64 KiB."""
NEW_NAMESPACES = 0x7E020000
"""clone flags CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""

# fmt: off
COMMON = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
          "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_getfd": 438, "process_madvise": 440,
          "mount_setattr": 442, "landlock_create_ruleset": 444, "landlock_add_rule": 445,
          "landlock_restrict_self": 446, "memfd_secret": 447}
MACHINES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, {
        "socket": 41, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "mount": 165,
        "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321, "perf_event_open": 298,
        "userfaultfd": 323, "memfd_create": 319, "shmget": 29, "shmat": 30, "semget": 64, "msgget": 68, "mq_open": 240,
        "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
        "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "quotactl": 179, "syslog": 103, "personality": 135,
        "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159, "sethostname": 170,
        "setdomainname": 171, "iopl": 172, "ioperm": 173, "fanotify_init": 300,
        "lookup_dcookie": 212, "vhangup": 153, "modify_ldt": 154, "setsockopt": 54, "sendmsg": 46, "sendmmsg": 307,
        "inotify_init": 253, "inotify_init1": 294, "timer_create": 222, "vmsplice": 278, "io_setup": 206,
        "clone": 56, "clone3": 435, "ioctl": 16, "fcntl": 72}),
    "aarch64": (0xC00000B7, {
        "socket": 198, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "mount": 40,
        "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268, "name_to_handle_at": 264,
        "open_by_handle_at": 265, "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280, "perf_event_open": 241,
        "userfaultfd": 282, "memfd_create": 279, "shmget": 194, "shmat": 196, "semget": 190, "msgget": 186,
        "mq_open": 180, "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273,
        "delete_module": 106, "reboot": 142, "swapon": 224, "swapoff": 225, "acct": 89, "quotactl": 60, "syslog": 116,
        "personality": 92, "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171,
        "sethostname": 161, "setdomainname": 162, "fanotify_init": 262, "lookup_dcookie": 18,
        "vhangup": 58, "setsockopt": 208, "sendmsg": 211, "sendmmsg": 269, "inotify_init1": 26, "timer_create": 107,
        "vmsplice": 75, "io_setup": 0,
        "clone": 220, "clone3": 435, "ioctl": 29, "fcntl": 25}),
}
# fmt: on
DENIED_COMMANDS: Mapping[str, tuple[int, ...]] = {"ioctl": TERMINAL_INPUT, "fcntl": (SET_PIPE_SIZE,)}
"""Calls of which only some commands (their second argument) are denied."""
CONDITIONAL = ("clone", "clone3", *DENIED_COMMANDS)


def filter_program(machine: str | None = None) -> bytes:
    """Return the filter for a machine in the kernel's format; empty if its call numbers are not listed here."""
    table = MACHINES.get(machine or platform.machine())
    if table is None or (machine is None and struct.calcsize("P") != 8):  # 32-bit programs have a table of their own
        return b""
    audit, numbers = table
    refuse = REFUSE | errno.EPERM
    code = [
        _instruction(LOAD, MACHINE_AT),
        _instruction(JUMP_EQUAL, audit, 1, 0),
        _instruction(RETURN, KILL),  # calls of another machine's table (32-bit code) have other numbers
        _instruction(LOAD, NUMBER_AT),
    ]
    if audit == MACHINES["x86_64"][0]:
        code += [_instruction(JUMP_AT_LEAST, X32, 0, 1), _instruction(RETURN, refuse)]
    for name, number in {**COMMON, **numbers}.items():
        if name not in CONDITIONAL:
            code += [_instruction(JUMP_EQUAL, number, 0, 1), _instruction(RETURN, refuse)]
    # clone3 has its flags in memory, which a filter cannot read. When it fails with ENOSYS, libc uses clone.
    code += [_instruction(JUMP_EQUAL, numbers["clone3"], 0, 1), _instruction(RETURN, REFUSE | errno.ENOSYS)]
    code += [
        _instruction(JUMP_EQUAL, numbers["clone"], 0, 4),
        _instruction(LOAD, ARGUMENTS_AT),
        _instruction(JUMP_SET, NEW_NAMESPACES, 0, 1),
        _instruction(RETURN, refuse),
        _instruction(RETURN, ALLOW),
    ]
    for name, commands in DENIED_COMMANDS.items():
        code += [
            _instruction(JUMP_EQUAL, numbers[name], 0, 2 + 2 * len(commands)),
            _instruction(LOAD, ARGUMENTS_AT + 8),
        ]
        for command in commands:
            code += [_instruction(JUMP_EQUAL, command, 0, 1), _instruction(RETURN, refuse)]
        code.append(_instruction(RETURN, ALLOW))
    return b"".join([*code, _instruction(RETURN, ALLOW)])


def _instruction(operation: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    """Encode one instruction; `when_true` and `when_false` are the numbers of instructions to skip."""
    return struct.pack("=HBBI", operation, when_true, when_false, value)
