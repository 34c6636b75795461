"""What the unit costs: the engine under systemd against the same command line started by hand.

    python tests/bench/unit_cost.py [--inventory DIR] [--pairs 20] [--output FILE]

Both engines run on one lab host at the same time, on two ports of its loopback, and are asked in
turns, so that what else the machine does hits both alike; the order changes with every turn. Prints
one JSON object: medians of tokens a second and of each pair's ratio, and of the processor time
that either engine took for a token, which says the same where others load the machine. Without
--inventory it brings up a host of its own and takes it away again. A tiny model on a container: a
stand-in.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

from machines import Host, make_lab

NETWORK = "10.93.59"
# The second engine's port is far from the units'.
PORT = 8901
BY_HAND = "/run/kimi-by-hand"

# Starts what the plan says, as the unit does but without a unit: same user, environment and argv.
START = r"""
import json, os, pwd, subprocess
plan = json.load(open("/etc/kimi/plan.json"))
instance, user = plan["instances"][0], pwd.getpwnam("kimi")
argv = list(instance["argv"])
argv[argv.index("--port") + 1] = "PORT"
env = {**instance["env"], "PATH": os.defpath, "HOME": "/srv/kimi/cache",
       "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
process = subprocess.Popen(
    [*instance["numactl"], *argv], env=env, user=user.pw_uid, group=user.pw_gid, extra_groups=[],
    cwd="/var/lib/kimi", stdin=subprocess.DEVNULL, stdout=open("BY_HAND.log", "w"),
    stderr=subprocess.STDOUT, start_new_session=True)
open("BY_HAND.pid", "w").write(str(process.pid))
"""
READY = (
    "timeout 900 python3 /srv/kimi/lib/kimi-target.pyz ready --port {port} --model {model} "
    "--pid $(cat {log}.pid) || (tail -5 {log}.log; exit 1)"
)
NAME = "import json; print(json.load(open('/etc/kimi/plan.json'))['model']['served_names'][0])"
# Asks both in turns: AT_ONCE requests of TOKENS tokens each; tokens a second by turn.
ASK = r"""
import concurrent.futures, http.client, json, os, subprocess, time
plan = json.load(open("/etc/kimi/plan.json"))
ports = {"unit": plan["instances"][0]["port"], "by_hand": PORT}
pairs, at_once, tokens = PAIRS, 4, 128
key = open("/etc/kimi/machine-key.map").read().split()[1]
def one(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"model": plan["model"]["served_names"][0], "prompt": "Hello", "max_tokens": tokens,
            "ignore_eos": True, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json", "Authorization": "Bearer " + key})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["usage"]["completion_tokens"]
def spent(top):
    parents, times = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            rest = open("/proc/%s/stat" % pid).read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(pid)], times[int(pid)] = int(rest[1]), int(rest[11]) + int(rest[12])
    ours = {top}
    while True:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        if not more:
            return sum(times.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")
        ours |= more
unit = subprocess.run(["systemctl", "show", "--value", "--property=MainPID", "kimi-serve@0"],
                      capture_output=True, text=True, check=True).stdout
tops = {"unit": int(unit), "by_hand": int(open("BY_HAND.pid").read())}
def turn(name):
    before, began = spent(tops[name]), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        done = sum(pool.map(one, [ports[name]] * at_once))
    return done / (time.monotonic() - began), (spent(tops[name]) - before) / done
found = {name: [] for name in ports}
for name in ports:
    turn(name)
for number in range(pairs):
    for name in sorted(ports, reverse=bool(number % 2)):
        found[name].append(turn(name))
print(json.dumps({"at_once": at_once, "tokens": tokens, **found}))
"""


def script(host: Host, text: str, timeout: float) -> str:
    """Run a Python program on the host."""
    return host.ssh("python3 - <<'EOF'\n" + text + "\nEOF", timeout=timeout)


def measured(host: Host, pairs: int) -> dict[str, Any]:
    """Serve by hand beside the unit, and ask both in turns."""
    start = START.replace("PORT", str(PORT)).replace("BY_HAND", BY_HAND)
    script(host, start, 60)
    try:
        model = script(host, NAME, 60).strip()
        host.ssh(READY.format(port=PORT, log=BY_HAND, model=model), timeout=1000)
        ask = ASK.replace("PORT", str(PORT)).replace("PAIRS", str(pairs))
        asked = script(host, ask.replace("BY_HAND", BY_HAND), 3000)
    finally:
        host.ssh(f"kill -- -$(cat {BY_HAND}.pid); rm -f {BY_HAND}.pid {BY_HAND}.log", check=False)
    found = json.loads(asked)
    turns = list(zip(found["unit"], found["by_hand"], strict=True))
    ratios = [unit[0] / by_hand[0] for unit, by_hand in turns]
    spent = [unit[1] / by_hand[1] for unit, by_hand in turns]
    return {
        "pairs": pairs,
        "requests_at_once": found["at_once"],
        "tokens_each": found["tokens"],
        **{f"{name}_tok_s": _median(found[name], 0) for name in ("unit", "by_hand")},
        **{f"{name}_cpu_s_per_token": _median(found[name], 1) for name in ("unit", "by_hand")},
        "unit_of_by_hand_tok_s": round(statistics.median(ratios), 4),
        "unit_of_by_hand_cpu_s": round(statistics.median(spent), 4),
        "each_tok_s": [round(ratio, 3) for ratio in sorted(ratios)],
        "each_cpu_s": [round(ratio, 3) for ratio in sorted(spent)],
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "stand_ins": "a tiny model of random weights on a systemd-nspawn host",
    }


def _median(turns: list[list[float]], part: int) -> float:
    return float(f"{statistics.median(turn[part] for turn in turns):.4g}")


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--inventory", type=Path, help="an inventory whose host node1 is served")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.inventory:
        figures = measured(Host("node1", "", options.inventory), options.pairs)
    else:
        with tempfile.TemporaryDirectory() as folder:
            lab = make_lab(Path(folder) / "inv", NETWORK, ["node1"])
            lab.up()
            try:
                done = lab.hosts["node1"].apply()
                if done.returncode:
                    raise SystemExit(done.stdout + done.stderr)
                figures = measured(lab.hosts["node1"], options.pairs)
            finally:
                lab.down()
    text = json.dumps(figures, indent=1) + "\n"
    sys.stdout.write(text)
    if options.output:
        options.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
