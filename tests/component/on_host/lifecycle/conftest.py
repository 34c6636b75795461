"""What is waited for here comes within tenths of a second: it is looked for as often."""

from __future__ import annotations

import pytest

from kimi_prov.on_host.engine import ready
from kimi_prov.on_host.lifecycle import run, wake


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look every tenth of a second for what a machine looks for every second."""
    for module in (ready, run, wake):
        monkeypatch.setattr(module, "_POLL_INTERVAL_S", 0.1)
