"""What the unit costs: the engine under systemd against the same command line started by hand.

    python tests/bench/unit_cost.py [--inventory DIR] [--pairs 20] [--output FILE]

Both engines run on one lab host at the same time, on two ports of its loopback, and are asked in
turns, so that what else the machine does hits both alike; the order changes with every turn. Prints
one JSON object: tokens a second, medians, and the median of each pair's ratio. Without --inventory
it brings up a host of its own and takes it away again. A tiny model on a container: a stand-in.
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
argv = [w.replace("/srv/kimi/engine/", plan["engine"]["env_dir"] + "/") for w in instance["argv"]]
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
import concurrent.futures, http.client, json, sys, time
plan = json.load(open("/etc/kimi/plan.json"))
ports = {"unit": plan["instances"][0]["port"], "by_hand": PORT}
pairs, at_once, tokens = PAIRS, 4, 128
def one(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = {"model": plan["model"]["served_names"][0], "prompt": "Hello", "max_tokens": tokens,
            "ignore_eos": True, "temperature": 0}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["usage"]["completion_tokens"]
def turn(port):
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        done = sum(pool.map(one, [port] * at_once))
    return done / (time.monotonic() - began)
found = {name: [] for name in ports}
for name in ports:
    turn(ports[name])
for number in range(pairs):
    for name in sorted(ports, reverse=bool(number % 2)):
        found[name].append(turn(ports[name]))
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
        asked = script(host, ASK.replace("PORT", str(PORT)).replace("PAIRS", str(pairs)), 3000)
    finally:
        host.ssh(f"kill -- -$(cat {BY_HAND}.pid); rm -f {BY_HAND}.pid {BY_HAND}.log", check=False)
    found = json.loads(asked)
    ratios = [u / h for u, h in zip(found["unit"], found["by_hand"], strict=True)]
    return {
        "pairs": pairs,
        "requests_at_once": found["at_once"],
        "tokens_each": found["tokens"],
        "unit_tok_s": round(statistics.median(found["unit"]), 1),
        "by_hand_tok_s": round(statistics.median(found["by_hand"]), 1),
        "unit_of_by_hand": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 3) for ratio in sorted(ratios)],
        "cores": os.cpu_count(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "stand_ins": "a tiny model of random weights on a systemd-nspawn host",
    }


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
