"""The two containers of a KTransformers pod, up to a chat by TLS; vLLM's CPU engine serves in it.

sglang with kt-kernel needs GPUs, so the plan's engine is vLLM's CPU build with the tiny model, put
where sglang would be: on the pod's loopback, behind our gate, without TLS of its own. The pod is
that of reference 000 as it is rendered: its two containers, their mounts, users, filters and
probes, by podman. Not proven by it: sglang, kt-kernel, GPUs, the image's build.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import engine_environment
import pods
import pytest
import yaml
from machines import kimi_prov
from waiting import until

from kimi_prov.lab import images, model
from kimi_prov.lab.settings import read_apt_settings
from kimi_prov.packaging import zipapp

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SPEC = Path(__file__).parents[2] / "inventories" / "specs" / "reference-000.yml"
SAYS = "vLLM's CPU engine is in sglang's place: there is no GPU"
STARTS_S = 1500.0
# What the pod of reference 000 asks for no machine of tests has.
SMALL = {"memory": "6Gi", "cpu": "2"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root as the image has it: HAProxy, the on-host code, and vLLM's CPU build as the engine."""
    say = sys.stdout.write
    say(f"{SAYS}\n")
    wanted = images.make_recipe(
        "debian-12", with_kernel=False, apt=read_apt_settings(), packages=("haproxy", "numactl")
    )
    lower = images.ensure_image(wanted, say) / "root"
    base = tmp_path_factory.mktemp("root")
    for name in ("upper", "work", "root"):
        (base / name).mkdir()
    place = base / "upper" / "opt" / "kimi"
    engine = place / "engine"
    (place / "bin").mkdir(parents=True)
    (engine / "bin").mkdir(parents=True)
    zipapp.build_zipapp(place / "kimi-target.pyz")
    launcher = Path(zipapp.__file__).parent / "image" / "kimi-pod"
    (place / "bin" / "kimi-pod").write_bytes(launcher.read_bytes())
    (place / "bin" / "kimi-pod").chmod(0o755)
    (engine / "bin" / "python").symlink_to("/usr/bin/python3.11")
    (engine / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (engine / "lib").mkdir()
    options = f"lowerdir={lower},upperdir={base / 'upper'},workdir={base / 'work'}"
    line = ["mount", "-t", "overlay", "overlay", "-o", options, str(base / "root")]
    subprocess.run(line, check=True)
    packages = engine_environment.environment("0.32.0") / "lib"
    inside = str(base / "root" / "opt" / "kimi" / "engine" / "lib")
    subprocess.run(["mount", "--bind", str(packages), inside], check=True)
    yield base / "root"
    for path in (inside, str(base / "root")):
        subprocess.run(["umount", "--lazy", path], check=False)


def rendered(base: Path) -> Path:
    """The folder of reference 000, with the plan of the tiny model on this machine's processors."""
    plain = pods.rendered(base / "plain", 1, "no-image")
    variables = base / "hybrid.yml"
    variables.write_text(yaml.safe_dump({"kimi_kubernetes_image": "no-image"}))
    folder = base / "hybrid"
    words = ("--model", "kimi-k2.5", "--vars", variables, "--output", folder)
    done = kimi_prov("render", "kubernetes", SPEC, *words)
    assert done.returncode == 0, done.stderr
    plan: dict[str, Any] = json.loads((plain / "plan.json").read_text())
    plan["engine"]["name"] = "ktransformers"
    (folder / "plan.json").write_text(json.dumps(plan))
    # The Job of the tiny model's weights, which the pod waits for.
    (folder / "fetch-job.yaml").write_text((plain / "fetch-job.yaml").read_text())
    return folder


def test_both_containers_serve_a_chat_by_tls_until_they_are_told_to_end(
    root: Path, tmp_path: Path
) -> None:
    network = pods.Network("10.93.97")
    place, address = network.join(2)
    namespace = pods.namespace(tmp_path / "ns", rendered(tmp_path), [address])
    try:
        model.make_model(namespace.claim("kimi-models") / "source")
        fetch = namespace.pod(
            "fetch",
            namespace.kind("Job")["spec"]["template"]["spec"],
            root=root,
            network=place,
            limits=SMALL,
        )
        fetch.start(detach=False)
        assert fetch.exit_status() == 0, fetch.logs()
        spec = namespace.kind("StatefulSet", "engine")["spec"]["template"]["spec"]
        engine, proxy = (
            namespace.pod(name, spec, root=root, network=place, limits=limits, named=name)
            for name, limits in (("engine", SMALL), ("proxy", {"cpu": "0.9"}))
        )
        proxy.start()
        engine.start()
        assert until(lambda: proxy.probe("readinessProbe").returncode == 0), proxy.logs()
        # By TLS, with the engine's end of it not there yet.
        assert namespace.chat(address, pods.KEY).status == 503
        ready = until(lambda: engine.probe("startupProbe").returncode == 0, STARTS_S)
        assert ready, engine.logs()[-3000:]
        assert namespace.chat(address, pods.KEY).status == 200
        assert namespace.chat(address, "sk-wrong").status == 401
        for name in ("readinessProbe", "livenessProbe"):
            assert engine.probe(name).returncode == 0
            assert proxy.probe(name).returncode == 0
        # The engine is on the loopback alone, and its container has no key of the certificate.
        listening = engine.run("cat", "/proc/net/tcp").stdout
        assert f"0100007F:{8001:04X}" in listening
        assert f"00000000:{8001:04X}" not in listening
        assert engine.run("ls", "/run/kimi/tls").stdout.split() == ["tls.crt"]
        done = engine.run("/opt/kimi/bin/kimi-pod", "accept")
        document = json.loads(done.stdout)
        assert document["ok"], document["checks"]
        ending = [pod.terminate() for pod in (proxy, engine)]
        for process in ending:
            process.communicate(timeout=engine.grace_s + 60)
        assert [pod.exit_status() for pod in (engine, proxy)] == [0, 0], proxy.logs()
        assert "ended as requested" in proxy.logs()
        assert pods.KEY not in engine.logs() + proxy.logs()
    finally:
        namespace.remove()
        network.remove()
