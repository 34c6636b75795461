"""Weights from buckets of both protocols, by the real rclone, from servers that cut and lie."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bucket_servers
import pytest

from kimi_prov.ansible.host_action import complete_findings
from kimi_prov.on_host.weights import bucket_check, fetch, rclone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bucket_servers import Cloud

pytestmark = pytest.mark.skipif(
    bucket_servers.missing() is not None, reason=str(bucket_servers.missing())
)
RANGE = 150_000


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311


FILES = {
    "model-1.safetensors": noise(1, 900_000),
    "model-2.safetensors": noise(2, 700_001),
    "config.json": b"{}\n",
    "sub/tokenizer.json": noise(3, 5_000),
}


def manifest_of(files: dict[str, bytes]) -> dict[str, Any]:
    rows = [
        {"path": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for name, body in files.items()
    ]
    return {"files": rows}


@pytest.fixture(scope="module", params=["s3", "gs"])
def provider(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    with contextlib.ExitStack() as stack:
        if request.param == "s3":
            found = request.getfixturevalue("s3")
        else:
            found = stack.enter_context(bucket_servers.gs(tmp_path_factory.mktemp("gs")))
        found.put("kimi", FILES)
        yield found


@pytest.fixture
def cloud(provider: Cloud) -> Iterator[Cloud]:
    provider.behaviour.reset()
    yield provider
    provider.behaviour.reset()


class Machine:
    """The managed machine as the subcommand sees it."""

    def __init__(self, root: Path, cloud: Cloud) -> None:
        self.dir, self.progress_path = root / "models/kimi", root / "fetch.json"
        self.config_path = root / "weights.json"
        self.config: dict[str, Any] = {
            "dir": str(self.dir),
            "source": cloud.url("kimi"),
            "bucket": cloud.settings(),
            "progress": str(self.progress_path),
            "workers": 2,
            "stall_s": 20,
            "first_contact_s": 60,
            "patience_s": 60,
            "pause_s": 0.1,
            "range_bytes": RANGE,
            "manifest": manifest_of(FILES),
        }

    def fetch(self, **changes: Any) -> int:
        self.config.update(changes)
        self.config_path.write_text(json.dumps(self.config))
        return fetch.main(["--config", str(self.config_path)])

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.progress_path.read_text())["error"]
        return found

    def holds(self, files: dict[str, bytes]) -> bool:
        return all((self.dir / name).read_bytes() == body for name, body in files.items())


@pytest.fixture
def machine(tmp_path: Path, cloud: Cloud) -> Machine:
    return Machine(tmp_path, cloud)


def test_files_arrive_in_ranges_and_are_verified(machine: Machine, cloud: Cloud) -> None:
    assert machine.fetch() == 0
    assert machine.holds(FILES)
    assert (machine.dir / ".kimi-verified").exists()
    # A range of its own for each piece of a file that is larger.
    reads = [path for path in cloud.behaviour.paths if path.startswith("GET") and "model-1" in path]
    assert (
        len([path for path in reads if "alt=json" not in path])
        == len(FILES["model-1.safetensors"]) // RANGE
    )
    cloud.behaviour.reset()
    assert machine.fetch() == 0
    assert cloud.behaviour.paths == []


def test_several_ranges_of_a_file_are_under_way_at_a_time(machine: Machine, cloud: Cloud) -> None:
    """The door lets reads through when four of them stand before it, and not one by one."""
    meeting, together = threading.Barrier(4), []
    answer: Any = cloud.door.RequestHandlerClass
    passed = answer._pass_on

    def wait(handler: Any, body: bytes) -> None:
        if handler.command == "GET" and "model" in handler.path and "alt=json" not in handler.path:
            try:
                together.append(meeting.wait(timeout=60))
            except threading.BrokenBarrierError:
                together.append(-1)
        passed(handler, body)

    one = {"model-1.safetensors": FILES["model-1.safetensors"]}
    answer._pass_on = wait
    try:
        # Eight ranges: two meetings of four.
        assert machine.fetch(manifest=manifest_of(one), range_bytes=112_500) == 0
    finally:
        answer._pass_on = passed
    assert machine.holds(one)
    assert sorted(together) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_manifest_in_the_bucket_is_used_where_none_is_pinned(
    machine: Machine, cloud: Cloud
) -> None:
    cloud.put(
        "with-manifest", {**FILES, "kimi-manifest.json": json.dumps(manifest_of(FILES)).encode()}
    )
    assert machine.fetch(source=cloud.url("with-manifest"), manifest=None) == 0
    assert machine.holds(FILES)


def test_without_any_manifest_nothing_is_trusted(machine: Machine, cloud: Cloud) -> None:
    assert machine.fetch(manifest=None) == 2
    assert "kimi-manifest.json: there is no such file" in machine.error["message"]
    assert "weights seed" in machine.error["fix"]


def test_connections_that_are_cut_lose_no_byte_that_came(machine: Machine, cloud: Cloud) -> None:
    cloud.behaviour.cut_after, cloud.behaviour.cuts_left = 60_000, 5
    assert machine.fetch() == 0
    assert machine.holds(FILES)
    assert cloud.behaviour.cuts_left == 0


def test_a_run_after_an_end_in_the_middle_goes_on(machine: Machine, cloud: Cloud) -> None:
    half = {**FILES, "model-1.safetensors": FILES["model-1.safetensors"][:1]}
    cloud.put("later", half)
    assert machine.fetch(source=cloud.url("later"), workers=1) != 0
    assert not (machine.dir / ".kimi-verified").exists()
    arrived = machine.dir / "model-2.safetensors"
    cloud.put("later", FILES)
    # What had begun to arrive of the other file, as a cut leaves it.
    part = next(iter(machine.dir.glob(".kimi-partial")), None)
    assert part is not None
    assert not arrived.exists() or arrived.read_bytes() == FILES["model-2.safetensors"]
    assert machine.fetch() == 0
    assert machine.holds(FILES)


def test_a_beginning_that_is_there_is_not_read_again(machine: Machine, cloud: Cloud) -> None:
    one = {"model-1.safetensors": FILES["model-1.safetensors"]}
    entry = fetch.manifests.parse(manifest_of(one), "test").files[0]
    part = machine.dir / ".kimi-partial" / f"{entry.key()}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(FILES["model-1.safetensors"][:800_000])
    assert machine.fetch(manifest=manifest_of(one)) == 0
    assert machine.holds(one)
    assert cloud.behaviour.sent < 130_000


def test_throttling_is_waited_out(machine: Machine, cloud: Cloud) -> None:
    cloud.behaviour.statuses = [503, 429, 503]
    assert machine.fetch(first_contact_s=1) == 0
    assert machine.holds(FILES)
    assert cloud.behaviour.statuses == []


def test_wrong_bytes_are_refused_after_a_second_try(machine: Machine, cloud: Cloud) -> None:
    cloud.behaviour.spoil = "model-2"
    assert machine.fetch() == 2
    assert "model-2.safetensors" in machine.error["message"]
    assert "the source is corrupt" in machine.error["message"]
    assert not (machine.dir / "model-2.safetensors").exists()
    assert not (machine.dir / ".kimi-verified").exists()


def test_a_file_of_another_size_is_refused_before_it_is_read(
    machine: Machine, cloud: Cloud
) -> None:
    other = {**FILES, "model-1.safetensors": b"short"}
    assert machine.fetch(manifest=manifest_of(other)) == 2
    assert "900000 bytes and the manifest says 5" in machine.error["message"]


def test_wrong_credentials_end_at_once_and_stay_unsaid(
    machine: Machine, cloud: Cloud, capfd: pytest.CaptureFixture[str]
) -> None:
    assert machine.fetch(bucket=cloud.settings(credentials=cloud.bad)) == 2
    error = machine.error
    assert "credentials" in error["message"]
    assert "kimi_bucket_credentials_file" in error["fix"]
    told = "".join(capfd.readouterr()) + machine.progress_path.read_text()
    for secret in rclone._read_secrets(str(cloud.bad)):
        assert secret not in told


def test_a_broken_credentials_file_is_not_repeated(
    tmp_path: Path, machine: Machine, cloud: Cloud
) -> None:
    canary = "canary-in-a-broken-file"
    broken = tmp_path / "broken"
    broken.write_text(f'[default\naws_secret_access_key = {canary}\n{{"private_key": "{canary}"')
    assert machine.fetch(bucket=cloud.settings(credentials=broken)) == 2
    assert "credentials" in machine.error["message"]
    told = machine.progress_path.read_text()
    assert canary not in told
    # Nor as the bytes that a parser lists.
    assert str(ord(canary[0])) + " " + str(ord(canary[1])) not in told


def test_no_secret_is_in_a_command_line_or_environment(cloud: Cloud) -> None:
    bucket = cloud.bucket("kimi")
    told = json.dumps([bucket.command("cat", bucket.locate("x")), bucket.environment()])
    secrets = rclone._read_secrets(str(cloud.good))
    assert secrets
    assert not [secret for secret in secrets if secret in told]


def test_the_machines_role_is_enough(machine: Machine, cloud: Cloud) -> None:
    settings = {**cloud.settings(), "credentials_file": None}
    with cloud.as_role():
        assert machine.fetch(bucket=settings) == 0
    assert machine.holds(FILES)


def look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], document: dict[str, Any]
) -> dict[str, Any]:
    """What the subcommand says of the one bucket of the plan's weights."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(document)))
    assert bucket_check.main([]) == 0
    (found,) = complete_findings(json.loads(capsys.readouterr().out)["findings"])
    assert found["severity"] == ("pass" if found["id"] == "bucket.ready" else "blocker")
    return dict(found)


