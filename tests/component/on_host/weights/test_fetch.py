"""Fetching weights against servers that really cut, stall, lie and redirect."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import until
from weights_server import COMMIT, HubHandler, Server

from kimi_prov.on_host.weights import fetch

ROOT = Path(__file__).parents[4]
Start = Callable[..., Server]


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311


def manifest_of(files: dict[str, bytes]) -> dict[str, Any]:
    rows = [
        {"path": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for name, body in files.items()
    ]
    return {"files": rows}


@pytest.fixture
def files() -> dict[str, bytes]:
    return {
        "model-1.safetensors": noise(1, 900_000),
        "model-2.safetensors": noise(2, 700_000),
        "config.json": b"{}\n",
        "sub/empty": b"",
    }


@pytest.fixture
def serve() -> Iterator[Start]:
    servers = []

    def start(*args: Any, **kwargs: Any) -> Server:
        servers.append(Server(*args, **kwargs))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


class Machine:
    """The managed machine as the subcommand sees it: a config, a directory, a progress file."""

    def __init__(self, root: Path) -> None:
        self.dir = root / "models/kimi/rev"
        self.config_path = root / "weights.json"
        self.progress_path = root / "run/progress/fetch.json"
        self.config: dict[str, Any] = {
            "dir": str(self.dir),
            "progress": str(self.progress_path),
            "workers": 2,
            "stall_s": 1,
            "first_contact_s": 1,
            "patience_s": 60,
            "pause_s": 0.1,
        }

    def write(self, **changes: Any) -> None:
        self.config.update(changes)
        self.config_path.write_text(json.dumps(self.config))

    def fetch(self, *flags: str, **changes: Any) -> int:
        self.write(**changes)
        return fetch.main(["--config", str(self.config_path), *flags])

    @property
    def progress(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.progress_path.read_text())
        return document

    def holds(self, files: dict[str, bytes]) -> bool:
        return all((self.dir / name).read_bytes() == body for name, body in files.items())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_files_arrive_verified_and_the_mark_is_the_last_thing(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    server = serve(files)
    assert machine.fetch(source=server.url, manifest=manifest_of(files)) == 0
    assert machine.holds(files)
    assert sorted(p.name for p in machine.dir.iterdir()) == [
        ".kimi-verified",
        "config.json",
        "kimi-manifest.json",
        "model-1.safetensors",
        "model-2.safetensors",
        "sub",
    ]
    modes = {p: p.stat().st_mode & 0o777 for p in machine.dir.rglob("*")}
    assert {m for p, m in modes.items() if p.is_file()} == {0o644}
    assert {m for p, m in modes.items() if p.is_dir()} == {0o755}
    mark = (machine.dir / ".kimi-verified").stat().st_mtime_ns
    others = [p.stat().st_mtime_ns for p in machine.dir.rglob("*") if p.name != ".kimi-verified"]
    assert mark >= max(others)
    seen = machine.progress
    assert seen["state"] == "done"
    assert seen["done_bytes"] == seen["total_bytes"] == sum(map(len, files.values()))
    assert (machine.progress_path.stat().st_mode & 0o777) == 0o644


def test_a_second_run_asks_the_source_nothing(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    server = serve({**files, "kimi-manifest.json": json.dumps(manifest_of(files)).encode()})
    assert machine.fetch(source=server.url) == 0
    server.behaviour.requests.clear()
    assert machine.fetch("--check") == 0
    assert machine.fetch() == 0
    assert server.behaviour.requests == []


def test_the_manifest_beside_the_files_is_used_when_none_is_pinned(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    server = serve({**files, "kimi-manifest.json": json.dumps(manifest_of(files)).encode()})
    assert machine.fetch(source=server.url + "/") == 0
    assert machine.holds(files)
    written = json.loads((machine.dir / "kimi-manifest.json").read_text())
    assert written["source"] == server.url + "/"


def test_a_cut_transfer_goes_on_where_it_stopped(
    machine: Machine, serve: Start, files: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve(files)
    server.behaviour.cut_after, server.behaviour.cuts_left = 200_000, 3
    assert machine.fetch(source=server.url, manifest=manifest_of(files)) == 0
    assert machine.holds(files)
    # what was in flight when the connection went may be lost, no more
    extra = sum(server.behaviour.served.values()) - sum(map(len, files.values()))
    assert 0 <= extra < 400_000
    assert "trying again" in capsys.readouterr().out
    assert any("Range" in headers for _, headers in server.behaviour.requests)


def test_a_connection_that_falls_silent_is_left_after_the_limit(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    server = serve(files)
    server.behaviour.stall_after, server.behaviour.stalls_left = 100_000, 1
    assert machine.fetch(source=server.url, manifest=manifest_of(files)) == 0
    assert machine.holds(files)
    assert server.behaviour.silent == 1, "the server would have gone on saying nothing"
    assert any("Range" in headers for _, headers in server.behaviour.requests)


def test_a_server_without_ranges_starts_over_and_still_ends_right(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    server = serve(files)
    server.behaviour.ranges = False
    server.behaviour.cut_after, server.behaviour.cuts_left = 300_000, 1
    assert machine.fetch(source=server.url, manifest=manifest_of(files)) == 0
    assert machine.holds(files)
    assert machine.progress["done_bytes"] == machine.progress["total_bytes"]


def test_a_busy_server_is_asked_again(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    server = serve(files)
    server.behaviour.statuses = [503, 429]
    assert machine.fetch(source=server.url, manifest=manifest_of(files)) == 0
    assert machine.holds(files)


def test_a_kill_in_the_middle_loses_next_to_nothing(
    machine: Machine, serve: Start, tmp_path: Path
) -> None:
    sizes = (3_000_000, 2_000_000, 1_000_000)
    files = {f"model-{n}.safetensors": noise(n, size) for n, size in enumerate(sizes)}
    server = serve(files)
    server.behaviour.rate = 2_000_000
    machine.write(source=server.url, manifest=manifest_of(files))
    command = [sys.executable, "-m", "kimi_prov.on_host", "fetch", "--config"]
    child = subprocess.Popen([*command, str(machine.config_path)], cwd=ROOT)
    # one file done and others half way: both kinds of state have to survive
    assert until(lambda: list(machine.dir.glob("*.safetensors")))
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (machine.dir / ".kimi-verified").exists()
    kept = sum(p.stat().st_size for p in machine.dir.rglob("*.part"))
    whole = sum(p.stat().st_size for p in machine.dir.glob("*.safetensors"))
    assert kept > 0
    assert whole > 0
    time.sleep(0.2)
    server.behaviour.rate = None
    server.behaviour.served.clear()
    assert machine.fetch() == 0
    assert machine.holds(files)
    rest = sum(server.behaviour.served.values())
    assert rest <= sum(map(len, files.values())) - kept - whole


def test_one_flipped_byte_brings_back_one_file(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    server = serve(files)
    assert machine.fetch(source=server.url, manifest=manifest_of(files)) == 0
    shard = machine.dir / "model-2.safetensors"
    before = shard.stat()
    with shard.open("r+b") as stream:
        stream.seek(123_456)
        byte = stream.read(1)
        stream.seek(123_456)
        stream.write(bytes([byte[0] ^ 1]))
    server.behaviour.served.clear()
    # a disk that rots leaves no new time behind: only hashing everything finds it
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert machine.fetch("--check") == 0
    assert machine.fetch("--reverify") == 0
    assert machine.holds(files)
    assert server.behaviour.served == {"model-2.safetensors": 700_000}


def test_a_file_that_was_touched_is_hashed_without_being_asked(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    server = serve(files)
    assert machine.fetch(source=server.url, manifest=manifest_of(files)) == 0
    server.behaviour.served.clear()
    (machine.dir / "model-1.safetensors").write_bytes(noise(9, 900_000))
    (machine.dir / "config.json").unlink()
    os.utime(machine.dir / "model-2.safetensors")
    assert machine.fetch("--check") == 1
    assert machine.fetch() == 0
    assert machine.holds(files)
    assert server.behaviour.served == {"model-1.safetensors": 900_000, "config.json": 3}


def test_wrong_bytes_from_the_source_are_never_given_a_name(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    pinned = manifest_of(files)
    served = {**files, "model-1.safetensors": noise(7, 900_000)}
    server = serve(served)
    assert machine.fetch(source=server.url, manifest=pinned) == 2
    message = machine.progress["message"]
    assert "model-1.safetensors" in message
    assert "sha256" in message
    assert "kimi_weights_manifest" in machine.progress["error"]["fix"]
    assert not (machine.dir / "model-1.safetensors").exists()
    assert not (machine.dir / ".kimi-verified").exists()
    assert server.behaviour.served["model-1.safetensors"] == 2 * 900_000  # one more try, no more
    server.behaviour.files = files
    assert machine.fetch() == 0
    assert machine.holds(files)


@pytest.mark.parametrize(
    ("status", "words"),
    [(404, "no such file"), (403, "refused access"), (400, "answered 400")],
)
def test_a_refusal_is_told_at_once(
    machine: Machine, serve: Start, files: dict[str, bytes], status: int, words: str
) -> None:
    server = serve(files)
    server.behaviour.statuses = [status] * 20
    assert machine.fetch(source=server.url, manifest=manifest_of(files), patience_s=600) == 2
    # Each file at most once: nothing was tried again.
    asked = [path for path, _ in server.behaviour.requests]
    assert len(asked) == len(set(asked))
    assert words in machine.progress["message"]
    assert machine.progress["state"] == "failed"
    assert not machine.progress["will_retry"]


def test_a_size_that_is_not_the_manifests_is_refused_before_its_bytes(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    server = serve({**files, "model-1.safetensors": b"short"})
    assert machine.fetch(source=server.url, manifest=manifest_of(files)) == 2
    assert "has 5 bytes and the manifest says 900000" in machine.progress["message"]


def test_a_host_that_is_not_there_is_given_up_with_a_name(machine: Machine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/model"
        assert machine.fetch(source=url) == 1
    assert "gave up" in machine.progress["message"]
    assert "127.0.0.1" in machine.progress["message"]
    assert machine.progress["will_retry"]
    assert not machine.dir.exists()


def test_an_unknown_path_at_the_server_says_what_to_lay_there(
    machine: Machine, serve: Start
) -> None:
    assert machine.fetch(source=serve({}).url) == 2
    assert "kimi-manifest.json" in machine.progress["message"]
    assert not machine.dir.exists()


def test_a_password_in_the_address_is_refused_and_not_repeated(
    machine: Machine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert machine.fetch(source="https://user:hunter2@mirror.example/kimi?sig=canary") == 2
    told = "".join(capfd.readouterr()) + machine.progress_path.read_text()
    assert "hunter2" not in told
    assert "canary" not in told


@pytest.mark.parametrize("source", ["ftp://x/y", "/srv/weights", "hf://justaname@main"])
def test_a_source_of_no_known_kind_is_refused(machine: Machine, source: str) -> None:
    assert machine.fetch(source=source) == 2
    assert "kimi_weights_source" in machine.progress["message"]
    assert "hf://owner/repository@revision" in machine.progress["error"]["fix"]


def test_a_directory_of_the_machine_is_a_source(
    machine: Machine, tmp_path: Path, files: dict[str, bytes]
) -> None:
    disk = tmp_path / "with space"
    for name, body in files.items():
        (disk / name).parent.mkdir(parents=True, exist_ok=True)
        (disk / name).write_bytes(body)
        (disk / name).chmod(0o600)
    assert machine.fetch(source=f"file://{tmp_path}/with%20space") == 0
    assert machine.holds(files)
    assert (machine.dir / "config.json").stat().st_mode & 0o777 == 0o644
    written = json.loads((machine.dir / "kimi-manifest.json").read_text())
    assert written["files"] == sorted(manifest_of(files)["files"], key=lambda row: row["path"])
    assert machine.fetch("--check") == 0


def test_a_directory_that_is_not_there_is_named(machine: Machine, tmp_path: Path) -> None:
    assert machine.fetch(source=f"file://{tmp_path}/nowhere") == 2
    assert f"{tmp_path}/nowhere" in machine.progress["message"]


def test_a_new_manifest_fetches_what_differs_and_removes_what_it_dropped(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    server = serve(files)
    assert machine.fetch(source=server.url, manifest=manifest_of(files)) == 0
    (machine.dir / "notes.txt").write_text("the operator's own")
    newer = {"model-1.safetensors": files["model-1.safetensors"], "config.json": b'{"a":1}'}
    server.behaviour.files = newer
    server.behaviour.served.clear()
    assert machine.fetch(manifest=manifest_of(newer)) == 0
    assert machine.holds(newer)
    assert server.behaviour.served == {"config.json": 7}
    assert not (machine.dir / "model-2.safetensors").exists()
    assert (machine.dir / "notes.txt").exists()


def test_who_locks_the_folder_stops_no_fetch(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    machine.dir.mkdir(parents=True)
    descriptor = os.open(machine.dir, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert machine.fetch(source=serve(files).url, manifest=manifest_of(files)) == 0
    finally:
        os.close(descriptor)


def test_two_at_once_are_refused(
    machine: Machine, serve: Start, files: dict[str, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    server = serve(files)
    server.behaviour.rate = 400_000
    machine.write(source=server.url, manifest=manifest_of(files))
    command = [sys.executable, "-m", "kimi_prov.on_host", "fetch", "--config"]
    child = subprocess.Popen([*command, str(machine.config_path)], cwd=ROOT)
    try:
        assert until(lambda: list(machine.dir.rglob("*.part")))
        assert machine.fetch(progress=None) == 2
        assert f"another fetch is at work here: process {child.pid}" in capfd.readouterr().err
        server.behaviour.rate = None
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
    assert machine.holds(files)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_too_small_is_refused_before_anything_is_written(
    machine: Machine, serve: Start, tmp_path: Path
) -> None:
    files = {"model-1.safetensors": noise(1, 3_000_000)}
    server = serve(files)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)], check=True)
    try:
        changes = {"source": server.url, "manifest": manifest_of(files)}
        assert machine.fetch(dir=f"{disk}/kimi/rev", **changes) == 2
        assert "no space" in machine.progress["message"]
        assert "32.0 MiB are free" in machine.progress["message"]
        assert server.behaviour.served == {}
        assert list(disk.rglob("*.*")) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_fills_up_on_the_way_keeps_what_has_come(
    machine: Machine, serve: Start, tmp_path: Path
) -> None:
    files = {"model-1.safetensors": noise(1, 9_000_000)}
    server = serve(files)
    server.behaviour.rate = 2_000_000
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o"]
    subprocess.run([*mount, "size=90m", "tmpfs", str(disk)], check=True)
    child = None
    try:
        machine.write(source=server.url, manifest=manifest_of(files), dir=f"{disk}/kimi")
        command = [sys.executable, "-m", "kimi_prov.on_host", "fetch", "--config"]
        child = subprocess.Popen([*command, str(machine.config_path)], cwd=ROOT)
        while not list(disk.rglob("*.part")):
            assert child.poll() is None
            time.sleep(0.01)
        subprocess.run([*mount, "remount,size=4m", "tmpfs", str(disk)], check=True)
        assert child.wait(30) == 2
        assert "disk is full" in machine.progress["message"]
        subprocess.run([*mount, "remount,size=120m", "tmpfs", str(disk)], check=True)
        server.behaviour.served.clear()
        server.behaviour.rate = None
        assert machine.fetch() == 0
        assert server.behaviour.served["model-1.safetensors"] < 7_000_000
    finally:
        if child is not None:
            child.kill()
            child.wait()
        subprocess.run(["umount", str(disk)], check=True)


class Hub:
    """A hub, the storage that it redirects to, and the canary token that it wants."""

    def __init__(self, serve: Start, files: dict[str, bytes], token: str | None = None) -> None:
        self.storage = serve(files)
        handler = type("Here", (HubHandler,), {"storage": self.storage.url})
        self.server = serve(files, handler)
        self.server.behaviour.token = token

    def wishes(self, revision: str = "main") -> dict[str, Any]:
        return {
            "source": f"hf://{HubHandler.repository}@{revision}",
            "hf_endpoint": self.server.url,
            "hf_python": sys.executable,
        }


def test_the_hub_lists_and_its_storage_serves(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    hub = Hub(serve, {**files, ".gitattributes": b"x", "kimi-manifest.json": b"{}"})
    assert machine.fetch(**hub.wishes()) == 0
    assert machine.holds(files)
    assert not (machine.dir / ".gitattributes").exists()
    written = json.loads((machine.dir / "kimi-manifest.json").read_text())
    assert written["revision"] == COMMIT
    assert all(len(row["sha256"]) == 64 for row in written["files"])
    assert set(hub.storage.behaviour.served) == {"model-1.safetensors", "model-2.safetensors"}
    assert machine.fetch("--check") == 0


def test_the_hubs_client_imports_nothing_from_where_it_is_started(
    machine: Machine,
    serve: Start,
    files: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "home").mkdir()
    for name in ("json", "huggingface_hub", "kimi_prov"):
        (tmp_path / "home" / f"{name}.py").write_text("raise SystemExit('poisoned')\n")
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "home"))
    assert machine.fetch(**Hub(serve, files).wishes()) == 0
    assert machine.holds(files)


def test_the_token_goes_to_the_hub_alone_and_into_no_log(
    machine: Machine,
    serve: Start,
    files: dict[str, bytes],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    token = tmp_path / "token"
    token.write_text("hf_canary\n")
    hub = Hub(serve, files, token="hf_canary")
    assert machine.fetch(token_file=str(token), **hub.wishes()) == 0
    assert machine.holds(files)
    assert hub.storage.behaviour.requests
    for _, headers in hub.storage.behaviour.requests:
        assert "authorization" not in {name.lower() for name in headers}
    told = "".join(capfd.readouterr())
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != token:
            assert b"hf_canary" not in path.read_bytes()
    assert "hf_canary" not in told


def test_a_hub_that_wants_a_token_says_which_variable(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    hub = Hub(serve, files, token="hf_canary")
    assert machine.fetch(**hub.wishes()) == 2
    assert "kimi_hf_token_file" in machine.progress["error"]["fix"]


def test_a_revision_that_is_not_there_is_named(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    hub = Hub(serve, files)
    assert machine.fetch(**hub.wishes("v9")) == 2
    assert "no revision v9" in machine.progress["message"]


def test_a_hub_out_of_reach_is_waited_for_and_then_given_up(
    machine: Machine,
    serve: Start,
    files: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    hub = Hub(serve, files)
    out_of_reach = {**hub.wishes(), "hf_endpoint": "http://127.0.0.1:9"}
    started = time.monotonic()
    assert machine.fetch(**out_of_reach, first_contact_s=0) == 1
    once_s = time.monotonic() - started  # the client takes seconds to start on a busy machine
    assert "trying again" not in "".join(capsys.readouterr())
    assert machine.fetch(**out_of_reach, first_contact_s=3 + 3 * once_s) == 1
    assert "trying again" in "".join(capsys.readouterr())
    assert "cannot be reached" in machine.progress["message"]


def test_a_pinned_manifest_is_held_against_the_hub_before_a_byte_moves(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    hub = Hub(serve, files)
    pinned = manifest_of({**files, "model-1.safetensors": noise(5, 900_000)})
    assert machine.fetch(manifest=pinned, **hub.wishes()) == 2
    assert "model-1.safetensors" in machine.progress["message"]
    assert "kimi_weights_source" in machine.progress["error"]["fix"]
    assert hub.storage.behaviour.served == {}


def test_a_small_file_of_the_hub_is_held_against_its_git_id(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    hub = Hub(serve, files)
    honest = HubHandler.info

    def lying(self: HubHandler) -> dict[str, Any]:
        document = honest(self)
        for row in document["siblings"]:
            if row["rfilename"] == "config.json":
                row["blobId"] = "0" * 40
        return document

    hub.server.RequestHandlerClass.info = lying  # type: ignore[attr-defined]
    assert machine.fetch(**hub.wishes()) == 2
    assert "config.json" in machine.progress["message"]


def test_a_moving_branch_is_not_followed_in_the_middle(
    machine: Machine, serve: Start, files: dict[str, bytes]
) -> None:
    hub = Hub(serve, files)
    hub.storage.behaviour.statuses = [404] * 8
    assert machine.fetch(**hub.wishes()) == 2
    hub.storage.behaviour.statuses.clear()
    hub.server.behaviour.requests.clear()
    assert machine.fetch() == 0
    asked = [path for path, _ in hub.server.behaviour.requests if "/revision/" in path]
    assert asked
    assert all(COMMIT in path for path in asked)


def test_a_draft_is_fetched_and_verified_like_the_model(
    machine: Machine, serve: Start, files: dict[str, bytes], tmp_path: Path
) -> None:
    server = serve(files)
    small = {"draft.safetensors": noise(7, 50_000)}
    beside = serve(small)
    folder = tmp_path / "models/draft/rev"
    draft = {"source": beside.url, "dir": str(folder), "manifest": manifest_of(small)}
    assert machine.fetch(source=server.url, manifest=manifest_of(files), draft=draft) == 0
    assert machine.holds(files)
    assert (folder / "draft.safetensors").read_bytes() == small["draft.safetensors"]
    assert (folder / ".kimi-verified").exists()
    assert machine.progress["state"] == "done"
    assert machine.progress["done_bytes"] == machine.progress["total_bytes"] == 50_000
    assert machine.fetch("--check") == 0
    (folder / "draft.safetensors").write_bytes(b"x" * 50_000)
    assert machine.fetch("--check") == 1
    assert machine.fetch() == 0
    assert machine.fetch("--check") == 0
    wrong = {**draft, "manifest": manifest_of({"draft.safetensors": noise(8, 50_000)})}
    assert machine.fetch(draft=wrong) == 2
    assert "draft.safetensors" in machine.progress["message"]
