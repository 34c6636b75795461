"""The engine's unit on a machine: how it is confined and bound, and what makes it start again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from machines import kimi_prov

from kimi_prov.contract import unit_files

if TYPE_CHECKING:
    from pathlib import Path

    from machines import Host

pytestmark = pytest.mark.lab

UNIT = "kimi-serve@0.service"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/10-plan.conf"
OLD = "/srv/kimi/engines/vllm-cpu-0.0.1-000000000000"


def prop(host: Host, name: str, unit: str = UNIT) -> str:
    return host.ssh(f"systemctl show --property={name} --value '{unit}'").strip()


def test_every_process_is_the_service_users_and_bound_to_the_planned_nodes(
    served_host: Host,
) -> None:
    plan = json.loads(served_host.ssh("cat /etc/kimi/plan.json"))
    nodes = ",".join(str(node) for node in plan["instances"][0]["numa_nodes"])
    group = prop(served_host, "ControlGroup")
    said = served_host.ssh(
        f"for pid in $(cat '/sys/fs/cgroup{group}/cgroup.procs'); do "
        "echo $(stat -c %U /proc/$pid) $(awk '{print $2}' /proc/$pid/numa_maps | sort -u); done"
    )
    assert len(said.splitlines()) > 1
    for process in said.splitlines():
        user, *policies = process.split()
        assert user == "kimi"
        assert f"bind:{nodes}" in policies
        assert not {"default", "prefer", "interleave"} & set(policies)


def test_started_means_answered(served_host: Host) -> None:
    assert prop(served_host, "Type") == "exec"
    assert "ready after" in served_host.ssh(f"journalctl --no-pager -u '{UNIT}' -o cat")


def test_no_service_of_the_distribution_was_switched_on(served_host: Host) -> None:
    assert prop(served_host, "UnitFileState", "haproxy.service") == "disabled"
    assert prop(served_host, "ActiveState", "haproxy.service") == "inactive"
    assert served_host.ssh("stat -c '%a %U' /var/lib/kimi/state/before.json") == "600 root\n"


def test_arguments_reach_a_process_as_they_were(served_host: Host) -> None:
    words = ["", "a b", 'say "hi"', "50%", "$HOME ${HOME}", "back\\slash", "tab\t", "feed\n", ";"]
    words += ['{"a": [1, "x"]}', "größe", "'", "#", "%i", "\x01"]
    script = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['ODD']]))"
    command = ["/usr/bin/python3", "-c", script, *words]
    unit = (
        "[Service]\nType=oneshot\nStandardOutput=file:/run/kimi-quote.json\n"
        f"Environment={unit_files.quote_assignment(''.join(words), 'ODD')}\n"
        f"ExecStart={' '.join(unit_files.quote_argument(word) for word in command)}\n"
    )
    served_host.ssh(
        f"cat > /run/systemd/system/quote-test.service <<'END'\n{unit}END\n"
        "systemctl daemon-reload && systemctl start quote-test.service"
    )
    said = json.loads(served_host.ssh("cat /run/kimi-quote.json"))
    served_host.ssh(
        "rm /run/systemd/system/quote-test.service /run/kimi-quote.json; systemctl daemon-reload"
    )
    assert said == [words, "".join(words)]


def test_a_flag_the_engine_does_not_know_changes_nothing(served_host: Host, tmp_path: Path) -> None:
    seen = (served_host.ssh(f"cat '{DROP_IN}' /etc/kimi/plan.json"), prop(served_host, "MainPID"))
    extra = tmp_path / "extra.json"
    extra.write_text(json.dumps({"kimi_engine_args": {"no-such-flag": 4}}))
    done = served_host.apply("--tags", "engine,serve", "-e", f"@{extra}")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "unrecognized arguments: --no-such-flag" in done.stdout + done.stderr
    now = (served_host.ssh(f"cat '{DROP_IN}' /etc/kimi/plan.json"), prop(served_host, "MainPID"))
    assert now == seen


def test_what_a_cut_apply_left_is_made_good_and_the_old_engine_is_kept(served_host: Host) -> None:
    """Three leftovers at once, for a start of the engine takes long.

    A process of another configuration than its unit's, a link to another environment, and an
    instance that is no longer planned.
    """
    served_host.ssh(
        f"cp '{DROP_IN}' /root/right && sed -i 's/^Environment=KIMI_STAMP=.*/"
        f"Environment=KIMI_STAMP=other/' '{DROP_IN}' && systemctl daemon-reload && "
        f"systemctl kill -s KILL '{UNIT}'; systemctl restart --no-block '{UNIT}'; "
        # Until the process of the other configuration is there.
        f"until tr '\\0' '\\n' < /proc/$(systemctl show -p MainPID --value '{UNIT}')/environ "
        "2>/dev/null | grep -qx KIMI_STAMP=other; do sleep 0.1; done; "
        f"cat /root/right > '{DROP_IN}'; rm /root/right; systemctl daemon-reload"
    )
    before = prop(served_host, "MainPID")
    served_host.ssh(
        f"mkdir -p {OLD} && touch {OLD}/.complete && ln -sfn {OLD} /srv/kimi/engine && "
        "mkdir /etc/systemd/system/kimi-serve@7.service.d && "
        "printf '[Service]\\nExecStart=/bin/sleep infinity\\n' "
        "> /etc/systemd/system/kimi-serve@7.service.d/10-plan.conf && "
        "systemctl daemon-reload && systemctl start kimi-serve@7.service"
    )
    done = served_host.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads(served_host.ssh("cat /etc/kimi/plan.json"))
    assert served_host.ssh("readlink /srv/kimi/engine").strip() == plan["engine"]["env_dir"]
    assert served_host.ssh(f"ls {OLD}/.complete")
    served_host.ssh(f"rm -r {OLD}")
    assert prop(served_host, "MainPID") != before
    assert prop(served_host, "ActiveState") == "active"
    pid = prop(served_host, "MainPID")
    assert "KIMI_STAMP=other" not in served_host.ssh(f"tr '\\0' '\\n' < /proc/{pid}/environ")
    assert prop(served_host, "ActiveState", "kimi-serve@7.service") == "inactive"
    assert not served_host.ssh("ls -d /etc/systemd/system/kimi-serve@7*", check=False)


def test_an_engine_that_is_killed_comes_back_by_itself(served_host: Host) -> None:
    served_host.ssh(f"systemctl kill --kill-whom=main -s KILL '{UNIT}'")
    served_host.ssh(
        f"for i in $(seq 300); do sleep 1; [ $(systemctl is-active '{UNIT}') = active ] && exit; "
        "done; exit 1",
        timeout=320,
    )
    assert int(prop(served_host, "NRestarts")) >= 1


def test_an_apply_right_after_a_killed_engine_waits_for_its_restart(served_host: Host) -> None:
    served_host.ssh(f"systemctl kill --kill-whom=main -s KILL '{UNIT}'")
    done = served_host.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    assert prop(served_host, "ActiveState") == "active"


def test_a_broken_environment_is_told_and_made_again_by_one_apply(served_host: Host) -> None:
    """The engine runs on without its interpreter, and would not start once more."""
    plan = json.loads(served_host.ssh("cat /etc/kimi/plan.json"))
    python = f"{plan['engine']['env_dir']}/bin/python"
    before = prop(served_host, "MainPID")
    served_host.ssh(f"rm {python}")
    verified = kimi_prov("verify", served_host.inventory, "--limit", served_host.name)
    assert verified.returncode == 1, verified.stdout + verified.stderr
    assert "the engine's environment is broken" in verified.stdout
    drift = json.loads(served_host.ssh(f"python3 -I {plan['paths']['zipapp']} drift"))
    assert [row["id"] for row in drift["drift"]] == ["drift.environment"]
    done = served_host.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    assert served_host.ssh(f"{python} -c 'print(1)'") == "1\n"
    assert prop(served_host, "MainPID") == before
    again = served_host.apply()
    assert "changed=0" in again.stdout, again.stdout + again.stderr
