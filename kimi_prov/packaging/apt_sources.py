"""The archives of distributions that this computer's own apt sources name."""

from __future__ import annotations

import re
from pathlib import Path


def read_own() -> list[str]:
    """Read the files of this computer's apt sources; none where it has no apt."""
    return [
        path.read_text(errors="replace")
        for folder, pattern in (("/etc/apt", "sources.list"), ("/etc/apt/sources.list.d", "*"))
        for path in sorted(Path(folder).glob(pattern))
        if path.suffix in {".list", ".sources"}
    ]


def find_archives(texts: list[str], distribution: str) -> tuple[str | None, str | None]:
    """Return a distribution's archive and its security archive, of sources in either form."""
    urls = [
        url.rstrip("/")
        for text in texts
        for line in text.splitlines()
        if line.startswith(("deb ", "URIs:"))
        for url in re.findall(r"https?://[^\s\]]+", line)
    ]
    main = next((url for url in urls if url.endswith(f"/{distribution}")), None)
    security = next((url for url in urls if url.endswith(f"/{distribution}-security")), None)
    return main, security
