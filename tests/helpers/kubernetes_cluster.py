"""A cluster for the tests of the commands: the stand-in of an API server, and who acts on it.

What schedulers, controllers and kubelets would write is written here, at once. Commands have a
real kubectl where a test wants it; a stub of it stands in for forwarded ports alone.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest import mock

import closed_form
import command_line
import forked
import quick_kubectl

from kimi_prov.commands.kubernetes import follow
from kimi_prov.operate.kubernetes.kubectl import Kubectl

if TYPE_CHECKING:
    from pathlib import Path

    from kubernetes_api import Api, Object

KEY = "sk-kimi-canary"
COMPLETE = {"status": {"conditions": [{"type": "Complete", "status": "True"}], "succeeded": 1}}
# kubectl itself, but for forwarded ports: those lead to the port in a file, as long as it is there.
# Where nothing answers at that port it ends, as kubectl does, at the next client and not before.
FORWARD = """
import os, pathlib, socket, sys, threading
there = pathlib.Path({there!r})
words = sys.argv[1:]
local, remote = words[-1].split(":")


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


server = socket.create_server(("127.0.0.1", int(local)))
server.settimeout(0.1)
while (there / "forwards").exists():
    try:
        near, _ = server.accept()
    except TimeoutError:
        continue
    try:
        far = socket.create_connection(("127.0.0.1", int((there / "forwards").read_text())))
    except OSError:
        break
    threading.Thread(target=copy, args=(near, far), daemon=True).start()
    threading.Thread(target=copy, args=(far, near), daemon=True).start()
