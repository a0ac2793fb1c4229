"""Serves the live page on one socket, by default for this machine only."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from types import FrameType

import uvicorn

from practicum.errors import UserError
from practicum.report.live.app import LivePage, make_app

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class LiveServer(uvicorn.Server):
    """Ends the pages' streams on shutdown; otherwise it would wait for them."""

    def __init__(self, config: uvicorn.Config, live: LivePage) -> None:
        super().__init__(config)
        self.live = live

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Like uvicorn's own, but the signal is not raised again: it is the normal way to end the command."""
        self.live.hub.close()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def hosts(host: str) -> list[str]:
    """The accepted host names: this machine's own, or all where it listens on all addresses."""
    return ["*"] if host in ("0.0.0.0", "::") else [*LOOPBACK, "[::1]", host]


def serve(folder: Path, host: str, port: int) -> int:
    """Serve until a signal ends it."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # a browser may connect as soon as the address is printed
    except OSError as error:
        listener.close()
        raise UserError(f"Cannot listen on {host}:{port} ({error.strerror}); choose another --port.") from None
    address = f"[{host}]" if ":" in host else host
    print(f"http://{address}:{listener.getsockname()[1]}/  (Ctrl-C ends it)", flush=True)
    if host not in LOOPBACK:
        print("Everybody who can reach this machine can read these runs.", flush=True)
    app = make_app(folder, hosts(host))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    LiveServer(config, app.state.live).run(sockets=[listener])
    return 0
