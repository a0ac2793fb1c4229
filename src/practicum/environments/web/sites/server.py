"""One HTTP server on the loopback address for the sessions of many episodes.

A session is named by a random cookie that is in no page and no address, so that pages and addresses of the same task
are the same in every episode. Requests without a known session are refused.
"""

from __future__ import annotations

import secrets
import threading
import time
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from practicum.environments.web.sites.html import heading, tag
from practicum.environments.web.sites.site import Response, SiteSession, document
from practicum.errors import UserError

COOKIE = "session"
ENTRY_PATH = "/enter/"
ADDRESS = "127.0.0.1"
MAX_BODY_BYTES = 65_536
MAX_DRAINED_BYTES = 1_048_576
MAX_FIELDS = 100
MAX_SESSIONS = 4096
IDLE_CONNECTION_SECONDS = 10.0
SHUTDOWN_SECONDS = 5.0


class SiteServer:
    """Serves sessions from a background thread between `start` and `close`. Also a context manager."""

    def __init__(self) -> None:
        self._sessions: dict[str, SiteSession] = {}
        self._lock = threading.Lock()
        self._http: _HttpServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen on a free port of the loopback address."""
        if self._http is not None:
            return
        self._http = _HttpServer((ADDRESS, 0), _RequestHandler)
        self._http.sites = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="web-sites", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and drop all sessions."""
        with self._lock:
            self._sessions.clear()
        if self._http is not None and self._thread is not None:
            self._http.shutdown()
            self._http.server_close()
            self._thread.join(SHUTDOWN_SECONDS)
        self._http = self._thread = None

    def __enter__(self) -> SiteServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """The address of the server, such as `http://127.0.0.1:40123`."""
        if self._http is None:
            raise UserError("The web sites are not served yet; call start() first.")
        return f"http://{ADDRESS}:{self._http.server_address[1]}"

    @property
    def num_sessions(self) -> int:
        """The number of open sessions."""
        return len(self._sessions)

    def open_session(self, session: SiteSession) -> str:
        """Serve a session and return its id, the value of the cookie `session`."""
        session_id = secrets.token_urlsafe(24)
        with self._lock:
            if len(self._sessions) >= MAX_SESSIONS:
                raise UserError(f"{MAX_SESSIONS} web sessions are open; close those of finished episodes.")
            self._sessions[session_id] = session
        return session_id

    def entry_url(self, session_id: str) -> str:
        """Return the address that gives a browser the session's cookie and shows its first page."""
        return f"{self.base_url}{ENTRY_PATH}{session_id}"

    def close_session(self, session_id: str) -> None:
        """Drop a session; requests for it are refused from now on."""
        with self._lock:
            self._sessions.pop(session_id, None)

    def session(self, session_id: str) -> SiteSession | None:
        """Return an open session."""
        return self._sessions.get(session_id)


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    sites: SiteServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of a request is no event to print."""


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "sites"
    sys_version = ""
    timeout = IDLE_CONNECTION_SECONDS
    server: _HttpServer

    def do_GET(self) -> None:
        self._serve("GET", {})

    def do_HEAD(self) -> None:
        self._refuse(405, "Method not allowed")

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            # Read some of it: a browser that is still writing when the connection closes does not see the answer.
            self.rfile.read(min(int(length), MAX_DRAINED_BYTES) if length.isdecimal() else 0)
            self._refuse(413, "Request too large")
            return
        try:
            text = self.rfile.read(int(length)).decode("utf-8")
            form = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
        except ValueError:
            self._refuse(400, "Bad request")
            return
        self._serve("POST", form)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: episodes are recorded by the environment."""

    def _serve(self, method: str, form: dict[str, str]) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/favicon.ico":
            self._send(Response(204))
            return
        is_entry = method == "GET" and parts.path.startswith(ENTRY_PATH)
        session_id = parts.path.removeprefix(ENTRY_PATH) if is_entry else self._session_id()
        session = self.server.sites.session(session_id)
        if session is None:
            self._refuse(403, "Unknown session")
            return
        if is_entry:
            self._send(Response(303, location=session.start_path), cookie=session_id)
            return
        try:
            query = dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=MAX_FIELDS))
        except ValueError:
            self._refuse(400, "Bad request")
            return
        response = session.handle(method, parts.path, query, form)
        if response.delay_seconds:
            time.sleep(response.delay_seconds)
        self._send(response)

    def _session_id(self) -> str:
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return ""
        return cookie[COOKIE].value if COOKIE in cookie else ""

    def _refuse(self, status: int, title: str) -> None:
        self.close_connection = True
        self._send(Response(status, document(title, tag("main", heading(title)))))

    def _send(self, response: Response, cookie: str = "") -> None:
        body = response.body.encode()
        self.send_response(response.status)
        if response.location:
            self.send_header("Location", response.location)
        if cookie:
            self.send_header("Set-Cookie", f"{COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Strict")
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'")
        self.end_headers()
        self.wfile.write(body)
