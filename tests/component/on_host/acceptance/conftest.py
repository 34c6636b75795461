from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import scripted_machine

from kimi_prov.on_host.endpoint import tls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scripted_machine import Served


@pytest.fixture(scope="session")
def certificate() -> str:
    return tls.make_self_signed(["localhost"])


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: str) -> Iterator[Served]:
    with scripted_machine.machine(tmp_path, monkeypatch, certificate) as found:
        yield found
