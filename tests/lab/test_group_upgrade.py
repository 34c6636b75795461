"""A group changes what it serves: all hosts go on, or all go back, also where one was cut before.

Two hosts of one computer, vLLM's CPU build and a tiny model; clients ask through the head's port.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from groups import REFUSED, SERVED, START_S, Group, make_group
from machines import kimi_prov
from test_update import Archive, only, version
from waiting import until

from kimi_prov.contract import paths

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.117"
# Its parser takes the flag; the engine refuses it of weights that are not of that form.
NO_START = {"kimi_engine_args": {"quantization": "awq"}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    group = make_group(tmp_path_factory.mktemp("pair") / "inv", NETWORK, 2)
    group.lab.up()
    try:
        apply(group)
        yield group
    finally:
        group.lab.down()


def command(
    group: Group, name: str, folder: Path | None = None, **wishes: object
) -> subprocess.CompletedProcess[str]:
    words: list[str | Path] = [name, group.lab.inventory]
    if wishes and folder:
        file = folder / "wishes.yml"
        file.write_text(yaml.safe_dump(wishes))
        words += ["-e", f"@{file}"]
    return kimi_prov(*words)


def apply(group: Group, folder: Path | None = None, **wishes: object) -> None:
    done = command(group, "apply", folder, **wishes)
    assert done.returncode == 0, done.stdout + done.stderr + group.told()
    assert group.chat().status == SERVED


def history(group: Group) -> dict[str, Any]:
    done = kimi_prov("history", group.lab.inventory, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["hosts"]
    return found


def last(group: Group) -> list[tuple[str, str]]:
    return [
        (row["entries"][-1]["kind"], row["entries"][-1]["result"])
        for row in history(group).values()
    ]


def concurrency(group: Group) -> list[int]:
    plans = [json.loads(host.ssh(f"cat {paths.PLAN}")) for host in group.members]
    return [plan["throughput"]["concurrency"] for plan in plans]


def closed(group: Group) -> bool:
    return all(host.ssh(f"ls {paths.SWITCH}", check=False) == "" for host in group.members)


def test_what_does_not_start_is_gone_back_from_by_all(
    pair: Group, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    before = [host.ssh(f"cat {paths.PLAN}") for host in pair.members]
    with pair.asked() as answers:
        done = command(pair, "apply", tmp_path, **NO_START)
        assert until(lambda: pair.chat().status == SERVED, START_S), pair.told()
    record_property("longest request", max(answer.took_s for answer in answers))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "went back by itself to entry" in done.stderr
    assert last(pair) == [("apply", "returned")] * 2
    assert [host.ssh(f"cat {paths.PLAN}") for host in pair.members] == before
    assert closed(pair)


def test_what_is_good_stays_and_can_be_rolled_back_by_all_hosts_together(
    pair: Group, tmp_path: Path
) -> None:
    (was,) = set(concurrency(pair))
    apply(pair, tmp_path, kimi_concurrency=was + 3)
    assert concurrency(pair) == [was + 3] * 2
    assert last(pair) == [("apply", "done")] * 2
    alone = kimi_prov("rollback", pair.lab.inventory, "--limit", "head")
    assert alone.returncode == 1, alone.stdout
    assert "rank1 would not go back: left out by --limit" in alone.stderr
    assert pair.chat().status == SERVED
    assert closed(pair)
    done = command(pair, "rollback")
    assert done.returncode == 0, done.stdout + done.stderr + pair.told()
    assert pair.chat().status == SERVED
    assert concurrency(pair) == [was] * 2
    assert last(pair) == [("rollback", "done")] * 2


def test_a_member_with_an_open_switch_is_taken_over(pair: Group, tmp_path: Path) -> None:
    """As a run leaves it that was killed before its switch: the engine was held back by it."""
    (was,) = set(concurrency(pair))
    rank = pair.members[1]
    current = history(pair)["rank1"]["current"]
    opened = {
        "phase": "writing", "run": "killed", "kind": "apply", "from": current, "to": current + 1,
        "restores": None, "since": "2026-11-24T00:00:00Z", "min_speed": None, "drain_s": 5,
        "start_s": 600,
    }  # fmt: skip
    rank.ssh(f"cat > {paths.SWITCH} <<'EOF'\n{json.dumps(opened)}\nEOF")
    apply(pair, tmp_path, kimi_concurrency=was + 1)
    assert concurrency(pair) == [was + 1] * 2
    assert closed(pair)


def test_a_member_is_updated_with_its_head_drained_and_the_group_serves_again(
    pair: Group, tmp_path: Path
) -> None:
    """Stand-in packages; a kernel waits on the rank alone, and its restart ends what all serve."""
    head, rank = pair.members
    with closing(Archive(tmp_path, f"{NETWORK}.1")) as archive:
        archive.offer(*version(1))
        with only(rank, archive):
            archive.offer(*version(2))
            with only(head, archive):
                for host in pair.members:
                    host.ssh("touch -d '1 week ago' /var/lib/dpkg/info/intel-microcode.list")
                assert pair.chat().status == SERVED
                with pair.asked() as answers:
                    done = kimi_prov(
                        "update", pair.lab.inventory, "--reboot-ok", "--format", "json"
                    )
                    seen = len(answers)
                    assert until(lambda: len(answers) > seen + 1, START_S)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)["hosts"]
    assert (told["head"]["restarted"], told["rank1"]["restarted"]) == (False, True)
    assert (told["rank1"]["verified"], told["rank1"]["requests_cut"]) == (True, 0)
    assert told["rank1"]["seconds_without_service"] > 0
    # What was asked was answered or refused, and at last answered.
    assert {answer.status for answer in answers} == {SERVED, REFUSED}
    assert answers[-1].status == SERVED
