"""A rendered folder on the shared file system of a lab's SLURM cluster, as its owner uses it."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from cluster import Cluster

# Loading an engine on a machine with much else to do.
LOADS_S = 900.0
QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


def copy(slurm: Cluster, folder: Path, there: str) -> None:
    """Copy a folder of the control machine to the cluster, as a user's."""
    line = ["tar", "--owner=0", "--group=0", "-C", str(folder), "-cf", "-", "."]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as packed:
        unpack = f"mkdir -p {there} && tar -xf - -C {there}"
        subprocess.run([*slurm.login(), unpack], stdin=packed.stdout, check=True)


def chat(url: str, model: str, certificate: str, key: str, **more: object) -> dict[str, Any]:
    """An answer, the certificate alone trusted; raises urllib's HTTPError where it is refused."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    body = json.dumps({"model": model, **QUESTION, **more}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", body, headers)  # noqa: S310 - made here
    trusted = ssl.create_default_context(cadata=certificate)
    with urllib.request.urlopen(request, timeout=120, context=trusted) as answer:  # noqa: S310
        return dict(json.load(answer))


@dataclass
class Jobs:
    """The folder, and the root that its jobs write to; both as the cluster names them."""

    slurm: Cluster
    folder: str
    root: str

    def submit(self, name: str, *options: str) -> int:
        """Hand a job of the folder in by sbatch; options win over those in the file."""
        line = " ".join(["sbatch", "--parsable", *options, f"jobs/{name}.sbatch"])
        return int(self.slurm.run(f"cd {self.folder} && {line}"))

    def set(self, name: str, value: str) -> None:
        """Change a line of cluster.env, as a user would."""
        line = f"s|^export {name}=.*|export {name}={value}|"
        self.slurm.run(f"sed -i '{line}' {self.folder}/cluster.env")

    def endpoint(self, number: int) -> dict[str, Any]:
        """What the job tells its owner; empty where it has told nothing yet."""
        text = self.slurm.run(f"cat {self.root}/endpoints/{number}.json 2>/dev/null || echo '{{}}'")
        return dict(json.loads(text))

    def wait_ready(self, number: int, times: int = 1, hangs_s: float = LOADS_S) -> dict[str, Any]:
        """Wait until the server has said so many times that it answers; its endpoint."""

        def over() -> bool:
            said = self.slurm.output(number).count("ready after") >= times
            return said or self.slurm.state(number) not in ("PENDING", "RUNNING")

        assert until(over, hangs_s), self.slurm.output(number)[-3000:]
        assert self.slurm.state(number) == "RUNNING", self.slurm.output(number)[-3000:]
        return self.endpoint(number)

    def wait_done(self, number: int, hangs_s: float = LOADS_S) -> str:
        """Wait until a job has ended well; what it printed."""
        self.slurm.wait_job(number, "COMPLETED", "FAILED", "TIMEOUT", hangs_s=hangs_s)
        assert self.slurm.state(number) == "COMPLETED", self.slurm.output(number)[-3000:]
        return self.slurm.output(number)

    def chat(self, endpoint: dict[str, Any], **more: object) -> dict[str, Any]:
        """A chat through the login node, the endpoint's certificate alone trusted."""
        key = self.slurm.run(f"cat {endpoint['key_file']}")
        return self.ask(endpoint, key, **more)

    def ask(self, endpoint: dict[str, Any], key: str, **more: object) -> dict[str, Any]:
        """The same with another key; raises urllib's HTTPError where it is refused."""
        port = int(endpoint["url"].rpartition(":")[2].partition("/")[0])
        with self.slurm.tunnel(endpoint["node"], port) as local:
            url = f"https://localhost:{local}/v1"
            return chat(url, endpoint["model"], endpoint["certificate"], key, **more)
