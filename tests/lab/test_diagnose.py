"""`logs` and `diagnose` on a served host: lines as they come, a bundle, a stopped engine."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import tarfile
import time
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from machines import kimi_prov, newest_run

from kimi_prov.contract import paths

if TYPE_CHECKING:
    from pathlib import Path

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

UNIT = "kimi-serve@0.service"


def opened(file: Path) -> dict[str, str]:
    """The files of a bundle by their names in it."""
    with tarfile.open(file) as archive:
        return {
            member.name.partition("/")[2]: read.read().decode()
            for member in archive.getmembers()
            if (read := archive.extractfile(member))
        }


def diagnose(host: Host, file: Path) -> tuple[int, dict[str, Any], dict[str, str]]:
    done = kimi_prov(
        "diagnose", host.inventory, "--limit", host.name, "--to", file, "--format", "json"
    )
    document = json.loads(done.stdout)
    closed_form.validate(document, "diagnose")
    return done.returncode, document["hosts"][host.name], opened(file)


def test_the_logs_of_a_served_host(served_host: Host) -> None:
    """Each line is a document, and the engine's start is told with its time."""
    done = kimi_prov(
        "logs",
        served_host.inventory,
        "--limit",
        served_host.name,
        "--since",
        "3d",
        "--format",
        "json",
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in rows:
        closed_form.validate(row, "logs")
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert any(row["unit"] == UNIT and "ready after" in row["message"] for row in rows)
    assert "kimi-proxy.service" in {row["unit"] for row in rows}
    kept = "".join(file.read_text() for file in newest_run(served_host.inventory, "logs").iterdir())
    assert "ready after" not in kept


def test_a_line_is_followed_as_it_comes_and_ctrl_c_ends_it(served_host: Host) -> None:
    words = [sys.executable, "-m", "kimi_prov", "logs", str(served_host.inventory)]
    words += ["--limit", served_host.name, "--follow", "--lines", "1", "--unit", "proxy"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        served_host.ssh("systemctl reload kimi-proxy")
        assert "proxy: " in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "Traceback" not in err
    # What waited there for a line ends with the connection, or shortly after it.
    for _ in range(60):
        if not served_host.ssh("pgrep -f '[j]ournalctl.*--follow' || true").strip():
            break
        time.sleep(1)
    assert not served_host.ssh("pgrep -f '[j]ournalctl.*--follow' || true").strip()


def test_the_bundle_of_a_served_host(served_host: Host, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    code, host, found = diagnose(served_host, file)
    assert code == 0
    assert host["ok"]
    assert [row for row in host["findings"] if row["severity"] == "blocker"] == []
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    name = served_host.name
    wanted = {f"{name}/{part}.json" for part in ("facts", "plan", "status", "units")}
    wanted |= {f"{name}/logs/{UNIT}.log", f"{name}/metrics/{UNIT}.txt"}
    wanted |= {f"{name}/packages.txt", f"{name}/units.txt", "README.txt", "diagnose.json"}
    assert wanted <= set(found)
    assert "vllm:num_requests_running" in found[f"{name}/metrics/{UNIT}.txt"]
    assert "ExecStart=" in found[f"{name}/units.txt"]
    # A container sees no messages of the kernel: that is told, and nothing else is missing.
    assert set(host["missing"]) <= {"kernel"}
    secrets = served_host.ssh(f"cat {paths.VERIFY_KEY} {paths.MACHINE_KEY}").split()
    for secret in (word for word in secrets if len(word) > 20):
        assert not any(secret in text for text in found.values())


def test_a_stopped_engine_is_recognised(served_host: Host, tmp_path: Path) -> None:
    served_host.ssh(f"systemctl stop {UNIT}")
    try:
        code, host, _ = diagnose(served_host, tmp_path / "bundle.tar.gz")
        assert code == 3
        assert "diagnose.down" in {row["id"] for row in host["findings"]}
    finally:
        served_host.ssh(f"systemctl start {UNIT}", timeout=600)
