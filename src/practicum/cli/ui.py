"""`practicum ui [FOLDER]`: a live page over a folder of runs; it reads and never writes."""

from __future__ import annotations

import argparse
from pathlib import Path

from practicum.errors import UserError

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum ui", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="a folder of runs (default: runs)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8777, help="port (default: 8777; 0: any free one)")
    args = parser.parse_args(argv)
    if not args.folder.is_dir():
        raise UserError(f"There is no folder '{args.folder}'; give the folder that your runs are written to.")
    if not 0 <= args.port < 65536:
        raise UserError(f"--port {args.port}: a port lies between 0 and 65535.")
    try:
        import uvicorn

        from practicum.ui.app import make_app
    except ImportError as error:
        raise UserError(f"The live page needs {error.name}: pip install 'practicum[ui]'.") from None
    return serve(uvicorn, make_app(args.folder, hosts(args.host)), args.host, args.port)


def hosts(host: str) -> list[str]:
    """The names a browser may call the page by: this machine's own, unless it was opened to others."""
    if host in ("0.0.0.0", "::"):
        return ["*"]
    return [*LOOPBACK, "[::1]", host]


def serve(uvicorn: object, app: object, host: str, port: int) -> int:
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"Cannot listen on {host}:{port} ({error.strerror}); choose another --port.") from None
    shown = f"[{host}]" if ":" in host else host
    print(f"http://{shown}:{listener.getsockname()[1]}/  (Ctrl-C ends it)", flush=True)
    if host not in LOOPBACK:
        print("Everybody who can reach this machine can read these runs.", flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)  # type: ignore[attr-defined]
    uvicorn.Server(config).run(sockets=[listener])  # type: ignore[attr-defined]
    return 0
