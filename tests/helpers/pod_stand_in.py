"""A pod in a folder: mounts below a root, a stand-in of the engine, `kimi-pod` in processes.

What a cluster adds (its user, limits, read-only root) is tried in
tests/component/on_host/pod/test_pod.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stand_in_engine
from ports import free_port

from kimi_prov.on_host.endpoint import api_client, tls
from kimi_prov.packaging.zipapp import build_zipapp

KEY = "sk-kimi-of-the-test"
METRICS_KEY = "metrics-of-the-test"
BODY = {"model": "kimi", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


@dataclass
class Pod:
    """One pod; `plan` is changed before it starts."""

    base: Path
    hosts: int = 1
    secure: bool = True
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root = self.base / "root"
        self.source = self.base / "source"
        self.port = free_port()
        for name in ("etc/kimi", "run/kimi/key", "run/kimi/tls", "srv/kimi/models", "dev/shm",
                     "var/cache/kimi", "tmp", "proc"):  # fmt: skip
            (self.root / name).mkdir(parents=True)
        build_zipapp(self.root / "opt/kimi/kimi-target.pyz")
        self.engine = self.root / "opt/kimi/engine"
        venv.create(self.engine, symlinks=True)
        stand_in_engine.install(self.engine)
        (self.root / "run/kimi/key/api-key").write_text(KEY + "\n")
        (self.root / "run/kimi/key/metrics-key").write_text(METRICS_KEY + "\n")
        self.certificate = ""
        if self.secure:
            pem = tls.make_self_signed(["kimi"])
            self.certificate = tls.extract_certificates(pem)
            (self.root / "run/kimi/tls/tls.crt").write_text(self.certificate)
            (self.root / "run/kimi/tls/tls.key").write_text(pem[len(self.certificate) :])
        self.plan = self._plan()

    def _plan(self) -> dict[str, Any]:
        self.source.mkdir()
        (self.source / "config.json").write_text("{}\n")
        digest = hashlib.sha256(b"{}\n").hexdigest()
        rows = {"files": [{"path": "config.json", "size": 3, "sha256": digest}]}
        argv = [str(self.engine / "bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
        argv += ["--model", "/srv/kimi/models/m/r", "--served-model-name", "kimi"]
        return {
            "engine": {"env_dir": "/opt/kimi/engine", "version": "0.32.0"},
            "model": {"served_names": ["kimi"], "random_weights": True},
            "weights": {
                "source": f"file://{self.source}",
                "dir": "/srv/kimi/models/m/r",
                "manifest": rows,
                "bytes": 3,
                "workers": 1,
                "hf_endpoint": None,
                "draft": None,
                "converted": None,
            },
            "parallel": {"hosts": self.hosts, "tensor": self.hosts, "pipeline": 1, "data": 1},
            "memory": {"host_parts": []},
            "proxy": {"port": 8000, "request_body_max_bytes": 1 << 20},
            "instances": [
                {
                    "argv": argv,
                    "env": {"HF_HOME": "/srv/kimi/cache/huggingface"},
                    "numactl": [],
                    "numa_nodes": [0],
                    "gpus": [],
                }
            ],
        }

    def write(self) -> None:
        """Mount the plan, in one step: a server of before may be reading it."""
        new = self.root / "etc/kimi/plan.json.new"
        new.write_text(json.dumps(self.plan))
        new.replace(new.with_suffix(""))

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a subcommand to its end."""
        self.write()
        return subprocess.run(
            self.command(*words),
            env={**self.variables, **environment},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Start a subcommand; its output is one text."""
        self.write()
        return subprocess.Popen(
            self.command(*words),
            env={**self.variables, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-I", str(self.root / "opt/kimi/kimi-target.pyz"), "pod", *words]

    @property
    def variables(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "KIMI_POD_ROOT": str(self.root),
            "KIMI_PORT": str(self.port),
            "KIMI_DEREGISTER_S": "0",
            # As some image may set it: nothing of it counts.
            "PYTHONPATH": "/nonexistent",
            **self.environment,
        }

    @property
    def endpoint(self) -> api_client.Endpoint:
        fingerprint = tls.compute_fingerprint(self.certificate) if self.secure else None
        return api_client.Endpoint("127.0.0.1", self.port, fingerprint, 60)

    def ready(self, *words: str, timeout_s: float = 5) -> subprocess.CompletedProcess[str]:
        """Ask as a probe does."""
        return self.run("ready", "--timeout", str(timeout_s), *words)

    def is_ready(self) -> bool:
        return self.ready().returncode == 0

    def of_engine(self, name: str) -> str:
        """Read a file of /proc about the engine's process."""
        path = Path(f"/proc/{self.engine_pid()}/{name}")
        return path.read_text(encoding="utf-8", errors="replace")

    def engine_pid(self) -> int:
        return int(json.loads((self.root / "tmp/kimi/run.json").read_text())["pid"])
