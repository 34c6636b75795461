"""A real HAProxy on the loopback, and the counter beside it."""

from __future__ import annotations

import shutil

import bucket_servers
import pytest
from counting import Counting
from ports import free_port
from running_proxy import CHECKS, Engine, Proxy, behind, page_of, page_there, shown_metrics

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import stop_state, tls
from kimi_prov.on_host.keys import metrics_key, publish
from kimi_prov.on_host.proxy import pins
from kimi_prov.on_host.system import machine_key


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """A server of S3's protocol, which takes seconds to start: what a test put there it removes."""
    with bucket_servers.s3(tmp_path_factory.mktemp("s3")) as cloud:
        yield cloud


@pytest.fixture
def make_proxy(tmp_path, request):
    """Builds proxies: `engines` engines behind it, `given` further keys, the role's `options`.

    With `upload_max_bytes` it has a page's frontend too, with `metrics` that of the metrics. With
    no engine there is no API: a rank of a group shows metrics alone, and has no client's key.
    Several in one test have a `name` each; `gateways` come before it, by the name of their key its
    hash, or it is a gateway before the `hosts`: with `doors`, the networks of the other gateways,
    it has the page for them too, and with `first` it hands on to the page of that one.
    """
    if shutil.which("haproxy") is None:
        pytest.fail("haproxy is not installed: run tests/system-packages haproxy")
    made: list[Proxy] = []

    def build(
        engines: int = 1,
        given: dict[str, str] | None = None,
        upload_max_bytes: int = 0,
        metrics: bool = False,
        wake: str = "off",
        *,
        name: str = "",
        gateways: dict[str, str | None] | None = None,
        hosts: dict[str, Proxy] | None = None,
        doors: list[str] | None = None,
        first: Proxy | None = None,
        checks: str = CHECKS,
        request_body_max_bytes: int = Proxy.request_body_max_bytes,
        **options: int,
    ) -> Proxy:
        place = tmp_path / name
        paths = Paths(place)
        for directory in (paths.proxy, paths.socket.parent):
            directory.mkdir(parents=True)
        tls.ensure(paths, {"mode": "self-signed", "names": ["lab1", "10.0.0.1"]})
        if engines or hosts:
            hashes = {n: publish.hash_key(k) for n, k in (given or {}).items()}
            publish.ensure(paths, hashes, gateways=gateways)
            machine_key.ensure(paths.machine_key)
        else:
            paths.keys.mkdir()
        known = {n: host.paths.tls_crt.read_text() for n, host in (hosts or {}).items()}
        if first:
            known["gw1"] = str(pins.read_pins(first.paths)["page_certificate"])
        pins.ensure(paths, known)
        pins.ensure_web_ui_certificate(paths, shared=bool(doors))
        if metrics:
            metrics_key.ensure(paths, {"sha256": None})
        stop_state.ensure(paths)
        proxy = Proxy(
            paths,
            free_port(),
            [Engine() for _ in range(engines)],
            place / "haproxy.cfg",
            web=page_of(upload_max_bytes, doors) if upload_max_bytes else None,
            metrics=shown_metrics() if metrics else None,
            options=options,
            rest={"idle": {} if wake == "off" else {"after_s": 60}, "wake": wake},
            gateway={
                "hosts": [behind(n, host) for n, host in hosts.items()],
                "peers": [],
                "address": None,
                "waiting": 2 * len(hosts),
                "page": page_there(first) if first else None,
            }
            if hosts
            else None,
            gateways=[{"key_name": key} for key in gateways] if gateways else None,
            checks=checks,
            request_body_max_bytes=request_body_max_bytes,
        )
        made.append(proxy)
        proxy.start()
        return proxy

    yield build
    for proxy in made:
        proxy.stop()
        for engine in proxy.engines:
            engine.hangs = False
            engine.shutdown()
            engine.server_close()


@pytest.fixture
def counting():
    """Starts the counter of a proxy, which ends with the test."""
    made: list[Counting] = []

    def start(proxy: Proxy, *, gateway: bool = False) -> Counting:
        made.append(Counting(proxy, gateway=gateway))
        return made[-1]

    yield start
    for one in made:
        if one.is_alive():
            one.end()
