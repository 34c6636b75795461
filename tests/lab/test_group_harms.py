"""One model over two and three hosts, each harmed in every way: it is served again by itself.

How long each took is told at the end of the run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from groups import AT_ONCE_S, AWAY, RANK_UNIT, REFUSED, SERVED, START_S, make_group
from machines import kimi_prov
from waiting import until

from kimi_prov.lab import operations as lab_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from groups import Group
    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MODEL = "kimi-k2-lab-thirds"
SIZES = {"two": 2, "three": 3}
# Both are longer than a member's silence is borne; the long one is longer than all but vLLM's own
# limit.
SHORT_CUT_S, LONG_CUT_S = 40, 200


@pytest.fixture(scope="module", params=SIZES)
def group(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Group]:
    """A group that serves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIMI_PROV_CATALOG", str(Path(__file__).parent / "catalogue"))
        made = make_group(
            tmp_path_factory.mktemp(request.param) / "inv",
            "10.93.93",
            SIZES[request.param],
            files=[{"src": f"model:{MODEL}", "dest": f"/opt/models/{MODEL}"}],
            kimi_model=MODEL,
            kimi_weights_source=f"file:///opt/models/{MODEL}",
        )
        made.lab.up()
        try:
            done = kimi_prov("apply", made.lab.inventory)
            assert done.returncode == 0, done.stdout + done.stderr
            yield made
        finally:
            made.lab.down()


def kill_supervisor(group: Group, host: Host) -> None:
    # After harm to another member there is none for the moments until systemd starts it again.
    assert until(lambda: group.show(host, "MainPID") != "0")
    host.ssh(f"kill -9 {group.show(host, 'MainPID')}")


def kill_worker(group: Group, host: Host) -> None:
    host.ssh(f"kill -9 {group.worker(host)}")


def stop_worker(group: Group, host: Host) -> None:
    host.ssh(f"kill -STOP {group.worker(host)}")


def stop_all(group: Group, host: Host) -> None:
    host.ssh(f"kill -STOP $(cat {group.processes_file(host)})")


def cut_for(seconds: float) -> Callable[..., None]:
    def cut(group: Group, *hosts: Host) -> None:
        for host in hosts:
            lab_command.link(group.lab.inventory, host.name, up=False)
        time.sleep(seconds)
        for host in hosts:
            lab_command.link(group.lab.inventory, host.name, up=True)

    return cut


def reboot(group: Group, host: Host) -> None:
    lab_command.restart_host(group.lab.inventory, host.name)


def cut_power(group: Group, *hosts: Host) -> None:
    for host in hosts:
        lab_command.switch_power(group.lab.inventory, host.name, on=False, hard=True)
    lab_command.switch_power(group.lab.inventory, hosts[0].name, on=True)


HARMS: dict[str, Callable[[Group, Host], None]] = {
    "supervisor killed": kill_supervisor,
    "worker killed": kill_worker,
    "worker stopped": stop_worker,
    "all stopped": stop_all,
    "link cut": cut_for(SHORT_CUT_S),
    "link cut long": cut_for(LONG_CUT_S),
    "reboot": reboot,
    "power cut": cut_power,
}
# These take the head's port away with the host.
HEAD_AWAY = ("link cut", "link cut long", "reboot", "power cut")
# A request that has reached the head as its link is cut gets its answer when the link is back.
HEAD_CUT_S = {"link cut": SHORT_CUT_S, "link cut long": LONG_CUT_S}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("place", ["head", "last"])
def test_it_serves_again_after(
    group: Group, place: str, harm: str, record_property: Callable[[str, object], None]
) -> None:
    host = group.members[0 if place == "head" else -1]
    recovery = group.harmed(lambda: HARMS[harm](group, host))
    record_property("served again after", str(recovery))
    assert recovery.refused_s
    cut_s = HEAD_CUT_S.get(harm, 0) if place == "head" else 0
    assert max(recovery.refused_s) < AT_ONCE_S + cut_s
    reached = all(answer.status != AWAY for answer in recovery.answers)
    assert reached or (place == "head" and harm in HEAD_AWAY)


