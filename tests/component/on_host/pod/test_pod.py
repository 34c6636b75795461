"""The containers of a rendered folder as a node runs them, with a stand-in of the engine.

Real are user, capabilities, read-only root, filter of system calls, limits of memory and time, the
mounts and the probes, by podman from the rendered objects. The image's root is a lab machine's with
/opt/kimi as an image has it; the image itself, with the real engine, is tests/lab/test_image.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pods
import pytest
import stand_in_engine
from waiting import until

from kimi_prov.lab import images
from kimi_prov.lab.settings import read_apt_settings
from kimi_prov.on_host.endpoint import api_client
from kimi_prov.on_host.weights import manifest
from kimi_prov.packaging import zipapp

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lab machine's root with the on-host code and the stand-in where an image has them."""
    say = sys.stdout.write
    say(f"{pods.SAYS}\n")
    wanted = images.make_recipe("debian-12", with_kernel=False, apt=read_apt_settings())
    lower = images.ensure_image(wanted, say) / "root"
    base = tmp_path_factory.mktemp("root")
    for name in ("upper", "work", "root"):
        (base / name).mkdir()
    place = base / "upper" / "opt" / "kimi"
    (place / "bin").mkdir(parents=True)
    zipapp.build_zipapp(place / "kimi-target.pyz")
    launcher = Path(zipapp.__file__).parent / "image" / "kimi-pod"
    (place / "bin" / "kimi-pod").write_bytes(launcher.read_bytes())
    (place / "bin" / "kimi-pod").chmod(0o755)
    engine = place / "engine"
    (engine / "bin").mkdir(parents=True)
    (engine / "bin" / "python").symlink_to("/usr/bin/python3")
    (engine / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (engine / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    stand_in_engine.install(engine)
    options = f"lowerdir={lower},upperdir={base / 'upper'},workdir={base / 'work'}"
    line = ["mount", "-t", "overlay", "overlay", "-o", options, str(base / "root")]
    subprocess.run(line, check=True)
    yield base / "root"
    subprocess.run(["umount", "--lazy", str(base / "root")], check=False)


class Served:
    """A pod that answers, after the Job of its weights."""

    def __init__(self, base: Path, root: Path, network: pods.Network) -> None:
        self.root = root
        self.place, self.address = network.join(2)
        folder = pods.rendered(base / "one", 1, "no-image")
        self.namespace = pods.namespace(base / "ns", folder, [self.address])
        source = self.namespace.claim("kimi-models") / "source"
        source.mkdir()
        files = {"config.json": b"{}\n", "model.safetensors": os.urandom(1 << 20)}
        rows = [
            {"path": path, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
            for path, body in files.items()
        ]
        for path, body in files.items():
            (source / path).write_bytes(body)
        (source / manifest.NAME).write_text(json.dumps({"files": rows}))

    def fetch(self, number: int) -> pods.Pod:
        """Run the Job's container once."""
        spec = self.namespace.kind("Job")["spec"]["template"]["spec"]
        pod = self.namespace.pod(f"fetch{number}", spec, root=self.root, network=self.place)
        pod.start(detach=False)
        return pod

    def engine(self, name: str, **limits: str) -> pods.Pod:
        spec = self.namespace.kind("StatefulSet", "engine")["spec"]["template"]["spec"]
        return self.namespace.pod(name, spec, root=self.root, network=self.place, limits=limits)

    def endpoint(self) -> api_client.Endpoint:
        return self.namespace.endpoint(self.address)

    def chat(self, key: str | None, **more: Any) -> int:
        return self.namespace.chat(self.address, key, **more).status


@pytest.fixture(scope="module")
def served(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    network = pods.Network(pods.PREFIX)
    made = None
    try:
        made = Served(tmp_path_factory.mktemp("pods"), root, network)
        yield made
    finally:
        if made is not None:
            made.namespace.remove()
        network.remove()


@pytest.fixture(scope="module")
def fetched(served: Served) -> list[pods.Pod]:
    """The Job's container, run twice; before it the engine's was refused."""
    early = served.engine("early")
    early.start(detach=False)
    return [early, served.fetch(1), served.fetch(2)]


@pytest.fixture(scope="module")
def engine(served: Served, fetched: list[pods.Pod]) -> pods.Pod:
    assert fetched[1].exit_status() == 0, fetched[1].logs()
    pod = served.engine("engine")
    done = pod.start()
    assert done.returncode == 0, done.stderr
    assert until(lambda: pod.probe("startupProbe").returncode == 0), pod.logs()
    return pod


def test_the_job_fetches_once_and_the_engine_wants_it_done(fetched: list[pods.Pod]) -> None:
    logs = [pod.logs() for pod in fetched]
    assert [pod.exit_status() for pod in fetched] == [2, 0, 0], logs
    assert "the weights are not verified" in fetched[0].logs()
    assert "verified against manifest" in fetched[1].logs()
    assert "already verified" in fetched[2].logs()


def test_it_answers_through_its_port_with_the_key_alone(served: Served, engine: pods.Pod) -> None:
    assert stand_in_engine.SAYS in engine.logs()
    assert served.chat(pods.KEY) == 200
    assert [served.chat(key) for key in (None, "sk-wrong")] == [401, 401]
    assert api_client.call(served.endpoint(), "GET", "/metrics", pods.KEY).status == 404
    assert engine.probe("readinessProbe").returncode == 0
    assert engine.probe("livenessProbe").returncode == 0


def test_the_kernel_holds_what_the_objects_say(served: Served, engine: pods.Pod) -> None:
    pid = engine.run("sh", "-c", "cat /proc/1/status; touch /x /opt/kimi/x /srv/kimi/x; id")
    fields = dict(line.split(":\t", 1) for line in pid.stdout.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["10001"] * 4
    assert fields["Gid"].split() == ["10001"] * 4
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
    assert pid.stderr.count("Read-only file system") == 3
    limit = pods.size(engine.container["resources"]["limits"]["memory"])
    paths = "/sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes"
    assert str(limit) in engine.run("sh", "-c", f"cat {paths} 2>/dev/null").stdout.split()
    secrets = engine.run("sh", "-c", "ls -ln /run/kimi/key /run/kimi/tls").stdout
    assert secrets.count("-r--r----- 1 0 10001") == 3


def test_too_little_memory_is_refused_with_its_figure(served: Served, engine: pods.Pod) -> None:
    pod = served.engine("small", memory="1Gi")
    pod.start(detach=False)
    assert pod.exit_status() == 2
    assert "the container may use 1.0 GiB of memory, and the engine needs" in pod.logs()


def test_an_answer_ends_when_the_pod_is_told_to(served: Served, engine: pods.Pod) -> None:
    answers: list[int] = []
    asked = threading.Thread(target=lambda: answers.append(served.chat(pods.KEY, user="patient")))
    asked.start()
    assert until(lambda: engine.answers_under_way() == 1)
    ending = engine.terminate()
    assert until(lambda: engine.probe("readinessProbe").returncode != 0)
    asked.join(60)
    ending.communicate(timeout=60)
    assert answers == [200]
    assert engine.exit_status() == 0, engine.logs()
    assert pods.KEY not in engine.logs()
