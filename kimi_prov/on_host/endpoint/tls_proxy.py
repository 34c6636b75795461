"""HAProxy before an engine without TLS, in a pod or a job: no root, no unit, no keys of its own.

It ends TLS and hands requests to the loopback as they came: the engine's gate checks the keys. The
certificate's key lies beside it in a file that ends in .key.

Decides: what runs in a pod (TLS before an engine that has none).
Held by: tests/component/on_host/pod/test_pod_proxy.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.files import write_atomic

# As on machines: an answer streams for minutes, and a client that says nothing leaves.
_IDLE_S = 3600
_CLIENT_S = 60
_CONNECTIONS = 2000
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
_SUITES = "TLS_AES_256_GCM_SHA384:TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
_ELSEWHERE = ("/usr/sbin", "/usr/local/sbin")
_ERROR = (
    'http-error status {} content-type application/json hdr Retry-After 5 string \'{{"error":'
    '{{"message":"{}","type":"server_error","param":null,"code":"{}"}}}}\''
)


@dataclass(frozen=True)
class Way:
    """From the port that clients come to, to the engine's own; without a certificate in clear."""

    port: int
    engine_port: int
    certificate: str | None
    drain_s: int


def format_configuration(way: Way) -> str:
    """Return HAProxy's configuration, for 2.4 and newer."""
    tls = f" ssl crt {way.certificate} alpn h2,http/1.1" if way.certificate else ""
    failures = [
        _ERROR.format(502, "The engine broke off.", "bad_gateway"),
        _ERROR.format(503, "The engine is starting or stopped; try again.", "engine_unavailable"),
        _ERROR.format(504, "The engine did not answer in time.", "timeout"),
    ]
    return "\n".join(
        [
            "global",
            "    log stdout format raw local0 notice",
            f"    maxconn {_CONNECTIONS}",
            f"    hard-stop-after {way.drain_s}s",
            # The key of tls.crt is in tls.key.
            "    ssl-load-extra-del-ext",
            "    ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets",
            f"    ssl-default-bind-ciphers {_CIPHERS}",
            f"    ssl-default-bind-ciphersuites {_SUITES}",
            "defaults",
            "    mode http",
            "    log global",
            "    option http-no-delay",
            "    option abortonclose",
            "    timeout http-request 30s",
            "    timeout http-keep-alive 75s",
            "    timeout connect 5s",
            f"    timeout client {_CLIENT_S}s",
            f"    timeout server {_IDLE_S}s",
            # A generation that has begun must not begin twice.
            "    retries 0",
            *(f"    {line}" for line in failures),
            "frontend api",
            f"    bind 0.0.0.0:{way.port}{tls}",
            # The connection stays HTTP.
            "    http-request del-header upgrade",
            "    http-request del-header http2-settings",
            "    option forwardfor",
            "    default_backend engine",
            "backend engine",
            f"    server engine 127.0.0.1:{way.engine_port}",
            "",
        ]
    )


def find_program(name: str = "") -> str:
    """Return HAProxy's path. Raises HostError where it is not there."""
    places = os.pathsep.join([os.environ.get("PATH", ""), *_ELSEWHERE])
    path = shutil.which(name or "haproxy", path=places)
    if path is None:
        raise HostError(
            f"{name or 'haproxy'} is not on this machine, and the engine speaks no TLS",
            "name a module that has HAProxy 2.4 or newer, or its path in KIMI_HAPROXY",
        )
    return path


class TlsProxy:
    """HAProxy as a child; a renewed certificate is taken without a connection less."""

    def __init__(self, way: Way, folder: str, program: str = "") -> None:
        self._program = find_program(program)
        self._file = os.path.join(folder, "haproxy.cfg")
        write_atomic(Path(self._file), format_configuration(way), 0o600)
        self._check()
        self._process = subprocess.Popen([self._program, "-W", "-f", self._file])

    def _check(self) -> None:
        line = [self._program, "-c", "-f", self._file]
        done = subprocess.run(line, check=False, capture_output=True, text=True)
        if done.returncode:
            output = (done.stderr or done.stdout).strip()[-400:]
            raise HostError(
                f"HAProxy refuses its configuration: {output}", "look at the certificate"
            )

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self._process.poll()

    def reload(self) -> None:
        """Read the certificate again; where it is no good the present one stays."""
        self._check()
        self._process.send_signal(signal.SIGUSR2)

    def stop(self, patience_s: float) -> None:
        """Let answers end, and end; killed when the patience is over."""
        for sent, wait_s in ((signal.SIGUSR1, patience_s), (signal.SIGTERM, 5.0)):
            if self.poll() is None:
                self._process.send_signal(sent)
                try:
                    self._process.wait(wait_s)
                except subprocess.TimeoutExpired:
                    continue
        if self.poll() is None:
            self._process.kill()
            self._process.wait()
