"""Stand-ins of SLURM's commands and of ssh, for the commands that ask after a folder's jobs.

The queue is a file of JSON, one object a job, that a test writes and sbatch and scancel change.
`ssh` runs what it is given on this machine, from an empty folder; it refuses as it is told.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import closed_form
import command_line
import forked

_FACTS = Path(__file__).parents[1] / "data" / "facts" / "lab-nspawn.json"
PROGRAMS = {
    "squeue": """
import json, os, pathlib, sys
there = pathlib.Path(os.environ["STAND_IN"])
if (there / "silent").exists():
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller")
rows = json.loads((there / "queue.json").read_text())
given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
if "--jobs" in given:
    rows = [row for row in rows if row["%A"] == given["--jobs"]]
    if not rows:
        sys.exit("slurm_load_jobs error: Invalid job id specified")
for row in rows:
    text = given["--format"]
    for name, value in row.items():
        text = text.replace(name, value)
    print(text)
""",
    "sbatch": """
import json, os, pathlib, sys
there = pathlib.Path(os.environ["STAND_IN"])
if (there / "refuses").exists():
    sys.exit("sbatch: error: invalid partition specified: gpu\\nsbatch: error: Batch job ...")
rows = json.loads((there / "queue.json").read_text())
number = str(1 + max([100, *(int(row["%A"]) for row in rows)]))
script = next(word for word in sys.argv[1:] if word.endswith(".sbatch"))
name = "kimi-" + pathlib.Path(script).stem
rows.append({"%A": number, "%T": "PENDING", "%r": "Dependency", "%N": "", "%S": "N/A",
             "%e": "N/A", "%L": "1:00:00", "%Z": os.getcwd(), "%o": os.path.abspath(script),
             "%j": name, "argv": " ".join(sys.argv[1:])})
(there / "queue.json").write_text(json.dumps(rows))
print(number + ";lab")
""",
    "scancel": """
import json, os, pathlib, sys
there = pathlib.Path(os.environ["STAND_IN"])
with open(there / "scancel", "a") as stream:
    stream.write(" ".join(sys.argv[1:]) + "\\n")
""",
    "sacct": """
import os, pathlib, sys
there = pathlib.Path(os.environ["STAND_IN"])
if not (there / "history").exists():
    sys.exit("Slurm accounting storage is disabled")
print((there / "history").read_text(), end="")
""",
    "ssh": """
import os, pathlib, select, socket, subprocess, sys, threading
there = pathlib.Path(os.environ["STAND_IN"])
words = sys.argv[1:]
with open(there / "ssh", "a") as stream:
    stream.write(repr(words) + "\\n")
if (there / "cut").exists():
    print("ssh: connect to host x port 22: No route to host\\x1b[2J", file=sys.stderr)
    sys.exit(255)
if "-O" in words:
    sys.exit('No ControlPath specified for "-O" command')
at = words.index("--")
if "-L" not in words:
    os.chdir(there)
    print("Welcome to the cluster", flush=True)
    sys.exit(subprocess.run(["sh", "-c", " ".join(words[at + 2 :])]).returncode)
address, port, node, port_there = words[words.index("-L") + 1].split(":")


def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


server = socket.create_server((address, int(port)))
while True:
    near, _ = server.accept()
    try:
        far = socket.create_connection(("127.0.0.1", int(port_there)))
    except OSError:
        near.close()
        continue
    threading.Thread(target=copy, args=(near, far), daemon=True).start()
    threading.Thread(target=copy, args=(far, near), daemon=True).start()
