"""A stand-in for SLURM and for the engine, by which the jobs' program runs in real processes.

The commands of SLURM are small programs in a folder of PATH: `srun` starts a process for each node,
`squeue` lists the jobs that a file names, `sbatch` writes down what it was given. The engine is a
package `vllm` with a web server that speaks TLS, counts tokens, and drains on SIGTERM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ports import free_port
from stand_in_engine import HEADLESS
from waiting import HANGS_S

from kimi_prov.on_host.system.files import read_json
from kimi_prov.packaging.zipapp import build_zipapp

MODULE = "vllm.entrypoints.stand_in"
_PROGRAMS = {
    "scontrol": """
import sys
print(sys.argv[3].replace(",", "\\n"))
""",
    "squeue": """
import os, pathlib, sys
given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
lines = pathlib.Path(os.environ["STAND_IN"], "jobs").read_text().splitlines()
jobs = dict(line.split() for line in lines)
if given["--jobs"] not in jobs:
    sys.exit("slurm_load_jobs error: Invalid job id specified")
taken = pathlib.Path(os.environ["STAND_IN"], "preempted").exists()
if "--Format" in given:
    print("2031-02-03T04:05:06" if taken else "N/A")
else:
    print(jobs[given["--jobs"]] if given["--format"] == "%T" else "2031-02-03T04:05:06")
""",
    "sbatch": """
import json, os, pathlib, sys
slurm = [name for name in os.environ if name.startswith("SLURM_")]
told = {"argv": sys.argv[1:], "cwd": os.getcwd(), "slurm": slurm}
pathlib.Path(os.environ["STAND_IN"], "submitted.json").write_text(json.dumps(told))
print("4243")
""",
    "srun": """
import os, signal, subprocess, sys, time
words = sys.argv[1:]
nodes = int(next(w for w in words if w.startswith("--nodes=")).partition("=")[2])
first = next(i for i, w in enumerate(words) if not w.startswith("--"))
ranks = [
    subprocess.Popen(words[first:], env={**os.environ, "SLURM_PROCID": str(n)})
    for n in range(nodes)
]
signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
codes = []
while any(rank.poll() is None for rank in ranks):
    time.sleep(0.05)
    if any(rank.poll() for rank in ranks):
        time.sleep(0.2)
        [rank.terminate() for rank in ranks if rank.poll() is None]
sys.exit(max(rank.returncode for rank in ranks))
""",
}
_ENGINE = """
import argparse, http.server, importlib, json, os, pathlib, signal, ssl, sys, threading, time

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--ssl-certfile")
parser.add_argument("--ssl-keyfile")
given, rest = parser.parse_known_args()
there = pathlib.Path(os.environ["STAND_IN"])
names = ("HOME", "KIMI_API_KEY_FILE", "VLLM_HOST_IP", "VLLM_CPU_OMP_THREADS_BIND")
names += ("KIMI_REQUEST_BODY_MAX",)
told = {"argv": sys.argv[1:], "env": {name: os.environ.get(name) for name in names}}
rank = rest[rest.index("--node-rank") + 1] if "--node-rank" in rest else "0"
(there / f"engine-{rank}.json").write_text(json.dumps(told))
if (there / "broken").exists():
    sys.exit((there / "broken").read_text() or "ValueError: a stand-in that does not start")
tokens = [0]
work = [0]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        text = f'vllm:num_requests_running{{e="0"}} {work[0]}.0\\nvllm:num_requests_waiting 0.0\\n'
        text += f"vllm:generation_tokens_total {tokens[0]}.0\\nvllm:prompt_tokens_total 0\\n"
        self.answer(text.encode() if self.path == "/metrics" else b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        work[0] += 1
        if "slow" in body:
            (there / "at work").touch()
            time.sleep(body["slow"])
        work[0] -= 1
        tokens[0] += 1
        self.answer(json.dumps({
            "choices": [{"message": {"content": "hello"}}],
            "usage": {"total_tokens": 1, "completion_tokens": 1},
        }).encode())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def end(*_):
    def drained():
        while work[0]:
            time.sleep(0.05)
        time.sleep(0.2)
        (there / f"ended-{rank}").write_text(str(time.time()))
        os._exit(0)

    threading.Thread(target=drained).start()


signal.signal(signal.SIGTERM, end)
if given.port is None or (there / "slow").exists():
    while True:
        time.sleep(0.1)
server = http.server.ThreadingHTTPServer(("127.0.0.1", given.port), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(given.ssl_certfile, given.ssl_keyfile)
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


@dataclass
class Cluster:
    """A rendered folder, a root, and SLURM's commands; `run` starts the jobs' program there."""

    base: Path
    plan: dict[str, Any]
    settings: dict[str, str] = field(default_factory=dict)
    job: str = "4242"
    nodes: str = "localhost"

    def __post_init__(self) -> None:
        self.root, self.folder = self.base / "root", self.base / "rendered"
        self.there, self.programs = self.base / "stand-in", self.base / "bin"
        for path in (self.folder / "jobs", self.folder / "locks", self.there, self.programs):
            path.mkdir(parents=True)
        build_zipapp(self.folder / "kimi-cluster.pyz")
        self.write_plan()
        self.jobs()
        for name, text in _PROGRAMS.items():
            program = self.programs / name
            program.write_text(f"#!{sys.executable}{text}")
            program.chmod(0o755)

    def write_plan(self) -> None:
        """Write the plan as it is now."""
        (self.folder / "plan.json").write_text(json.dumps(self.plan))

    def jobs(self, *numbers: str) -> None:
        """Say which jobs SLURM knows; they run."""
        (self.there / "jobs").write_text("".join(f"{number} RUNNING\n" for number in numbers))

    def install(self) -> None:
        """Put the stand-in of the engine where the plan has the engine."""
        folder = Path(self.place(self.plan["engine"]["env_dir"]))
        venv.create(folder, symlinks=True)
        (folder / ".complete").touch()
        packages = next(folder.glob("lib/python*/site-packages"))
        module = packages / (MODULE.replace(".", "/") + ".py")
        serve = module.parent / "cli" / "serve.py"
        serve.parent.mkdir(parents=True)
        for folder in (serve.parent, module.parent, module.parents[1]):
            (folder / "__init__.py").touch()
        module.write_text(_ENGINE)
        serve.write_text(HEADLESS.format(module=MODULE))

    def place(self, path: str) -> str:
        return path.replace("/srv/kimi", str(self.root), 1)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{n: v for n, v in os.environ.items() if not n.startswith(("SLURM_", "KIMI_"))},
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "STAND_IN": str(self.there),
            # As a site's module may set it: nothing of it counts.
            "PYTHONPATH": "/nonexistent",
            "KIMI_ROOT": str(self.root),
            "KIMI_DIR": str(self.folder),
            "KIMI_PYTHON": sys.executable,
            "KIMI_PORT": str(free_port()),
            "KIMI_STEP_S": "0.2",
            "SLURM_JOB_ID": self.job,
            "SLURM_JOB_NODELIST": self.nodes,
            **self.settings,
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-I", str(self.folder / "kimi-cluster.pyz"), "cluster", *words]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env={**self.environment, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=HANGS_S,
            check=False,
        )

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            env={**self.environment, **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def endpoint(self) -> dict[str, Any]:
        return read_json(self.root / "endpoints" / f"{self.job}.json")
