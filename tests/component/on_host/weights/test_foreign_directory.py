"""Weights in another user's directory lead root to nothing that this user may not read."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waiting import HANGS_S

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.weights import fetch
from kimi_prov.on_host.weights.sources import DirectorySource

if TYPE_CHECKING:
    from collections.abc import Callable

# Root's, on every machine; whoever runs this as another user owns the directory instead.
SECRET = Path("/etc/hostname")
NOBODY = 65534
PROGRAM = (
    "import sys; from kimi_prov.on_host.weights import fetch; "
    "sys.exit(fetch.main(['--config', sys.argv[1]]))"
)


def give(path: Path, uid: int = NOBODY) -> None:
    """Let another user own this, and all below it; one who is not root owns it as it is."""
    if os.geteuid() == 0:
        for each in (path, *path.rglob("*")):
            os.chown(each, uid, uid, follow_symlinks=False)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The directory of another user, with one file."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    give(folder)
    return folder


def pinned(*names: str, size: int | None = None) -> dict[str, Any]:
    """A manifest of these files with the secret's own digest: whoever knows it would get it."""
    body = SECRET.read_bytes()
    digest = hashlib.sha256(body).hexdigest()
    length = len(body) if size is None else size
    return {"files": [{"path": name, "size": length, "sha256": digest} for name in names]}


