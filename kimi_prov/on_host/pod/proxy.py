"""`pod proxy [--ready]`: TLS before an engine that speaks none, in a container of its own.

It stays until the engine has ended: both are told to end at once, and answers under way still pass
through here. A certificate that was renewed in its Secret counts at once.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import socket
import ssl
import time

from kimi_prov.contract import pod
from kimi_prov.contract.errors import EXIT_TRANSIENT, HostError
from kimi_prov.on_host.endpoint import tls_proxy
from kimi_prov.on_host.pod import state
from kimi_prov.on_host.pod.mounts import Mounts
from kimi_prov.on_host.system.files import read_text

_POLL_INTERVAL_S = 0.5
# Seconds for answers that HAProxy still has after the engine's end: none is made any more.
_DRAIN_S = 30
_TIMEOUT_S = 10.0


def main(argv: list[str]) -> int:
    """Run the proxy until the pod ends; or ask it once."""
    parser = argparse.ArgumentParser(prog="proxy")
    parser.add_argument("--ready", action="store_true", help="ask whether it answers")
    options = parser.parse_args(argv)
    mounts = Mounts.from_environment()
    if options.ready:
        return _ask(mounts)
    pair = mounts.tls()
    way = tls_proxy.Way(
        state.find_port(mounts),
        state.find_engine_port(mounts),
        pair[0] if pair else None,
        _DRAIN_S,
    )
    signals: list[int] = []
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda received, _frame: signals.append(received))
    folder = mounts.locate(pod.PROXY_RUN)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    proxy = tls_proxy.TlsProxy(way, folder)
    seen = _read_certificate(mounts)
    while proxy.poll() is None:
        if signals and not _is_listening(way.engine_port):
            proxy.stop(_DRAIN_S)
            print("ended as requested", flush=True)
            return 0
        present = _read_certificate(mounts)
        if present != seen:
            seen = present
            _take_certificate(mounts, proxy)
        time.sleep(_POLL_INTERVAL_S)
    print(f"HAProxy ended with status {proxy.poll()}", flush=True)
    return EXIT_TRANSIENT


def _read_certificate(mounts: Mounts) -> tuple[str, str]:
    """Return certificate and key: a Secret's files are replaced, one after the other."""
    paths = (pod.TLS_CERTIFICATE, pod.TLS_KEY)
    certificate, key = (read_text(mounts.locate(path)) for path in paths)
    return certificate, key


def _take_certificate(mounts: Mounts, proxy: tls_proxy.TlsProxy) -> None:
    try:
        mounts.tls()
        proxy.reload()
    except HostError as error:
        print(f"the former certificate stays: {error.line}", flush=True)
    else:
        print("the certificate was renewed", flush=True)


def _is_listening(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 5):
            return True
    except OSError:
        return False


def _ask(mounts: Mounts) -> int:
    """Return 0 where the proxy answers, whatever the engine does."""
    connection: http.client.HTTPConnection
    port = state.find_port(mounts)
    if mounts.tls():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, timeout=_TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        print(f"the proxy does not answer: {error or type(error).__name__}", flush=True)
        return EXIT_TRANSIENT
    finally:
        connection.close()
    return 0
