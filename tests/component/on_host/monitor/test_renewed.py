"""A certificate is renewed by another intermediate, and a real Prometheus goes on reading."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import ssl
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from prometheus import prometheus, query
from waiting import until

from kimi_prov.ansible.plugins.action.kimi_scrape_target import select_trusted
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.monitor import config, ensure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = {"listen": "127.0.0.1", "alertmanager_port": 9, "scrape_interval_s": 1}
NAME = "kimi.example.com"


class Authority:
    """One that issues by intermediates of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._signed("root", None, "CA:TRUE")

    def _signed(self, name: str, by: str | None, constraints: str) -> str:
        key, request = self.folder / f"{name}.key", self.folder / f"{name}.csr"
        file, more = self.folder / f"{name}.crt", self.folder / f"{name}.ext"
        more.write_text(f"basicConstraints=critical,{constraints}\nsubjectAltName=DNS:{NAME}\n")
        made = ("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        self._openssl(*made, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request))
        signer = self.folder / (by or name)
        own = ("-CA", f"{signer}.crt", "-CAkey", f"{signer}.key", "-CAcreateserial")
        self._openssl(
            *("x509", "-req", "-days", "1", "-in", str(request), "-extfile", str(more)),
            *(own if by else ("-signkey", str(key))),
            *("-out", str(file)),
        )
        return file.read_text()

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)

    def root(self) -> str:
        return (self.folder / "root.crt").read_text()

    def issue(self, intermediate: str) -> tuple[Path, str]:
        """A new certificate with its chain: the file that is served, and what of it is public."""
        above = self._signed(intermediate, "root", "CA:TRUE")
        chain = self._signed(f"leaf-{intermediate}", intermediate, "CA:FALSE") + above
        key = (self.folder / f"leaf-{intermediate}.key").read_text()
        served = self.folder / "served.pem"
        served.write_text(chain + key)
        return served, chain


class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"shown 1\n")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def showing(context: ssl.SSLContext) -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def plan(mode: str, bundle: Path | None = None) -> dict[str, Any]:
    return {
        "proxy": {"tls": {"mode": mode}},
        "site": {"ca_bundle": str(bundle) if bundle else None},
    }


@pytest.mark.parametrize("sites_own", [False, True], ids=["a public authority", "the site's own"])
def test_a_renewal_by_another_intermediate_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sites_own: bool
) -> None:
    for name in ("prometheus", "openssl"):
        if shutil.which(name) is None:
            pytest.fail(f"there is no {name}: make deps")
    authority = Authority(tmp_path / "authority")
    bundle, roots = tmp_path / "bundle.pem", tmp_path / "roots.pem"
    bundle.write_text(authority.root())
    roots.write_text(Authority(tmp_path / "other").root() if sites_own else authority.root())
    # Where Go looks for the system's.
    monkeypatch.setenv("SSL_CERT_FILE", str(roots))
    monkeypatch.setenv("SSL_CERT_DIR", "/nonexistent")
    served, chain = authority.issue("first")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(served)

    given = select_trusted(plan("acme", bundle if sites_own else None), chain)
    text = config.find_trusted(given, roots.read_text())
    (tmp_path / "h1.key").write_text("k\n")
    if text is not None:
        (tmp_path / "h1.crt").write_text(text)
    with showing(context) as port:
        host = {"name": "h1", "address": "127.0.0.1", "port": port, "server_name": NAME}
        host |= {"engines": [], "ca_file": text is not None}
        made = config.build_prometheus_config(SETTINGS, {"h1": host}).replace(
            config.HOSTS, str(tmp_path)
        )
        with prometheus(tmp_path, json.loads(made.partition("\n")[2])) as address:
            assert until(lambda: len(query(address, "up == 1")) == 2)
            context.load_cert_chain(authority.issue("second")[0])
            before = query(address, "time()")[1]
            newer = f"timestamp(up) > {float(before)}"
            assert until(lambda: len(query(address, newer)) == 2)
            assert query(address, "up == 0") == []


def test_what_was_trusted_alone_is_dropped_where_a_certificate_is_ordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("systemctl", "nft"):
        tool = tmp_path / name
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    paths = Paths(tmp_path / "root")
    known = paths.locate(config.HOSTS)
    known.mkdir(parents=True)
    for name in ("ordered", "kept"):
        (known / f"{name}.crt").write_text("CERTIFICATE\n")
    kept = {"name": "kept", "address": "10.0.0.2", "port": 1, "server_name": "b", "engines": []}
    (known / "kept.json").write_text(json.dumps(kept))
    door = {"address": "10.0.0.1", "port": 1, "server_name": "a", "engines": [], "key": "k"}
    wanted = {
        "settings": {**SETTINGS, "port": 9, "networks": []},
        "receivers": {},
        **{kind: {} for kind in ("rules", "consoles", "units")},
        "hosts": {
            "ordered": {**door, **select_trusted(plan("acme"), "CERTIFICATE\n")},
            "kept": None,
        },
    }
    did = ensure.ensure(paths, wanted, check=True)["did"]
    assert [word for word in did if word.endswith(".crt")] == [f"-{known}/ordered.crt"]


@pytest.mark.parametrize("mode", ["files", "self-signed"])
def test_any_other_certificate_is_trusted_alone(mode: str, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("AUTHORITIES\n")
    assert (
        config.find_trusted(select_trusted(plan(mode, bundle), "CERTIFICATE\n"), "ROOTS\n")
        == "CERTIFICATE\n"
    )
