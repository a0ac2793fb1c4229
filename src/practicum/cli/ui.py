"""`practicum ui [FOLDER]`: a live page over a folder of runs; it reads and never writes."""

from __future__ import annotations

import socket
from pathlib import Path

from practicum.errors import UserError
from practicum.utils.terminal import ArgumentParser


def run(argv: list[str]) -> int:
    parser = ArgumentParser(prog="practicum ui", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="a folder of runs (default: runs)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8777, help="port (default: 8777; 0: any free one)")
    args = parser.parse_args(argv)
    if not args.folder.is_dir():
        raise UserError(f"There is no folder '{args.folder}'; give the folder that your runs are written to.")
    if not 0 <= args.port < 65536:
        raise UserError(f"--port {args.port}: a port is a number from 0 to 65535.")
    try:
        with socket.socket(socket.AF_INET6 if ":" in args.host else socket.AF_INET) as probe:
            probe.bind((args.host, 0))
    except OSError as error:
        raise UserError(
            f"--host {args.host} cannot be listened on ({error.strerror}); give an address of this machine, "
            "such as 127.0.0.1, or 0.0.0.0 for all of them."
        ) from None
    from practicum.report.live.server import serve

    return serve(args.folder, args.host, args.port)