class Fetch:
    """Fetches as the unit does."""

    def __init__(self, root: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._config = root / "weights.json"
        self._model = root / "model"
        self._capfd = capfd

    def write(self, source: Path, **more: Any) -> None:
        wishes = {"source": f"file://{source}", "dir": str(self._model), "progress": None, **more}
        self._config.write_text(json.dumps(wishes))

    def __call__(self, source: Path, **more: Any) -> tuple[int, str, Path]:
        self.write(source, **more)
        status = fetch.main(["--config", str(self._config)])
        return status, "".join(self._capfd.readouterr()), self._model

    def apart(self, source: Path, **more: Any) -> tuple[int, str]:
        """In a process that is ended where it hangs."""
        self.write(source, **more)
        command = [sys.executable, "-c", PROGRAM, str(self._config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=False)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Fetch:
    return Fetch(tmp_path, capfd)


def to_secret(folder: Path) -> None:
    (folder / "x").symlink_to(SECRET)


def to_secret_by_way(folder: Path) -> None:
    (folder / "way").symlink_to("/etc")
    (folder / "x").symlink_to("way/hostname")


def by_a_directory(folder: Path) -> None:
    (folder / "sub").symlink_to("/etc")


@pytest.mark.parametrize(
    ("make", "name"),
    [(to_secret, "x"), (to_secret_by_way, "x"), (by_a_directory, "sub/hostname")],
)
def test_a_link_to_what_another_owns_is_refused(
    run: Fetch, theirs: Path, make: Callable[[Path], None], name: str
) -> None:
    make(theirs)
    give(theirs)
    status, told, model = run(theirs, manifest=pinned(name))
    assert status == 2, told
    assert f"{theirs}/{name}: a symbolic link in a directory of user" in told
    assert not (model / name).exists()


def test_a_directory_swapped_for_a_link_is_refused(run: Fetch, theirs: Path) -> None:
    """The whole directory lies in one that its owner may write."""
    (theirs / "weights").symlink_to("/etc")
    give(theirs)
    status, told, _ = run(theirs / "weights", manifest=pinned("hostname"))
    assert status == 2, told
    assert "a symbolic link in a directory of user" in told


def test_without_a_manifest_a_link_is_not_listed_either(run: Fetch, theirs: Path) -> None:
    to_secret(theirs)
    give(theirs)
    status, told, model = run(theirs)
    assert status == 2, told
    assert f"{theirs}/x: a symbolic link" in told
    assert not (model / "x").exists()


def test_a_manifest_that_is_a_link_is_not_read(run: Fetch, theirs: Path) -> None:
    (theirs / "kimi-manifest.json").symlink_to(SECRET)
    give(theirs)
    status, told, _ = run(theirs)
    assert status == 2, told
    assert "kimi-manifest.json: a symbolic link" in told


@pytest.mark.parametrize("name", ["x", "kimi-manifest.json"])
def test_a_fifo_is_refused_and_nothing_waits(run: Fetch, theirs: Path, name: str) -> None:
    os.mkfifo(theirs / name)
    status, told = run.apart(theirs)
    assert status == 2, told
    assert f"{theirs}/{name}: is a FIFO, not a regular file" in told


def test_a_fifo_that_a_manifest_names_is_refused(run: Fetch, theirs: Path) -> None:
    os.mkfifo(theirs / "x")
    status, told = run.apart(theirs, manifest=pinned("x"))
    assert status == 2, told
    assert f"{theirs}/x: is a FIFO" in told


def test_a_socket_is_refused(run: Fetch, theirs: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(theirs / "x"))
        status, told, _ = run(theirs)
    assert status == 2, told
    assert f"{theirs}/x: is a socket" in told


def test_a_device_is_refused(run: Fetch, tmp_path: Path) -> None:
    """Through a link of root's own, which may lead anywhere."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "x").symlink_to("/dev/zero")
    status, told, _ = run(tmp_path / "weights", manifest=pinned("x"))
    assert status == 2, told
    assert "/x: is a device" in told or "a symbolic link" in told


def test_a_circle_of_links_ends(run: Fetch, theirs: Path) -> None:
    (theirs / "x").symlink_to("y")
    (theirs / "y").symlink_to("x")
    give(theirs)
    status, told, _ = run(theirs, manifest=pinned("x"))
    assert status == 2, told
    assert "Too many levels of symbolic links" in told


def hub_cache(root: Path) -> tuple[Path, bytes]:
    """A repository as huggingface_hub keeps it: snapshots of links into blobs."""
    body = b"weights"
    blobs, snapshot = root / "blobs", root / "snapshots" / "abc"
    for folder in (blobs, snapshot / "sub"):
        folder.mkdir(parents=True)
    (blobs / "0f").write_bytes(body)
    (snapshot / "model.safetensors").symlink_to("../../blobs/0f")
    (snapshot / "sub" / "more.safetensors").symlink_to("../../../blobs/0f")
    return snapshot, body


@pytest.mark.parametrize("uid", [NOBODY, 0])
def test_the_hubs_own_links_still_work(run: Fetch, tmp_path: Path, uid: int) -> None:
    snapshot, body = hub_cache(tmp_path / "cache")
    give(tmp_path / "cache", uid)
    status, told, model = run(snapshot)
    assert status == 0, told
    assert (model / "model.safetensors").read_bytes() == body
    assert (model / "sub" / "more.safetensors").read_bytes() == body


def test_links_that_root_made_in_a_cache_given_away_still_work(run: Fetch, tmp_path: Path) -> None:
    """`chown -R` leaves the links themselves to root."""
    snapshot, body = hub_cache(tmp_path / "cache")
    give(tmp_path / "cache")
    if os.geteuid() == 0:
        for path in snapshot.rglob("*.safetensors"):
            os.chown(path, 0, 0, follow_symlinks=False)
    status, told, model = run(snapshot)
    assert status == 0, told
    assert (model / "model.safetensors").read_bytes() == body


def test_a_link_that_the_administrator_made_leads_anywhere(
    run: Fetch, tmp_path: Path, theirs: Path
) -> None:
    """As /srv/weights to a disk where a user put them: only root could have made it."""
    (tmp_path / "weights").symlink_to(theirs)
    status, told, model = run(tmp_path / "weights")
    assert status == 0, told
    assert (model / "config.json").read_text() == "{}"


def test_a_link_of_a_stranger_in_a_directory_for_all_is_refused(run: Fetch, tmp_path: Path) -> None:
    """As in /tmp, which is root's: not its owner says where a link there leads."""
    if os.geteuid() != 0:
        return
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "weights").symlink_to("/etc")
    os.chown(shared / "weights", NOBODY, NOBODY, follow_symlinks=False)
    status, told, _ = run(shared / "weights", manifest=pinned("hostname"))
    assert status == 2, told
    assert "a symbolic link in a directory of user 0" in told


def test_what_is_swapped_after_the_listing_is_judged_again(theirs: Path) -> None:
    source = DirectorySource(f"file://{theirs}")
    entry = source.listing(None).files[0]
    (theirs / "config.json").unlink()
    (theirs / "config.json").symlink_to(SECRET)
    give(theirs)
    with pytest.raises(HostError, match="a symbolic link"):
        source.open(entry, 0)
