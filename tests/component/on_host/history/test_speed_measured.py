"""The probe of a switch measures a stream of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ports import free_port
from streaming_engine import serving

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.history import speed

if TYPE_CHECKING:
    from pathlib import Path


def plan(port: int | None) -> dict[str, Any]:
    return {"instances": [{"port": port}], "model": {"served_names": ["kimi"]}}


def test_a_stream_is_measured(tmp_path: Path) -> None:
    with serving() as (port, counts):
        found = speed.measure(Paths(tmp_path), plan(port), rounds=2)
    assert [asked["max_tokens"] for asked in counts.asked] == [speed.TOKENS] * 2
    assert found is not None
    assert found["rounds"] == 2
    assert found["decode_tok_s"] > 0


def test_what_does_not_answer_has_no_speed(tmp_path: Path) -> None:
    assert speed.measure(Paths(tmp_path), plan(free_port()), rounds=1) is None
    assert speed.measure(Paths(tmp_path), plan(None)) is None