@pytest.fixture
def weights(cloud: Cloud) -> dict[str, Any]:
    return {
        "source": cloud.url("kimi"),
        "dir": "/srv/kimi/models/x",
        "manifest": manifest_of(FILES),
        "bucket": cloud.settings(),
    }


def test_what_stands_in_the_way_of_a_bucket_is_told_before(
    cloud: Cloud,
    weights: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def state(**changes: Any) -> tuple[str, str]:
        row = look(monkeypatch, capsys, {**weights, **changes})
        return row["id"].removeprefix("bucket."), f"{row['observed']} | {row['fix']}"

    ready, said = state()
    assert ready == "ready"
    assert "4 files" in said
    more = manifest_of({**FILES, "model-3.safetensors": b"x", "config.json": b"longer"})
    lacks, said = state(manifest=more)
    assert lacks == "incomplete"
    assert "config.json has 3 bytes of 6, model-3.safetensors is missing" in said
    assert "kimi-prov weights seed" in said
    assert state(manifest=None)[0] == "absent"
    broken = json.dumps({"files": [{"path": "../x", "size": 1, "sha256": "0" * 64}]}).encode()
    cloud.put("broken", {"kimi-manifest.json": broken})
    odd, said = state(manifest=None, source=cloud.url("broken"))
    assert odd == "incomplete"
    assert "'../x' is not a plain relative path" in said
    assert state(source=f"{cloud.scheme}://no-such-bucket/kimi")[0] == "absent"
    refused, said = state(bucket=cloud.settings(credentials=cloud.bad))
    assert refused == "credentials"
    assert "kimi_bucket_credentials_file" in said
    away = {**cloud.settings(), "endpoint": "http://127.0.0.1:9"}
    assert state(bucket=away)[0] == "unreachable"


def test_an_unreadable_file_of_credentials_is_named(cloud: Cloud, tmp_path: Path) -> None:
    bucket = cloud.bucket("kimi", credentials_file=str(tmp_path / "none"))
    with pytest.raises(rclone.CredentialsError, match="none: the credentials cannot be read"):
        bucket.objects()


def test_rclone_that_is_not_there_is_named(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rclone, "PROGRAM", "no-such-rclone")
    with pytest.raises(rclone.HostError, match="is not installed") as caught:
        cloud.bucket("kimi").objects()
    assert caught.value.fix == "apt-get install rclone"


def test_nothing_is_left_running(machine: Machine, cloud: Cloud) -> None:
    cloud.behaviour.spoil = "model-2"
    machine.fetch()
    children = [path for path in Path("/proc").glob("[0-9]*") if _child(path)]
    assert children == []


def _child(process: Path) -> bool:
    try:
        text = (process / "stat").read_text()
    except OSError:
        return False
    name, _, rest = text.rpartition(")")
    return name.endswith("(rclone") and rest.split()[1] == str(os.getpid())
