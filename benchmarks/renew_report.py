"""The data of reports that were made elsewhere in the page of this checkout: a GPU is not needed again.

    python benchmarks/renew_report.py docs/gpu-training/*.html

Data (runs, comparisons, episodes) stay byte for byte; template, style sheet and script are those of today.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

from practicum.data.run_folder import write_atomic
from practicum.report.page import self_contained

TITLE = re.compile(rb"<title>(.*?)</title>", re.DOTALL)
BLOCK = re.compile(rb'<script type="application/[a-z-]+" id="[a-z0-9-]+">[^<]*</script>\n')


def renewed(page: bytes) -> bytes:
    """The page of this checkout with the data blocks of a report."""
    title, blocks = TITLE.search(page), BLOCK.findall(page)
    if title is None or not blocks:
        raise SystemExit("This is no report of `practicum report`.")
    return self_contained(html.unescape(title[1].decode()), blocks)


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        before = path.read_bytes()
        write_atomic(path, renewed(before))
        print(f"{path}: {len(before):,} → {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