def all_workers_killed(group: Group) -> None:
    for host in group.members:
        kill_worker(group, host)


def all_links_cut(group: Group) -> None:
    cut_for(SHORT_CUT_S)(group, *group.members)


def all_lose_power(group: Group) -> None:
    cut_power(group, *group.members)


def head_reboots_then_the_last_loses_power(group: Group) -> None:
    reboot(group, group.head)
    cut_power(group, group.members[-1])


def the_last_loses_power_then_the_heads_supervisor_is_killed(group: Group) -> None:
    cut_power(group, group.members[-1])
    kill_supervisor(group, group.head)


def the_last_is_stopped_then_the_heads_link_is_cut(group: Group) -> None:
    stop_all(group, group.members[-1])
    cut_for(SHORT_CUT_S)(group, group.head)


def the_head_is_harmed_while_the_group_starts(group: Group) -> None:
    kill_worker(group, group.members[-1])
    assert until(lambda: group.chat().status == REFUSED)
    time.sleep(15)
    kill_supervisor(group, group.head)


THE_HEAD_IS_CUT = (all_links_cut, the_last_is_stopped_then_the_heads_link_is_cut)
SEVERAL = (
    all_workers_killed,
    all_links_cut,
    all_lose_power,
    head_reboots_then_the_last_loses_power,
    the_last_loses_power_then_the_heads_supervisor_is_killed,
    the_last_is_stopped_then_the_heads_link_is_cut,
    the_head_is_harmed_while_the_group_starts,
)


@pytest.mark.parametrize("harm", SEVERAL, ids=lambda harm: harm.__name__)
def test_it_serves_again_after_several(
    group: Group,
    harm: Callable[[Group], None],
    record_property: Callable[[str, object], None],
) -> None:
    recovery = group.harmed(lambda: harm(group))
    record_property("served again after", str(recovery))
    cut_s = SHORT_CUT_S if harm in THE_HEAD_IS_CUT else 0
    assert max(recovery.refused_s) < AT_ONCE_S + cut_s


def test_a_rank_that_is_stopped_stays_so_until_it_is_started(
    group: Group, record_property: Callable[[str, object], None]
) -> None:
    rank = group.members[-1]
    rank.ssh(f"systemctl stop {RANK_UNIT}", timeout=START_S)
    assert until(lambda: group.chat().status == REFUSED)
    time.sleep(60)
    assert group.show(rank, "ActiveState") == "inactive"
    refused = group.chat()
    assert refused.status == REFUSED
    assert refused.took_s < AT_ONCE_S
    began = time.monotonic()
    rank.ssh(f"systemctl start {RANK_UNIT}")
    assert until(lambda: group.chat().status == SERVED, START_S), group.told()
    record_property("served again after its start", f"{time.monotonic() - began:.0f} s")


def test_a_member_with_another_plan_is_held_and_told_on_both_sides(group: Group) -> None:
    rank = group.members[-1]
    drop_in = f"/etc/systemd/system/{RANK_UNIT}.d/10-plan.conf"
    rank.ssh(
        f"cp -p {drop_in} /root/kept && "
        f"sed -i -E 's/--digest [0-9a-f]+/--digest {'0' * 64}/' {drop_in} && "
        f"systemctl daemon-reload && systemctl restart --no-block {RANK_UNIT}"
    )

    def told(host: Host) -> bool:
        return f"plan not as on {group.head.name}" in group.journal(host, 20)

    try:
        for host in (group.head, rank):
            assert until(lambda host=host: told(host), START_S), group.told()  # type: ignore[misc]
        time.sleep(10)
        assert group.chat().status == REFUSED
        assert [host.name for host in group.members if group.runs_engine(host)] == []
        said = kimi_prov("status", group.lab.inventory)
        assert said.returncode == 1
        assert "plan not as on" in " ".join(said.stdout.split())
    finally:
        rank.ssh(f"mv /root/kept {drop_in} && systemctl daemon-reload")
    rank.ssh(f"systemctl restart --no-block {RANK_UNIT}")
    assert until(lambda: group.chat().status == SERVED, START_S), group.told()
