"""What `usage` says of the cache in host memory, by the counters of engines on the loopback."""

from __future__ import annotations

import http.server
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.engine import ready
from kimi_prov.on_host.system import files, machine_key
from kimi_prov.on_host.usage import host_cache, report
from kimi_prov.planner.settings.flag_names import VLLM
from kimi_prov.show.text import usage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# As vLLM prints them, of two engines of one server.
TEXT = """\
# TYPE vllm:external_prefix_cache_queries_total counter
vllm:external_prefix_cache_queries_total{engine="0",model_name="m"} 8000.0
vllm:external_prefix_cache_queries_total{engine="1",model_name="m"} 2000.0
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 6000.0
vllm:external_prefix_cache_hits_total{engine="1",model_name="m"} 500.0
"""


class Engine(http.server.BaseHTTPRequestHandler):
    """An engine that counts; without the machine key it says nothing."""

    key = ""

    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") == f"Bearer {self.key}"
        self.send_response(200 if allowed or self.path == "/health" else 401)
        self.send_header("X-Kimi-Counts", "1")
        self.end_headers()
        self.wfile.write(TEXT.encode() if allowed else b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Paths, int]]:
    """The machine's paths, and the port of its engine."""
    machine_key.ensure(tmp_path / "key")
    monkeypatch.setattr(ready, "MACHINE_KEY", str(tmp_path / "key"))
    monkeypatch.setattr(Engine, "key", machine_key.read(tmp_path / "key"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Paths(tmp_path), server.server_address[1]
        server.shutdown()


def collected(served: tuple[Paths, int], *argv: str) -> dict[str, Any]:
    paths, port = served
    files.make_directory(paths.plan.parent, 0o755)
    plan = {"instances": [{"index": 0, "argv": [*argv], "port": port}], "group": None}
    files.write_json(str(paths.plan), plan)
    return dict(report.collect(paths))


def test_usage_tells_what_the_cache_in_host_memory_had(served: tuple[Paths, int]) -> None:
    found = collected(served, f"--{VLLM.cache_offloading}", "64")
    assert found["host_cache"] == {"queried_tokens": 10_000, "found_tokens": 6_500}
    document: Any = {"by": "key", "rows": [], "hosts": {"h": found}}
    assert "h: the cache in host memory had 65% of 10,000 tokens" in usage.format_text(document)


def test_without_such_a_cache_nothing_is_said(served: tuple[Paths, int]) -> None:
    found = collected(served, "--max-num-seqs", "8")
    assert found["host_cache"] is None
    document: Any = {"by": "key", "rows": [], "hosts": {"h": found}}
    assert "host memory" not in usage.format_text(document)


def test_an_engine_that_does_not_answer_is_no_engine_without_hits(
    served: tuple[Paths, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "key", "another")
    assert collected(served, host_cache.FLAG, "64")["host_cache"] is None
