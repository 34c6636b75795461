"""Weights are read from the disk, and a port's other listener is named."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import pytest
from ports import free_port
from waiting import until

from kimi_prov.contract import gateways
from kimi_prov.on_host.drift import observe, weights
from kimi_prov.on_host.weights import manifest as manifests


def model_in(folder, body):
    """Write verified weights; return the part of a record that tells of them."""
    (folder / "a.safetensors").write_bytes(body)
    (folder / "b.json").write_bytes(b"{}")
    rows = {}
    entries = []
    for entry in manifests.list_directory(str(folder)):
        hasher = entry.hasher()
        path = folder / entry.path
        hasher.update(path.read_bytes())
        entries.append(manifests.Entry(entry.path, entry.size, hasher.sha256()))
        rows[entry.path] = manifests.Record.from_file(str(path), hasher.sha256())
    whole = manifests.Manifest(entries)
    manifests.write_mark(str(folder), whole, rows)
    file = folder / manifests.NAME
    file.write_text(json.dumps(whole.to_json()))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"dir": str(folder), "serve_dir": str(folder), "manifest_sha256": digest}


def of(applied, *, read=False):
    found = weights.list_differences(applied, read=read)
    return [(row.subject.rpartition("/")[2], row.observed) for row in found]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a disk needs root")
def test_the_disk_is_read_and_not_the_page_cache(tmp_path):
    """The disk's bytes change under a file that was read before, as by a fault of its own."""
    image, disk = tmp_path / "image", tmp_path / "disk"
    image.write_bytes(b"")
    os.truncate(image, 32 << 20)
    disk.mkdir()
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, disk], check=True)
    try:
        applied = model_in(disk, b"a byte that goes wrong" * 4096)
        os.sync()
        told: dict[str, str] = {}
        assert list(weights.list_differences(applied, read=True, told=told)) == []
        assert told == {str(disk): "disk"}
        place = image.read_bytes().index(b"a byte that goes wrong" * 100)
        with image.open("r+b") as stream:
            stream.seek(place)
            stream.write(b"A")
        os.sync()
        # Whoever reads the file itself is given what was read before.
        assert (disk / "a.safetensors").read_bytes()[:1] == b"a"
        assert of(applied, read=True) == [("a.safetensors", "other bytes")]
    finally:
        subprocess.run(["umount", disk], check=True)


def test_who_else_listens_on_a_gateways_port_is_named():
    port = free_port()
    argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    plan = {"schema": gateways.SCHEMA, "proxy": {"port": port, "backends": []}}
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as other:
        try:
            assert until(lambda: observe.list_listeners(plan, {}))
            (row,) = observe.list_listeners(plan, {})
        finally:
            other.kill()
    assert (row["unit"], row["pid"]) == ("kimi-proxy.service", other.pid)