""",
}


@dataclass
class Slurm:
    """The stand-ins in a folder of PATH, and what they know."""

    base: Path

    def __post_init__(self) -> None:
        self.there, self.programs = self.base / "stand-in", self.base / "bin"
        for path in (self.there, self.programs, self.base / "home"):
            path.mkdir(parents=True)
        # A login shell starts with the system's PATH: a site's SLURM is put on it by a profile.
        profile = self.base / "home" / ".bash_profile"
        profile.write_text(f"echo Quota: 12 of 20 GB\nPATH={self.programs}:$PATH\n")
        self.queue()
        for name, text in PROGRAMS.items():
            program = self.programs / name
            # Without the packages of a site: nothing of theirs is used, and it starts sooner.
            program.write_text(f"#!{sys.executable} -S{text}")
            program.chmod(0o755)

    def queue(self, *rows: dict[str, str]) -> None:
        """Say which jobs SLURM knows."""
        (self.there / "queue.json").write_text(json.dumps(rows))

    @property
    def queued(self) -> list[dict[str, str]]:
        """What SLURM knows now."""
        return list(json.loads((self.there / "queue.json").read_text()))

    @property
    def environment(self) -> dict[str, str]:
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM_", "KIMI_"))}
        return {
            **kept,
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "STAND_IN": str(self.there),
            "HOME": str(self.base / "home"),
            "XDG_STATE_HOME": str(self.base / "state"),
            "COLUMNS": "80",
        }

    def run(self, *words: object, given: str = "", **environment: str) -> command_line.Done:
        """Run kimi-prov in this process; SLURM's commands and ssh are processes of their own."""
        with command_line.surroundings({**self.environment, **environment}):
            return command_line.run(*words, given=given)

    def start(self, *words: object) -> forked.Process:
        """Start kimi-prov as a process of its own."""
        return forked.Process(*words, env=self.environment, cwd=self.base)


def job(number: int, name: str, folder: Path, **fields: str) -> dict[str, str]:
    """A row of squeue, by its format's letters: `T` for %T."""
    row = {
        "%A": str(number), "%T": "RUNNING", "%r": "None", "%N": "c1",
        "%S": "2031-02-03T04:05:06", "%e": "2031-02-04T04:05:06", "%L": "23:14:05",
        "%Z": str(folder), "%o": f"{folder}/jobs/{name}.sbatch", "%j": f"kimi-{name}",
    }  # fmt: skip
    return {**row, **{f"%{letter}": value for letter, value in fields.items()}}


def endpoint(root: Path, number: int, folder: Path, **fields: Any) -> dict[str, Any]:
    """Write what a server publishes, and return it."""
    document = {
        "schema": "kimi-prov/endpoint/v1",
        "url": "https://c1:8101/v1",
        "node": "c1",
        "nodes": ["c1"],
        "job": str(number),
        "folder": str(folder),
        "model": "kimi",
        "certificate": "",
        "key_file": str(root / "keys" / "api.key"),
        "state": "ready",
        "ends_at": "2031-02-04T04:05:06Z",
        "successor": None,
        "notes": [],
        **fields,
    }
    path = root / "endpoints" / f"{number}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return document


def render(folder: Path) -> None:
    """Render a folder with the root /ROOT, for one node without GPUs."""
    variables = {
        "kimi_slurm_root": "/ROOT",
        "kimi_slurm_python": sys.executable,
        "kimi_model": "kimi-k2-lab",
        "kimi_weights_source": "file:///nowhere",
    }
    file = folder.parent / "variables.yml"
    file.write_text(json.dumps(variables))
    words = ("render", "slurm", _FACTS, "--vars", file, "--output", folder)
    done = Slurm(folder.parent / "slurm").run(*words)
    assert done.returncode == 0, done.stderr


@dataclass
class Site:
    """A rendered folder of one's own, the cluster's root, and SLURM."""

    slurm: Slurm
    folder: Path
    root: Path

    @classmethod
    def of(cls, rendered: Path, base: Path) -> Site:
        """Copy a folder that `render` made."""
        folder, root = base / "kimi-jobs", base / "cluster"
        shutil.copytree(rendered, folder)
        settings = folder / "cluster.env"
        settings.write_text(settings.read_text().replace("/ROOT", str(root)))
        return cls(Slurm(base / "slurm"), folder, root)

    def json(self, *words: object, code: int = 0) -> dict[str, Any]:
        """The document of a command, which ends with `code`."""
        done = self.slurm.run(*words, "--format", "json")
        assert done.returncode == code, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        closed_form.validate(document, str(words[0]))
        return document

    def fails(self, *words: object, code: int) -> str:
        """What a command that fails says; nothing in it steers a terminal."""
        done = self.slurm.run(*words)
        assert done.returncode == code, done.stderr
        assert done.stdout == ""
        assert "\x1b" not in done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr
