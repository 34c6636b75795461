"""The engine's unit on a host: its state, its starts, its words, what holds the cards' memory."""

from __future__ import annotations

import json
import re
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from machines import kimi_prov, newest_run
from waiting import until

if TYPE_CHECKING:
    from machines import Host

UNIT = "kimi-serve@0.service"
# For one test, over the plan's; below /run, so that a reboot ends it.
DROP_IN = f"/run/systemd/system/{UNIT}.d/90-tried.conf"
HOLDER = "kimi-holder.service"
# A first start compiles, and with one processor in a container it takes its time.
FIRST_START_S = 900.0
_STATE = ("MainPID", "NRestarts", "ActiveState", "SubState", "Result")
_SPAN = ("ExecMainStartTimestampMonotonic", "ActiveEnterTimestampMonotonic")
_NOISE = r"core initialization failed|Traceback"
_HOLD = """\
import sys, time, torch
held = [torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device=f"cuda:{n}")
        for n in range(torch.cuda.device_count())]
print("held", flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Start:
    """How a start ended: seconds until it answered, or why it did not."""

    seconds: float | None
    reason: str | None = None


def shown(host: Host, *names: str) -> dict[str, str]:
    """Properties of the unit."""
    asked = " ".join(f"-p {name}" for name in names or _STATE)
    lines = host.ssh(f"systemctl show {UNIT} {asked}").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def start_seconds(host: Host) -> float:
    """Seconds from the engine's first process to its first answer, of the start that serves."""
    began, ready = (int(value) for value in shown(host, *_SPAN).values())
    return round(abs(ready - began) / 1e6, 1)


def serves(host: Host) -> bool:
    """Whether the unit is started, which means that a chat was answered."""
    return shown(host)["ActiveState"] == "active"


def wait_for_start(host: Host, before: str, within_s: float) -> Start:
    """Wait until the unit runs with another first process than `before`, or has failed to.

    systemd's own count of restarts begins anew when a person starts the unit.
    """
    began = time.monotonic()
    first = shown(host)["NRestarts"]
    found = Start(None, f"neither up nor failed after {within_s:.0f} s")

    def ended() -> bool:
        nonlocal found
        now = shown(host)
        if now["ActiveState"] == "active" and now["MainPID"] not in {"0", before}:
            found = Start(round(time.monotonic() - began, 1))
        elif now["ActiveState"] in {"inactive", "failed"} or int(now["NRestarts"]) > int(first):
            found = Start(None, last_error(host))
        else:
            time.sleep(0.5)
            return False
        return True

    until(ended, within_s)
    return found


def wait_for_restart(host: Host, before: str, within_s: float) -> float:
    """Seconds until the unit, by itself, serves with another first process; it may not fail."""
    began = time.monotonic()

    def again() -> bool:
        now = shown(host)
        assert now["ActiveState"] not in {"inactive", "failed"}, "the unit stays down"
        time.sleep(0.5)
        return now["ActiveState"] == "active" and now["MainPID"] not in {"0", before}

    assert until(again, within_s), said(host, 20)
    return round(time.monotonic() - began, 1)


def said(host: Host, lines: int = 40, since: str = "", name: str = UNIT) -> str:
    """The unit's last lines."""
    asked = f"--since '{since}'" if since else ""
    return host.ssh(f"journalctl -u {name} -o cat --no-pager {asked} | tail -{lines}", check=False)


def last_error(host: Host) -> str:
    """The last line of the unit that names an error."""
    lines = said(host, 200).splitlines()
    for telling in (r"Error|Exception|[Dd]enied|not permitted|[Kk]illed", r"status="):
        found = [line for line in lines if re.search(telling, line) and not re.search(_NOISE, line)]
        if found:
            return found[-1][-300:]
    return "it says nothing"


def restart(host: Host, within_s: float) -> Start:
    """Restart the unit as a person would, and wait."""
    before = shown(host)["MainPID"]
    host.ssh(f"systemctl reset-failed {UNIT}; systemctl restart --no-block {UNIT}", timeout=120)
    return wait_for_start(host, before, within_s)


def lay(host: Host, lines: list[str]) -> None:
    """Put settings of [Service] over the unit's own; none takes them away."""
    if lines:
        text = "\\n".join(["[Service]", *lines])
        host.ssh(f"mkdir -p $(dirname {DROP_IN}) && printf '{text}\\n' > {DROP_IN}")
    else:
        host.ssh(f"rm -f {DROP_IN}")
    host.ssh("systemctl daemon-reload")


def hold_memory(host: Host, mib: int) -> None:
    """Have another program hold memory of each card, by the engine's own torch."""
    python = "/srv/kimi/engine/bin/python"
    host.ssh(f"cat > /run/hold.py <<'EOF'\n{_HOLD}\nEOF")
    host.ssh(f"systemd-run --quiet --unit={HOLDER} {python} -I /run/hold.py {mib}")
    assert until(lambda: "held" in _holder_said(host)), _holder_said(host)


def release_memory(host: Host) -> None:
    """End what holds it."""
    host.ssh(f"systemctl stop {HOLDER} 2>/dev/null; rm -f /run/hold.py", check=False)


def _holder_said(host: Host) -> str:
    time.sleep(0.5)
    return host.ssh(f"journalctl -u {HOLDER} -o cat --no-pager | tail -5", check=False)


def memory_used() -> list[int]:
    """MiB in use on each card, as this machine's own nvidia-smi tells."""
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in done.stdout.split()]


def wish(host: Host, **wishes: object) -> None:
    """Write the inventory's variables anew, with these over them."""
    file = host.inventory / "group_vars" / "kimi.yml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **wishes}))


def planned(host: Host) -> dict[str, Any]:
    """The plan for the host; none is refused."""
    done = kimi_prov("plan", host.inventory, "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(next(iter(json.loads(done.stdout)["hosts"].values())))


def verified(host: Host) -> list[dict[str, Any]]:
    """The checks of `kimi-prov verify`, none of which failed."""
    done = kimi_prov("verify", host.inventory, "--format", "json")
    checks: list[dict[str, Any]] = next(iter(json.loads(done.stdout)["hosts"].values()))["checks"]
    failed = [f"{row['name']}: {row.get('detail')}" for row in checks if row["status"] == "fail"]
    # Where this is packed nothing rewrites an assertion: the report needs the words.
    assert failed == [], "; ".join(failed)
    assert done.returncode == 0, done.stdout + done.stderr
    return checks


def benched(host: Host) -> dict[str, Any]:
    """What `kimi-prov bench` says of the host's model."""
    done = kimi_prov("bench", host.inventory, "--format", "json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return dict(json.loads(done.stdout))


def applied_again(host: Host) -> int:
    """Seconds of an `apply` that changes nothing and leaves the engine running."""
    before = shown(host, "MainPID")
    began = time.monotonic()
    done = host.apply()
    seconds = round(time.monotonic() - began)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((newest_run(host.inventory) / "result.json").read_text())
    assert all(row["changed"] == 0 for row in result["hosts"].values()), result
    assert shown(host, "MainPID") == before
    return seconds


def left(host: Host) -> str:
    """Say which unit, file, user or table of ours is still on the host."""
    return host.ssh(
        "systemctl list-units 'kimi*' --all --no-legend; "
        "ls -d /etc/kimi /var/lib/kimi /run/kimi /etc/systemd/system/*kimi* /etc/sysctl.d/*kimi* "
        "/srv/kimi/[!m]* 2>/dev/null; getent passwd kimi; nft list tables | grep kimi",
        check=False,
    ).strip()


def destroyed(host: Host) -> int:
    """Destroy it, see that nothing is left and no card's memory in use; return the seconds."""
    began = time.monotonic()
    done = kimi_prov("destroy", host.inventory, "--yes")
    seconds = round(time.monotonic() - began)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left(host) == ""
    assert until(lambda: max(memory_used()) < 1000, 60), memory_used()
    return seconds
