"""Prepared weights on a machine: written by the first start, copied by the next ones, and counted.

The engine is vLLM's CPU build. In order: each test goes on from what the one before has left.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from machines import kimi_prov, make_lab, newest_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

UNIT = "kimi-serve@0.service"
WRITTEN, COPIED = "Prepared weights written", "every sum as written"
VARIABLE = "kimi_prepared_weights"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A machine that serves with prepared weights, by one apply."""
    lab = make_lab(
        tmp_path_factory.mktemp("prepared") / "inv",
        "10.93.59",
        nodes=["node1"],
        kimi_prepared_weights="on",
        kimi_allowed_networks=["{{ lab_gateway }}/32", "{{ lab_gateway6 }}/128"],
    )
    lab.up()
    try:
        node = lab.hosts["node1"]
        apply(node)
        yield node
    finally:
        lab.down()


def apply(host: Host, *args: str) -> int:
    """Apply; return how many tasks changed something."""
    done = host.apply(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((newest_run(host.inventory) / "result.json").read_text())
    return int(result["hosts"][host.name]["changed"])


def answer_of(command: str, host: Host, *args: str, code: int = 0) -> dict[str, Any]:
    """What a command says of the host, as JSON."""
    done = kimi_prov(command, host.inventory, *args, "--format", "json")
    assert done.returncode == code, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)["hosts"][host.name]
    return document


def folder(host: Host) -> str:
    plan = json.loads(host.ssh("cat /etc/kimi/plan.json"))
    return str(plan["prepared_weights"]["dir"])


def log(host: Host) -> str:
    """The log of the unit's present run alone."""
    started = f"$(systemctl show -P InvocationID {UNIT})"
    return host.ssh(f"journalctl -o cat _SYSTEMD_INVOCATION_ID={started}")


def restart(host: Host) -> str:
    """Restart the engine, which has started once it answered a chat; return its log."""
    host.ssh(f"systemctl reset-failed {UNIT}; systemctl restart {UNIT}", timeout=900)
    return log(host)


@contextlib.contextmanager
def inventory_says(host: Host, value: object, name: str = VARIABLE) -> Iterator[None]:
    """Change a variable in the inventory, and put it back."""
    path = host.inventory / "group_vars" / "kimi.yml"
    text = path.read_text()
    path.write_text(yaml.safe_dump(yaml.safe_load(text) | {name: value}))
    try:
        yield
    finally:
        path.write_text(text)


def test_the_first_start_writes_them_for_the_engine_alone(host: Host) -> None:
    assert WRITTEN in log(host)
    place = folder(host)
    listed = host.ssh(f"stat -c '%U:%G %a' /srv/kimi/prepared {place} && find {place} -type f")
    assert listed.splitlines()[:2] == ["root:root 755", "kimi:kimi 700"]
    [file] = listed.splitlines()[2:]
    assert host.ssh(f"stat -c '%U:%G %a' {file}").strip() == "kimi:kimi 600"
    kept = answer_of("status", host)["prepared_weights"]
    assert (kept["planned"], kept["files"], kept["put_aside"]) == (True, 1, 0)
    assert kept["bytes"] > 0


def test_a_second_apply_changes_nothing(host: Host) -> None:
    assert apply(host) == 0


def test_the_next_start_copies_them(host: Host) -> None:
    said = restart(host)
    assert COPIED in said
    assert WRITTEN not in said
    done = kimi_prov("verify", host.inventory)
    assert done.returncode == 0, done.stdout + done.stderr


def test_other_requests_copy_the_same_file(host: Host) -> None:
    place = folder(host)
    before = host.ssh(f"find {place} -type f -exec sha256sum {{}} +")
    with inventory_says(host, 3, "kimi_concurrency"):
        assert apply(host) > 0
        assert COPIED in log(host)
        assert WRITTEN not in log(host)
        assert folder(host) == place
        assert host.ssh(f"find {place} -type f -exec sha256sum {{}} +") == before
        assert answer_of("status", host)["prepared_weights"]["older"] == 0
    assert apply(host) > 0


def test_a_file_of_an_older_key_is_told_and_cleaned(host: Host) -> None:
    place = folder(host)
    host.ssh(
        f"f=$(ls {place}/0/*.prepared); cp -p $f ${{f%-*}}-0123.prepared; "
        f"touch -d 2026-01-01 ${{f%-*}}-0123.prepared"
    )
    kept = answer_of("status", host)["prepared_weights"]
    assert (kept["files"], kept["older"]) == (1, 1)
    assert answer_of("drift", host)["drift"] == []
    items = answer_of("clean", host, "--yes")["items"]
    assert [row["of"].split("rank")[0] for row in items] == ["older key "]
    assert answer_of("status", host)["prepared_weights"]["older"] == 0


def test_a_damaged_file_is_put_aside_and_told_and_cleaned(host: Host) -> None:
    place = folder(host)
    flip = (
        "import pathlib, sys; p = next(pathlib.Path(sys.argv[1]).rglob('*.prepared')); "
        "f = p.open('r+b'); f.seek(p.stat().st_size // 2 // 4096 * 4096); b = f.read(1)[0]; "
        "f.seek(-1, 1); f.write(bytes([b ^ 1])); f.close()"
    )
    host.ssh(f'python3 -c "{flip}" {place}')
    said = restart(host)
    assert "put aside" in said
    assert "has another sum" in said
    assert WRITTEN in said
    kept = answer_of("status", host)["prepared_weights"]
    assert (kept["files"], kept["put_aside"]) == (1, 1)
    drifted = answer_of("drift", host, code=1)["drift"]
    assert [row["subject"] for row in drifted if row["id"] == "drift.prepared"] != []
    items = answer_of("clean", host, "--yes")["items"]
    assert [row["kind"] for row in items] == ["prepared"]
    assert answer_of("status", host)["prepared_weights"]["put_aside"] == 0
    assert answer_of("drift", host)["drift"] == []
    assert COPIED in restart(host)


def test_without_the_folder_the_engine_serves_in_the_ordinary_way(host: Host) -> None:
    place = folder(host)
    host.ssh(f"mv {place} {place}.away")
    said = restart(host)
    assert "were not written" in said
    assert COPIED not in said
    host.ssh(f"mv {place}.away {place}")
    assert COPIED in restart(host)


def test_off_and_a_rollback_keep_what_they_need(host: Host) -> None:
    place = folder(host)
    with inventory_says(host, "off"):
        assert apply(host) > 0
        assert "--load-format" not in host.ssh(f"systemctl cat {UNIT}")
        assert folder(host) == "None"
        # The history can go back to them: nothing of theirs is cleaned.
        assert answer_of("clean", host, "--check")["items"] == []
        done = kimi_prov("rollback", host.inventory, "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
    assert folder(host) == place
    assert COPIED in log(host)


def test_destroy_takes_them_away(host: Host) -> None:
    done = kimi_prov("destroy", host.inventory, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert host.ssh("ls -d /srv/kimi/prepared", check=False).strip() == ""
