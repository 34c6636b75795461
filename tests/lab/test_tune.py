"""`tune` on a served host with the real CPU engine: found from a bad start, kept, and undone.

The tests run in their order, on one host. The engine is a tiny one: its figures say nothing of a
large model, but requests at once matter to both.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import closed_form
import psutil
import pytest
import yaml
from machines import HANGS_S, KIMI_PROV, descendants, kimi_prov, make_lab
from upgrades import chats, history
from waiting import until

from kimi_prov.lab import operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

UNIT = "kimi-serve@0.service"
OVERLAY = f"/run/systemd/system/{UNIT}.d/90-tune.conf"
LOAD = ("--users", "4", "--input-tokens", "16", "--output-tokens", "16", "--for", "throughput")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host that serves one request at once, on one thread: a bad start."""
    inventory = tmp_path_factory.mktemp("tune") / "inv"
    lab = make_lab(inventory, "10.93.115", ["node1"], kimi_concurrency=1, kimi_threads=1)
    with lab.running():
        host = lab.hosts["node1"]
        done = host.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield host


def tune(host: Host, *more: str) -> subprocess.CompletedProcess[str]:
    return kimi_prov("tune", host.inventory, *LOAD, "--yes", *more)


def command_line(host: Host) -> str:
    return host.ssh(f"tr '\\0' ' ' </proc/$(systemctl show -P MainPID {UNIT})/cmdline")


def serves_as_applied(host: Host) -> None:
    """What was applied runs, nothing of the tune is left, and a client gets an answer."""
    assert "--max-num-seqs 1 " in command_line(host)
    left = host.ssh(
        f"ls {OVERLAY} /run/kimi/tune/job.json /run/kimi-apply.lock 2>&1; "
        "systemctl is-active kimi-tuning.service",
        check=False,
    )
    assert left.count("No such file") == 3, left
    assert left.split()[-1] in ("inactive", "failed"), left
    chats(host)


def test_what_would_be_tried_is_said_first_and_nothing_happens_without_yes(tuned: Host) -> None:
    done = kimi_prov("tune", tuned.inventory, *LOAD)
    assert done.returncode == 2, done.stderr
    assert "4 requests at once" in done.stderr
    assert "2 threads" in done.stderr
    assert "--yes" in done.stderr
    serves_as_applied(tuned)


def test_better_settings_are_found_from_a_bad_start_and_what_serves_comes_back(
    tuned: Host, record_property: Any
) -> None:
    began = time.monotonic()
    done = tune(tuned, "--within", "40m", "--write", "--format", "json")
    record_property("seconds", round(time.monotonic() - began))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "tune")
    host = document["hosts"][tuned.name]
    record_property("tune", json.dumps(host))
    assert host["winner"]["variables"]["kimi_concurrency"] > 1, host
    assert host["winner"]["gain"] > 0
    assert {row["setting"] for row in host["candidates"]} >= {"requests", "threads"}
    assert host["served"]["rate"]
    assert host["again"]["rate"]
    assert host["outcome"]["serves"]
    serves_as_applied(tuned)
    newest = history(tuned)["entries"][-1]
    assert (newest["kind"], newest["result"]) == ("tune", "done")


def test_the_winner_is_kept_by_the_next_apply_which_then_changes_nothing(tuned: Host) -> None:
    files = (tuned.inventory / "host_vars").rglob("*.yml")
    (file,) = [one for one in files if "kimi-prov tune of" in one.read_text()]
    text = file.read_text()
    assert text.count("# kimi-prov tune of") == 1
    kept = yaml.safe_load(text)
    done = tuned.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"--max-num-seqs {kept['kimi_concurrency']} " in command_line(tuned)
    again = tuned.apply()
    assert again.returncode == 0, again.stdout + again.stderr
    assert "changed=0" in again.stdout.replace("0 changed", "changed=0")
    chats(tuned)
    back = kimi_prov("rollback", tuned.inventory, "--yes")
    assert back.returncode == 0, back.stdout + back.stderr
    file.unlink()
    serves_as_applied(tuned)


def begin(host: Host) -> subprocess.Popen[str]:
    """Start a tune, and wait until a candidate's engine runs."""
    words = (KIMI_PROV, "tune", str(host.inventory), *LOAD, "--only", "requests", "--yes")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert until(
        lambda: "yes" in host.ssh(f"test -e {OVERLAY} && echo yes", check=False),
        HANGS_S,
        every_s=2,
    )
    return process


def test_ctrl_c_brings_back_what_was_applied(tuned: Host) -> None:
    process = begin(tuned)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130, output
    serves_as_applied(tuned)


def test_a_killed_control_machine_is_noticed_and_what_was_applied_comes_back(tuned: Host) -> None:
    process = begin(tuned)
    for one in descendants(process.pid):
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.communicate(timeout=HANGS_S)
    assert until(
        lambda: "inactive" in tuned.ssh("systemctl is-active kimi-tuning.service", check=False),
        HANGS_S,
        every_s=5,
    )
    tuned.ssh("rm -f /run/kimi-apply.lock")
    serves_as_applied(tuned)
    assert history(tuned)["entries"][-1]["result"] == "interrupted"


def test_a_power_cut_of_the_machine_boots_into_what_was_applied(tuned: Host) -> None:
    process = begin(tuned)
    operations.switch_power(tuned.inventory, tuned.name, on=False, hard=True)
    for one in descendants(process.pid):
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.communicate(timeout=HANGS_S)
    operations.switch_power(tuned.inventory, tuned.name, on=True)
    active = f"systemctl is-active {UNIT}"
    assert until(lambda: tuned.ssh(active, check=False).strip() == "active", HANGS_S, every_s=5)
    serves_as_applied(tuned)
