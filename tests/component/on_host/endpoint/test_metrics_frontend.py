"""The metrics' frontend in the real HAProxy, before the real node exporter."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from waiting import HANGS_S, until

from kimi_prov.on_host.endpoint import draining, stop_state
from kimi_prov.on_host.keys import metrics_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWN = (
    "# HELP kimi_weights_verified 1.\n# TYPE kimi_weights_verified gauge\nkimi_weights_verified 1\n"
)


def ask(
    proxy: Any, path: str, key: str | None = None, method: str = "GET", port: int | None = None
) -> tuple[int, str]:
    context = ssl._create_unverified_context()  # noqa: S323  (its fingerprint is another test's)
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port or proxy.metrics["port"], timeout=HANGS_S, context=context
    )
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        with connection.getresponse() as answer:
            return answer.status, answer.read().decode()


@pytest.fixture
def watched(make_proxy: Any, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """A proxy that shows metrics of two engines and of the machine, and the key."""
    with exported(make_proxy(engines=2, metrics=True), tmp_path) as found:
        yield found


@pytest.fixture
def rank(make_proxy: Any, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """A proxy that shows metrics of the machine alone, and the key."""
    with exported(make_proxy(engines=0, metrics=True), tmp_path) as found:
        yield found


@contextlib.contextmanager
def exported(proxy: Any, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """Run a node exporter behind a proxy; give the proxy and the key of its metrics."""
    if shutil.which("prometheus-node-exporter") is None:
        pytest.fail("there is no prometheus-node-exporter: make deps")
    folder = tmp_path / "metrics"
    folder.mkdir()
    (folder / "kimi.prom").write_text(OWN)
    with subprocess.Popen(
        [
            "prometheus-node-exporter",
            f"--web.listen-address=127.0.0.1:{proxy.metrics['node_port']}",
            "--collector.disable-defaults",
            "--collector.textfile",
            f"--collector.textfile.directory={folder}",
            "--log.level=error",
        ]
    ) as exporter:
        try:
            key = metrics_key.read(proxy.paths)
            assert until(lambda: ask(proxy, "/metrics/node", key)[0] == 200)
            for engine in proxy.engines:
                engine.seen.clear()
            yield proxy, key
        finally:
            exporter.terminate()


def test_each_kind_is_shown_to_who_has_the_key(watched: tuple[Any, str]) -> None:
    proxy, key = watched
    status, text = ask(proxy, "/metrics/node", key)
    assert (status, "kimi_weights_verified 1" in text) == (200, True)
    status, text = ask(proxy, "/metrics/proxy", key)
    assert (status, 'haproxy_server_status{proxy="engines"' in text) == (200, True)
    for index, engine in enumerate(proxy.engines):
        assert ask(proxy, f"/metrics/engine/{index}", key)[0] == 200
        path, headers = engine.seen[-1]
        machine = proxy.paths.machine_key.read_text().split()[1]
        assert (path, headers["authorization"]) == ("/metrics", f"Bearer {machine}")


def test_without_the_key_nothing_is_told(watched: tuple[Any, str]) -> None:
    proxy, _ = watched
    for key in (None, "sk-kimi-wrong"):
        for path in ("/metrics/node", "/metrics/proxy", "/metrics/engine/0", "/"):
            assert ask(proxy, path, key) == (401, "Missing or incorrect key of the metrics."), path
    assert not proxy.engines[0].seen


NOT_THERE = (
    "/metrics",
    "/metrics/gpu",
    "/metrics/engine/2",
    "/metrics/engine/0/",
    "/metrics/engine/0/../../v1/models",
    "/metrics/engine/%30",
    "/v1/models",
    "/health",
)


def test_there_is_no_other_path_and_no_other_method(watched: tuple[Any, str]) -> None:
    proxy, key = watched
    for path in NOT_THERE:
        assert ask(proxy, path, key)[0] == 404, path
    assert ask(proxy, "/metrics/engine/0", key, method="POST")[0] == 404
    assert ask(proxy, "/metrics/node", key, method="DELETE")[0] == 404
    assert not [seen for engine in proxy.engines for seen in engine.seen]


def test_what_is_asked_beside_the_path_reaches_nobody(watched: tuple[Any, str]) -> None:
    proxy, key = watched
    assert ask(proxy, "/metrics/engine/0?path=/v1/models", key)[0] == 200
    assert proxy.engines[0].seen[-1][0] == "/metrics"


def test_a_key_of_the_api_opens_no_metrics_and_theirs_no_api(watched: tuple[Any, str]) -> None:
    proxy, key = watched
    assert ask(proxy, "/metrics/node", proxy.key())[0] == 401
    assert ask(proxy, "/v1/models", key, port=proxy.port)[0] == 401
    assert ask(proxy, "/v1/models", proxy.key(), port=proxy.port)[0] == 200


def test_an_engine_that_is_down_is_told_and_hides_nothing_else(watched: tuple[Any, str]) -> None:
    proxy, key = watched
    proxy.engines[0].shutdown()
    proxy.engines[0].server_close()
    assert ask(proxy, "/metrics/engine/0", key)[0] == 503
    assert ask(proxy, "/metrics/engine/1", key)[0] == 200
    assert ask(proxy, "/metrics/node", key)[0] == 200


def test_refusals_are_logged_and_readings_are_not(watched: tuple[Any, str]) -> None:
    proxy, key = watched
    ask(proxy, "/metrics/node", key)
    ask(proxy, "/metrics/nothing", key)
    assert until(lambda: "/metrics/nothing 404" in proxy.log)
    assert "/metrics/node 200" not in proxy.log
    assert key not in proxy.log


def test_a_rank_shows_the_machine_and_serves_nobody(rank: tuple[Any, str]) -> None:
    proxy, key = rank
    status, text = ask(proxy, "/metrics/node", key)
    assert (status, "kimi_weights_verified 1" in text) == (200, True)
    status, text = ask(proxy, "/metrics/proxy", key)
    assert (status, 'haproxy_frontend_status{proxy="metrics"' in text) == (200, True)
    assert 'proxy="api"' not in text
    for path in ("/metrics/node", "/metrics/proxy"):
        assert ask(proxy, path)[0] == 401
    for path in ("/metrics/engine/0", "/v1/models", "/health"):
        assert ask(proxy, path, key)[0] == 404, path
    with pytest.raises(ConnectionRefusedError):
        ask(proxy, "/v1/models", key, port=proxy.port)
    assert not proxy.paths.key_map.exists()
    assert not proxy.paths.machine_key.exists()


def test_a_rank_that_stops_and_starts_has_nothing_to_drain(rank: tuple[Any, str]) -> None:
    proxy, key = rank
    assert draining.drain(proxy.paths, HANGS_S) == 0
    assert draining.is_up(proxy.paths)
    stop_state.write(proxy.paths, stop_state.build_state(stop_state.STOPPED, "stopped by hand"))
    assert ask(proxy, "/metrics/node", key)[0] == 200
    assert stop_state.clear(proxy.paths)["state"] == stop_state.STOPPED
    assert ask(proxy, "/metrics/node", key)[0] == 200


def test_a_gateway_shows_its_proxy_and_itself(make_proxy: Any, tmp_path: Path) -> None:
    hosts = {"gpu1": make_proxy(name="gpu1", gateways={"gateway.gw1": None})}
    gateway = make_proxy(0, name="gw1", hosts=hosts, metrics=True)
    with exported(gateway, tmp_path) as (proxy, key):
        status, text = ask(proxy, "/metrics/proxy", key)
        assert status == 200
        assert 'haproxy_server_status{proxy="engines",server="gpu1"' in text
        status, text = ask(proxy, "/metrics/node", key)
        assert status == 200
        assert "kimi_weights_verified 1" in text
        assert ask(proxy, "/metrics/engine/0", key)[0] == 404
        assert ask(proxy, "/metrics/node", "wrong")[0] == 401