print("error: lost connection to pod\\x1b[2J", file=sys.stderr)
os._exit(1)
"""
# It ends before its memory is worth collecting.
STUB = """#!/bin/sh
export GOGC=off
echo "$*" >> {there}/kubectl-calls
case " $* " in *" port-forward "*) exec {python} {forward} "$@" ;; esac
exec {real} "$@"
"""


@dataclass
class Cluster:
    """The API, a folder of the user's, and what the cluster does with what is applied."""

    api: Api
    config: Path
    base: Path
    real: Path
    # Whether jobs and pods come to their good end.
    fetches: bool = True
    runs: bool = True
    patience_s: float = 1.0
    # Whether questions go to the API without a start of kubectl.
    quick: bool = True
    processes: list[forked.Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        program = self.base / "bin" / "kubectl"
        program.parent.mkdir()
        forward = self.base / "forward.py"
        forward.write_text(FORWARD.format(there=str(self.base)))
        names = {"python": sys.executable, "forward": forward, "there": self.base}
        program.write_text(STUB.format(real=self.real, **names))
        program.chmod(0o755)
        (self.base / "real").write_text(str(self.real))
        self.api.follow = lambda _: self.act()
        self.api.put("namespaces", {"metadata": {"name": "kimi"}})
        self.node("n1")
        default = {"storageclass.kubernetes.io/is-default-class": "true"}
        self.api.put("storageclasses", {"metadata": {"name": "fast", "annotations": default}})
        for name in ("kimi-key", "kimi-tls"):
            self.api.put("secrets", {"metadata": {"name": name}, "data": {}})

    def node(self, name: str, **allocatable: str) -> Object:
        found = {"cpu": "256", "memory": "2Ti", "nvidia.com/gpu": "8"}
        found |= {"ephemeral-storage": "4Ti", "pods": "110"}
        found |= {key.replace("gpu", "nvidia.com/gpu"): v for key, v in allocatable.items()}
        return self.api.put("nodes", {"metadata": {"name": name}, "status": {"allocatable": found}})

    def act(self) -> None:
        """Do what controllers and kubelets would."""
        for job in self.api.all("jobs"):
            if self.fetches and not job.get("status"):
                job.update(COMPLETE)
        for plural in ("statefulsets", "leaderworkersets"):
            if any(row[1] == plural for row in self.api.resources):
                for row in self.api.all(plural):
                    self._pods(plural, row)

    def _pods(self, plural: str, row: Object) -> None:
        count, name = row["spec"]["replicas"], row["metadata"]["name"]
        if plural == "statefulsets":
            size, template = 1, row["spec"]["template"]
        else:
            group = row["spec"]["leaderWorkerTemplate"]
            size, template = group["size"], group["workerTemplate"]
        labels = template["metadata"]["labels"]
        names = [
            f"{name}-{number}{f'-{rank}' if rank else ''}"
            for number in range(count)
            for rank in range(size)
        ]
        for pod in self.api.all("pods"):
            mine = pod["metadata"].get("labels", {}) == labels
            if mine and pod["metadata"]["name"] not in names:
                self.api.drop("pods", pod["metadata"]["name"])
        for pod in names:
            if self.api.get("pods", pod) is None:
                metadata = {"name": pod, "labels": labels}
                self.api.put("pods", {"metadata": metadata, "spec": {}, **self.pending()})
        if self.runs:
            for pod in names:
                self.ready(pod)
        generation = row["metadata"].get("generation", 1)
        ready = count if self.runs else 0
        row["status"] = {"observedGeneration": generation, "replicas": count}
        row["status"] |= {"readyReplicas": ready, "updatedReplicas": count}

    @staticmethod
    def pending() -> Object:
        return {"status": {"phase": "Pending"}}

    def ready(self, pod: str) -> None:
        found = self.api.get("pods", pod)
        assert found is not None
        found["spec"]["nodeName"] = "n1"
        condition = {
            "type": "Ready",
            "status": "True",
            "lastTransitionTime": "2026-11-23T12:00:00Z",
        }
        state = {"name": "engine", "restartCount": 0, "state": {"running": {}}}
        found["status"] = {
            "phase": "Running",
            "startTime": "2026-11-23T12:00:00Z",
            "conditions": [condition],
            "containerStatuses": [state],
        }

    def event(self, about: str, reason: str, message: str) -> None:
        kind, _, name = about.partition("/")
        self.api.put(
            "events",
            {
                "metadata": {"name": f"{name}.{len(self.api.all('events'))}"},
                "involvedObject": {"kind": kind, "name": name},
                "reason": reason,
                "message": message,
                "type": "Warning",
                "lastTimestamp": "2099-01-01T00:00:00Z",
            },
        )

    def forwards(self, port: int | None) -> None:
        """Have forwarded ports lead to a port of this machine; None cuts them."""
        file = self.base / "forwards"
        if port is None:
            file.unlink()
        else:
            file.write_text(str(port))

    @property
    def calls(self) -> str:
        """Every command line that kubectl got."""
        return (self.base / "kubectl-calls").read_text()

    @property
    def environment(self) -> dict[str, str]:
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("KIMI_", "KUBE"))}
        return {
            **kept,
            "PATH": f"{self.base / 'bin'}:{os.environ['PATH']}",
            "KUBECONFIG": str(self.config),
            "HOME": str(self.base),
            "XDG_STATE_HOME": str(self.base / "state"),
            "COLUMNS": "80",
        }

    @property
    def waits(self) -> dict[str, float]:
        """What a person's patience is, cut short."""
        return {
            "POLL_INTERVAL_S": 0.2,
            "AWAY_TIMEOUT_S": 1.0,
            "TROUBLE_TIMEOUT_S": self.patience_s,
            "_TICK_S": 0.05,
        }

    def run(
        self, *words: object, code: int = 0, given: str = "", **environment: str
    ) -> command_line.Done:
        """Run a command in this process."""
        with (
            command_line.surroundings({**self.environment, **environment}),
            mock.patch.multiple(follow, **self.waits),
            mock.patch.object(Kubectl, "run", quick_kubectl.run if self.quick else Kubectl.run),
        ):
            done = command_line.run(*words, given=given)
        assert done.returncode == code, done.stdout + done.stderr
        assert "unexpected:" not in done.stderr
        return done

    def status(self, folder: Path, code: int = 0) -> Object:
        """The status document's entry, held to the schema."""
        document = json.loads(self.run("status", folder, "--format", "json", code=code).stdout)
        closed_form.validate(document, "status")
        (found,) = document["hosts"].values()
        return dict(found)

    def start(self, *words: object) -> forked.Process:
        """Start a command as a process of its own."""
        process = forked.Process(
            *words,
            env=self.environment,
            cwd=self.base,
            prepare=quick_kubectl.prepare,
            prepared={"waits": self.waits, "quick": self.quick},
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End what was started."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
