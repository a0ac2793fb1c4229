"""Attacks that want to look or get out: files, environments, sockets, processes, the kernel."""

from __future__ import annotations

import os
from pathlib import Path

from practicum.sandbox.limits import Limits
from tests.sandbox.sandbox_world import SECRET, Attack, attempts, nothing_gained

ESCAPES = [
    Attack(
        "read a secret file whose path it knows",
        attempts("open('@FOLDER@/secret.txt').read()", "os.listdir('@FOLDER@')", "os.stat('@FOLDER@')"),
        nothing_gained,
    ),
    Attack(
        "read the machine's own files",
        attempts(
            "open('/etc/passwd').read()", "open('/etc/shadow').read()", "open('/etc/hostname').read()",
            "os.listdir('/home')", "os.listdir('/var')", "os.listdir('/sys')", "open('/proc/cmdline').read()",
            "open('/proc/version').read()", "open('/proc/meminfo').read()", "os.listdir('/dev/disk')",
        ),
        nothing_gained,
    ),
    Attack(
        "read environments: its own, its parent's, those of every process, of some it knows by number",
        """
        import os
        print("tried", dict(os.environ), flush=True)
        seen = [*filter(str.isdigit, os.listdir("/proc")), "self", "thread-self", str(os.getppid()), "@PID@", "@HOST@"]
        for name in seen:
            try:
                print(open(f"/proc/{name}/environ").read())
            except OSError:
                pass
        """,
        lambda result, world: result.stdout.startswith("tried {}") and SECRET not in result.stdout,
    ),
    Attack(
        "write outside its folder, and into the runtime it is shown",
        attempts(
            "open('@FOLDER@/planted', 'w')", "open('/planted', 'w')", "open('/etc/planted', 'w')",
            "open('/dev/planted', 'w')", "open(os.__file__, 'a')", "open(sys.executable, 'r+b')",
            "os.rename(os.__file__, os.__file__ + '.old')", "os.chmod(os.__file__, 0o777)", "os.utime(os.__file__)",
            "os.mkdir(os.path.dirname(os.__file__) + '/planted')",
        ),
        lambda result, world: nothing_gained(result, world)
        and not (world.folder / "planted").exists()
        and not Path("/planted").exists()
        and not Path(os.__file__).with_name("planted").exists(),
    ),
    Attack(
        "connect to a server on loopback",
        attempts(
            "socket.create_connection(('127.0.0.1', @PORT@), 1)", "socket.create_connection(('localhost', @PORT@), 1)",
            "socket.socket().connect(('0.0.0.0', @PORT@))",
        ),
        nothing_gained,
    ),
    Attack(
        "connect to Unix sockets: an abstract one, and one in a folder",
        attempts(
            "socket.socket(socket.AF_UNIX).connect(chr(0) + '@NAME@')",
            "socket.socket(socket.AF_UNIX).connect('@FOLDER@/socket')",
        ),
        nothing_gained,
    ),
    Attack(
        "open sockets of other families, ask for names",
        attempts(
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "socket.socket(socket.AF_NETLINK, 3, 0)",
            "socket.socket(socket.AF_PACKET, 3)", "socket.socket(38, 5)", "socket.socket(40, 1)",
            "socket.getaddrinfo('example.org', 80)",
        ),
        nothing_gained,
    ),
    Attack(
        "kill its parent, every process it can name, and all at once",
        """
        import os, signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("tried", flush=True)
        for pid in [1, os.getppid(), @PID@, @HOST@, *range(3, 3000), -1]:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
        print("alive")
        """,
        lambda result, world: result.ok and "alive" in result.stdout and world.bystander.poll() is None,
    ),
    Attack(
        "break its first process by signals, so that nothing is collected",
        """
        import os
        print("tried", flush=True)
        for number in range(1, 65):
            try:
                os.kill(1, number)
            except OSError:
                pass
        print("alive")
        """,
        lambda result, world: result.ok and "alive" in result.stdout,
    ),
    Attack(
        "look through /proc: other roots, other folders, other processes' memory",
        """
        import os
        print("tried", flush=True)
        seen = [name for name in os.listdir("/proc") if name.isdigit()]
        print("processes", len(seen), "more", sorted(set(os.listdir("/proc")) - set(seen)))
        places = ["/proc/1/root", "/proc/1/cwd", "/proc/self/root", "/proc/self/cwd/../..", "/proc/@PID@/root",
                  "/proc/@HOST@/cwd"]
        files = [f"{place}/{path}" for place in places for path in ("@FOLDER@/secret.txt", "etc/passwd")]
        files += ["/proc/1/mem", "/proc/1/maps", "/proc/sys/kernel/core_pattern", "/proc/kcore", "/proc/sysrq-trigger"]
        for path in files:
            try:
                open(path, "rb").read(1)
                print("GOT", path)
            except OSError:
                pass
        """,
        lambda result, world: nothing_gained(result, world)
        and "processes 2 more ['self', 'thread-self']" in result.stdout,
    ),
    Attack(
        "use descriptors that it inherited",
        """
        import os, stat
        print("tried", flush=True)
        for number in range(4096):
            try:
                kind = os.fstat(number).st_mode
            except OSError:
                continue
            print(number, "pipe" if stat.S_ISFIFO(kind) else "GOT " + oct(kind))
        """,
        lambda result, world: nothing_gained(result, world)
        and result.stdout.split() == ["tried", "0", "pipe", "1", "pipe", "2", "pipe"],
    ),
    Attack(
        "reach outside through symbolic and hard links, and upwards",
        attempts(
            "os.symlink('@FOLDER@/secret.txt', 'link') or open('link').read()",
            "os.symlink('/', 'root') or open('root/@FOLDER@/secret.txt').read()",
            "open('../' * 40 + '@FOLDER@/secret.txt').read()", "os.link('@FOLDER@/secret.txt', 'hard')",
        ),
        nothing_gained,
    ),
    Attack(
        "mount, unmount, pivot",
        attempts(
            "call('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None)", "call('umount2', b'/tmp', 2)",
            "call('umount2', b'/proc', 2)", "call('mount', b'proc', b'/tmp', b'proc', 0, None)",
            "call('mount', None, b'/', None, 32 | 4096, None)", "call('pivot_root', b'/tmp', b'/tmp')",
            "kernel(@open_tree@, -100, b'/', 1)", "kernel(@fsopen@, b'tmpfs', 0)",
        ),
        nothing_gained,
    ),
    Attack(
        "trace and read another process",
        attempts(
            "call('ptrace', 16, 1, 0, 0)", "call('ptrace', 0, 0, 0, 0)", "call('ptrace', 16, @PID@, 0, 0)",
            "kernel(@process_vm_readv@, 1, 0, 0, 0, 0, 0)", "open('/proc/1/mem', 'rb')",
            "kernel(@pidfd_getfd@, 3, 0, 0)",
        ),
        nothing_gained,
    ),
    Attack(
        "make namespaces of its own, to be root in",
        attempts(
            "call('unshare', 0x10000000)", "call('unshare', 0x20000)", "kernel(@clone@, 0x10000011, 0, 0, 0, 0)",
            "kernel(@clone3@, 0, 0)", "call('setns', 0, 0)",
        ),
        nothing_gained,
    ),
    Attack(
        "import or find what the training process is made of",
        """
        import importlib, os, sys
        print("tried", flush=True)
        for name in ("practicum", "torch", "transformers", "numpy", "pip", "pytest"):
            try:
                importlib.import_module(name)
                print("GOT", name)
            except ImportError:
                pass
        for folder, _, files in os.walk("/"):
            packages = folder.endswith(("site-packages", "dist-packages")) and files
            if not folder.startswith("/proc") and (packages or "practicum" in folder or "torch" in folder):
                print("GOT", folder)
        """,
        nothing_gained,
        Limits(wall=20.0, cpu=10),
    ),
    Attack(
        "become another user, or get capabilities back",
        attempts(
            "os.setuid(0 if os.getuid() else 1)", "os.setresuid(*[0 if os.getuid() else 2] * 3)",
            "os.setgid(0 if os.getgid() else 1)", "os.setgroups([0])", "os.seteuid(1)",
            "call('capset', (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6))",
        ),
        nothing_gained,
    ),
    Attack(
        "escape from its root folder by making another",
        attempts("os.chroot('.')", "os.chroot('/tmp')", "os.mkdir('jail') or os.chroot('jail')"),
        nothing_gained,
    ),
    Attack(
        "type into the terminal of whoever started it",
        attempts(
            "os.open('/dev/tty', os.O_RDWR)", "call('ioctl', 0, 0x5412, b'x')", "call('ioctl', 1, 0x5412, b'x')",
            "call('ioctl', 2, 0x541C, b'x')", "os.ttyname(0)", "os.open('/dev/ptmx', os.O_RDWR)",
        ),
        nothing_gained,
    ),
    Attack(
        "raise its own limits",
        attempts(*(f"resource.setrlimit(resource.RLIMIT_{kind}, (-1, -1))"
                   for kind in ("CPU", "FSIZE", "CORE", "NPROC", "NOFILE", "AS"))),
        nothing_gained,
    ),
    Attack(
        "use corners of the kernel: BPF, keys, io_uring, faults, counters, modules",
        attempts(*(f"kernel(@{name}@, 0, 0, 0, 0, 0)" for name in
                   ("bpf", "add_key", "keyctl", "io_uring_setup", "userfaultfd", "perf_event_open", "init_module",
                    "finit_module", "kexec_load", "reboot", "open_by_handle_at", "swapon"))),
        nothing_gained,
    ),
    Attack(
        "slip past the filter by the other tables of call numbers",
        attempts("kernel(@socket@ | 0x40000000, 1, 1, 0)", "kernel(@ptrace@ | 0x40000000, 0, 0, 0, 0)"),
        nothing_gained,
    ),
    Attack(
        "run other programs, or itself without the walls",
        """
        import os, subprocess, sys
        print("tried", flush=True)
        for command in (["/bin/sh", "-c", "id"], ["sh"], ["/usr/bin/bwrap"], ["/bin/su"], ["/bin/mount"]):
            try:
                subprocess.run(command)
                print("GOT", command)
            except OSError:
                pass
        look = "import os; print(os.path.exists('@FOLDER@'), open('/proc/self/status').read())"
        again = subprocess.run([sys.executable, "-S", "-c", look], capture_output=True, text=True).stdout
        facts = dict(line.split(":", 1) for line in again.splitlines() if ":" in line)
        walls = [facts[name].strip() for name in ("NoNewPrivs", "Seccomp", "CapEff", "CapPrm")]
        if not again.startswith("False") or walls != ["1", "2", "0" * 16, "0" * 16]:
            print("GOT", walls)
        """,
        nothing_gained,
    ),
    Attack(
        "find a secret in what the guest program left in the interpreter, then break its exit",
        """
        import builtins, gc, os, sys
        print("tried", flush=True)
        for thing in gc.get_objects():
            if isinstance(thing, (dict, list, tuple)):
                print(repr(thing)[:20])
        builtins.exit = sys.exit = os._exit = lambda *arguments: None
        raise SystemExit(0)
        """,
        lambda result, world: result.stdout.startswith("tried") and str(world.folder) not in result.stdout,
    ),
]  # fmt: skip
