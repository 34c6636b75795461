"""What is looked at beside the record: drop-ins, start lines, rotated logs, the weights' bytes."""

from __future__ import annotations

import gzip
import hashlib
import json
import os

import pytest

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.drift import observe, weights
from kimi_prov.on_host.weights import manifest as manifests


def write(root, name, text=""):
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_drop_ins_are_found_wherever_systemd_reads_them(tmp_path):
    names = [
        "/etc/systemd/system/kimi-serve@0.service.d/10-plan.conf",
        "/etc/systemd/system/kimi-serve@.service.d/own.conf",
        "/etc/systemd/system/kimi-.service.d/all.conf",
        "/run/systemd/system/kimi-serve@0.service.d/tonight.conf",
        "/etc/systemd/system.control/kimi-serve@0.service.d/50-Memory.conf",
    ]
    for name in [*names, "/etc/systemd/system/other.service.d/x.conf"]:
        write(tmp_path, name)
    write(tmp_path, "/etc/systemd/system/kimi-serve@0.service.d/README")
    assert sorted(observe.list_drop_ins("kimi-serve@0.service", str(tmp_path))) == sorted(names)


def test_the_last_start_line_counts(tmp_path):
    unit = write(tmp_path, "unit", "[Service]\nExecStart=/bin/a --x 'two words' $$HOME\n")
    own = write(tmp_path, "own", "[Service]\nExecStart=\nExecStart=/bin/b 50%%\n")
    found = {"file": str(unit), "drop_ins": [], "extra": []}
    assert observe.build_start_command(found) == ["/bin/a", "--x", "two words", "$HOME"]
    assert observe.build_start_command({**found, "extra": [str(own)]}) == ["/bin/b", "50%"]


def test_another_file_that_sets_a_kernel_setting_is_named(tmp_path):
    write(tmp_path, "/etc/sysctl.d/80-kimi.conf", "vm.swappiness = 1\n")
    write(tmp_path, "/etc/sysctl.d/99-site.conf", "# vm.swappiness\n-vm/swappiness=60\n")
    write(tmp_path, "/etc/sysctl.conf", "#vm.swappiness=9\nvm_swappiness=9\n")
    assert observe.list_sysctl_files("vm.swappiness", str(tmp_path)) == [
        "/etc/sysctl.d/99-site.conf"
    ]


def test_logs_are_read_over_their_rotation(tmp_path, monkeypatch):
    monkeypatch.setattr(observe, "run", lambda *_: type("Done", (), {"stdout": ""}))
    line = "2026-11-24 02:0{}:00 upgrade haproxy:amd64 {} {}\n"
    write(tmp_path, "/var/log/dpkg.log", line.format(5, 3, 4))
    write(tmp_path, "/var/log/dpkg.log.1", line.format(4, 2, 3))
    packed = write(tmp_path, "/var/log/dpkg.log.2.gz")
    packed.write_bytes(gzip.compress(line.format(3, 1, 2).encode()))
    torn = write(tmp_path, "/var/log/dpkg.log.3.gz")
    torn.write_bytes(gzip.compress(b"x" * 99)[:20])
    found = observe.read_logs(Paths(tmp_path), 0)
    assert [change.new for change in found.changes] == ["2", "3", "4"]
    old = write(tmp_path, "/var/log/dpkg.log.1", line.format(4, 2, 3))
    os.utime(old, (5, 5))
    assert [change.new for change in observe.read_logs(Paths(tmp_path), 9).changes] == ["2", "4"]


@pytest.fixture
def model(tmp_path):
    return model_in(tmp_path, b"0" * 4096)


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


def test_weights_as_they_were_verified_are_no_drift(model):
    assert of(model) == []
    assert of(model, read=True) == []


def test_a_flipped_byte_is_found_by_reading_alone(model, tmp_path):
    file = tmp_path / "a.safetensors"
    state = file.stat()
    with file.open("r+b") as stream:
        stream.seek(77)
        stream.write(b"1")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert of(model) == []
    assert of(model, read=True) == [("a.safetensors", "other bytes")]


def test_what_stat_tells_needs_no_reading(model, tmp_path):
    (tmp_path / "b.json").unlink()
    with (tmp_path / "a.safetensors").open("ab") as stream:
        stream.write(b"0")
    assert of(model) == [("a.safetensors", "4097 bytes"), ("b.json", "absent")]


def test_a_file_that_was_only_touched_is_told_until_it_is_read(model, tmp_path):
    os.utime(tmp_path / "b.json", (7, 7))
    assert [name for name, _ in of(model)] == ["b.json"]
    assert of(model, read=True) == []


def test_weights_whose_manifest_is_gone_or_another_are_drift(model, tmp_path):
    file = tmp_path / manifests.NAME
    document = json.loads(file.read_text())
    document["files"][0]["sha256"] = "0" * 64
    file.write_text(json.dumps(document))
    assert [name for name, _ in of(model, read=True)] == [manifests.NAME, "a.safetensors"]
    file.unlink()
    assert of(model) == [(manifests.NAME, "absent")]


def test_a_draft_of_the_model_is_looked_at_too(model, tmp_path):
    (tmp_path / "draft").mkdir()
    folders = weights.list_folders({**model, "draft_dir": str(tmp_path / "draft")})
    assert [folder.path for folder in folders] == [str(tmp_path), str(tmp_path / "draft")]
