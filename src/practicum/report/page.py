"""The page: one template, one style sheet and one script, in one file or served separately.

Nothing that a model wrote is ever part of the page's markup: it is embedded as JSON, and the script inserts it as text.
The content security policy allows this script and no other, by its hash, and no connection anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any

SCRIPTS = (
    "dom.js",
    "source.js",
    "charts.js",
    "result.js",
    "failures.js",
    "health.js",
    "differences.js",
    "glance.js",
    "overview.js",
    "list.js",
    "episode.js",
    "compare.js",
    "main.js",
)
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; require-trusted-types-for 'script'"


def asset(name: str) -> str:
    return resources.files("practicum.report").joinpath("static", name).read_text(encoding="utf-8")


def script() -> str:
    """All scripts as one, in a function scope of their own."""
    return "(() => {\n'use strict';\n" + "\n".join(asset(name) for name in SCRIPTS) + "\n})();\n"


def data_block(name: str, value: Any) -> bytes:
    """JSON inside the page. No `<` is left in it, so no text in it can end its element or begin another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    head = f'<script type="application/json" id="{_safe(name)}">'
    return head.encode() + text.encode("utf-8", "backslashreplace") + b"</script>\n"


def packed_block(name: str, packed: bytes) -> bytes:
    """Compressed bytes inside the page, as base64."""
    head = f'<script type="application/octet-stream" id="{_safe(name)}">'
    return head.encode() + base64.b64encode(packed) + b"</script>\n"


def self_contained(title: str, blocks: list[bytes]) -> bytes:
    """The whole page as one file that loads nothing and connects nowhere."""
    style, code = asset("style.css"), script()
    policy = f"{POLICY}; script-src {_hash(code)}; style-src {_hash(style)}"
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n<style>{style}</style>'.encode()
    )
    return _filled(title, head, b"".join(blocks) + f"<script>{code}</script>".encode())


def served(title: str) -> bytes:
    """The page whose style sheet and script come from the same server."""
    head = b'<link rel="stylesheet" href="style.css">'
    live = data_block("data", {"mode": "live"})
    return _filled(title, head, live + b'<script src="page.js"></script>')


SERVED_POLICY = f"{POLICY}; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"


def _filled(title: str, head: bytes, body: bytes) -> bytes:
    template = asset("page.html").encode()
    return (
        template.replace(b"{{title}}", html.escape(title).encode("utf-8", "replace"))
        .replace(b"{{head}}", head)
        .replace(b"{{body}}", body)
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _safe(name: str) -> str:
    return re.sub(r"[^a-z0-9-]", "", name)
