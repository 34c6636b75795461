"""A real browser, and a folder for pictures of what it shows."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@contextmanager
def chromium(*options: str) -> Iterator[Browser]:
    """The distribution's Chromium."""
    found = shutil.which("chromium")
    assert found, "no chromium here: make deps"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", *options])
        yield started
        started.close()


def pictures(otherwise: Path) -> Path:
    """Where pictures lie: where KIMI_PROV_SCREENSHOTS says, else in a folder of the test's."""
    folder = Path(os.environ.get("KIMI_PROV_SCREENSHOTS") or otherwise)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
