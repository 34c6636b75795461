"""Pods of a rendered folder without a cluster: podman runs what the objects say.

Taken from the rendered YAML are image, command, arguments, environment, user and groups, security
context, limits, mounts and probes. podman enforces them by the kernel's means that a node's runtime
takes too: namespaces, cgroups, capabilities, the default filter of system calls. What no cluster
here does: it schedules nothing, and its Services, volumes and Secrets are folders of this machine.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from machines import kimi_prov

from kimi_prov.contract import pod
from kimi_prov.on_host.endpoint import api_client, tls

SAYS = "podman stands in for the kubelet: no cluster scheduled this pod"
KEY = "sk-kimi-of-the-test"
_METRICS = """
import sys
sys.path.insert(0, "/opt/kimi/kimi-target.pyz")
from kimi_prov.on_host.pod import mounts, ready
print(ready.send_request(mounts.Mounts.from_environment(), "GET", "/metrics", None, 10)[1])
"""
# Of the pods' own network; its third number names their bridge.
PREFIX = "10.93.96"
FACTS = Path(__file__).parents[1] / "data" / "facts" / "lab-nspawn.json"
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
# A kernel of both versions of cgroups hides its controllers from crun unless the second is away.
_WITHOUT_UNIFIED = 'umount /sys/fs/cgroup/unified; exec podman "$@"'
_OPTIONS = ("--cgroup-manager=cgroupfs", "--runtime=crun", "--events-backend=file")


def podman(*words: str | Path, check: bool = True, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run podman as root; `more` is subprocess's."""
    line = command(*words)
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False, **more)
    if check and done.returncode:
        pytest.fail(f"podman {' '.join(map(str, words))}: {done.stderr}")
    return done


def command(*words: str | Path) -> list[str]:
    given = [*_OPTIONS, *map(str, words)]
    if os.path.ismount("/sys/fs/cgroup/unified"):
        return ["unshare", "--mount", "sh", "-c", _WITHOUT_UNIFIED, "podman", *given]
    return ["podman", *given]


def size(text: str) -> int:
    """Bytes of a quantity such as 4Gi."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi)?", text)
    assert match, text
    return int(match[1]) * _UNITS.get(match[2] or "", 1)


def rendered(folder: Path, hosts: int, image: str) -> Path:
    """Render for the lab's small model, whose weights are copied from the volume itself."""
    variables = {
        "kimi_model": "kimi-k2-lab",
        "kimi_weights_source": "file:///srv/kimi/source",
        "kimi_kubernetes_image": image,
        "kimi_hosts_per_model": hosts,
    }
    file = folder.with_suffix(".yml")
    file.write_text(yaml.safe_dump(variables))
    done = kimi_prov("render", "kubernetes", FACTS, "--vars", file, "--output", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def namespace(base: Path, folder: Path, names: list[str]) -> Namespace:
    """Make a namespace with the Secrets of a rendered folder; the certificate is for `names`."""
    pem = tls.make_self_signed(names)
    certificate = tls.extract_certificates(pem)
    key = {"api-key": f"{KEY}\n"}
    pair = {"tls.crt": certificate, "tls.key": pem[len(certificate) :]}
    return Namespace(base, folder, {"kimi-key": key, "kimi-tls": pair})


class Network:
    """Network namespaces that pods run in, on a bridge of this machine; nothing beyond it."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._bridge = f"kp{prefix.rpartition('.')[2]}"
        # A run that was killed leaves its network behind.
        self.remove()
        self._ip("link", "add", self._bridge, "type", "bridge")
        self._ip("address", "add", f"{prefix}.1/24", "dev", self._bridge)
        self._ip("link", "set", self._bridge, "up")

    def join(self, number: int) -> tuple[str, str]:
        """Make a namespace; podman's name of it, and its address."""
        name, outside = f"{self._bridge}-{number}", f"{self._bridge}v{number}"
        address = f"{self.prefix}.{number}"
        self._ip("netns", "add", name)
        self._ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        self._ip("link", "set", outside, "master", self._bridge, "up")
        self._ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self._ip("-n", name, "link", "set", device, "up")
        return f"ns:/run/netns/{name}", address

    def remove(self) -> None:
        for path in Path("/run/netns").glob(f"{self._bridge}-*"):
            subprocess.run(["ip", "netns", "delete", path.name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", self._bridge], check=False, capture_output=True)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Namespace:
    """What a namespace of a cluster has, in folders: Secrets, ConfigMaps, claims."""

    base: Path
    rendered: Path
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)

    def claim(self, name: str) -> Path:
        """A volume that outlives pods."""
        folder = self.base / "claims" / name
        if not folder.exists():
            folder.mkdir(parents=True)
        return folder

    def objects(self) -> list[dict[str, Any]]:
        texts = [path.read_text() for path in sorted(self.rendered.glob("*.yaml"))]
        return [row for text in texts for row in yaml.safe_load_all(text) if row]

    def kind(self, kind: str, component: str | None = None) -> dict[str, Any]:
        """The one object of a kind, of a component where several have it."""
        found = [
            row
            for row in self.objects()
            if row["kind"] == kind
            and component
            in (None, row["metadata"].get("labels", {}).get("app.kubernetes.io/component"))
        ]
        assert len(found) == 1, [row["metadata"]["name"] for row in found]
        return found[0]

    def pod(self, name: str, spec: dict[str, Any], **more: Any) -> Pod:
        """A pod by its template's spec; it is removed with the namespace."""
        made = Pod(self, f"{self.base.name}-{name}", spec, **more)
        self.started.append(made.name)
        return made

    def endpoint(self, address: str) -> api_client.Endpoint:
        """The API at a pod's address, its certificate pinned."""
        fingerprint = tls.compute_fingerprint(self.secrets["kimi-tls"]["tls.crt"])
        return api_client.Endpoint(address, pod.PORT, fingerprint, 120)

    def chat(self, address: str, key: str | None, **more: Any) -> api_client.Reply:
        """Ask for one token."""
        body = {
            "model": "kimi-k2-lab",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 1,
            **more,
        }
        return api_client.request_chat(self.endpoint(address), key, body)

    def remove(self) -> None:
        for name in self.started:
            podman("rm", "--force", "--time", "1", name, check=False)


@dataclass
class Pod:
    """One container of a pod; `root` runs instead of the image, where one is given."""

    namespace: Namespace
    name: str
    spec: dict[str, Any]
    root: Path | None = None
    network: str = "host"
    hosts: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)
    # Which container, where the pod has several: they share its network.
    named: str | None = None

    @property
    def container(self) -> dict[str, Any]:
        (found,) = [row for row in self.spec["containers"] if self.named in (None, row["name"])]
        return dict(found)

    @property
    def grace_s(self) -> int:
        return int(self.spec.get("terminationGracePeriodSeconds", 30))

    def start(self, detach: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the container; without `detach` to its end."""
        where = [self.container["image"]] if self.root is None else ["--rootfs", str(self.root)]
        given = self.container.get("command") or []
        if self.root is not None and not given:
            given = ["/opt/kimi/bin/kimi-pod"]
        line = ["run", "--name", self.name, *(["--detach"] if detach else []), *self._options()]
        if self.root is None and given:
            line += ["--entrypoint", json.dumps(given)]
            given = []
        done = podman(*line, *where, *given, *self.container.get("args", []), check=False)
        # Of podman's own: what it ran has other statuses, or none yet.
        if done.returncode in (125, 126, 127):
            pytest.fail(f"podman does not start {self.name}: {done.stderr}")
        return done

    def _options(self) -> list[str]:
        context = {**self.spec["securityContext"], **self.container["securityContext"]}
        limits = {**self.container["resources"]["limits"], **self.limits}
        assert context["runAsNonRoot"] is True
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        found = ["--user", f"{context['runAsUser']}:{context['runAsGroup']}"]
        found += ["--group-add", str(context["fsGroup"])]
        if context["readOnlyRootFilesystem"]:
            found += ["--read-only", "--read-only-tmpfs=false"]
        if context["allowPrivilegeEscalation"] is False:
            found.append("--security-opt=no-new-privileges")
        capabilities = context["capabilities"]
        found += [f"--cap-drop={name}" for name in capabilities.get("drop", [])]
        found += [f"--cap-add={name}" for name in capabilities.get("add", [])]
        memory = str(size(limits["memory"]))
        found += ["--memory", memory, "--memory-swap", memory, "--cpus", limits["cpu"]]
        # podman would raise the limits of processes, which root may not everywhere.
        for name in ("nofile", "nproc"):
            most = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
            most = min(most, 8192) if most != resource.RLIM_INFINITY else 8192
            found.append(f"--ulimit={name}={most}:{most}")
        found += [f"--network={self.network}", "--log-driver=k8s-file"]
        found += [f"--add-host={name}:{address}" for name, address in self.hosts.items()]
        named = {row["name"]: str(row.get("value", "")) for row in self.container.get("env", [])}
        for name, value in {**named, **self.environment}.items():
            found.append(f"--env={name}={value}")
        for mount in self.container["volumeMounts"]:
            found += self._mount(mount, context["fsGroup"])
        return found

    def _mount(self, mount: dict[str, Any], group: int) -> list[str]:
        (volume,) = [row for row in self.spec["volumes"] if row["name"] == mount["name"]]
        empty = volume.get("emptyDir")
        if empty is not None and empty.get("medium") == "Memory":
            assert mount["mountPath"] == "/dev/shm"
            return [f"--shm-size={size(empty['sizeLimit'])}"]
        folder = self._folder(volume)
        read_only = mount.get("readOnly") or "secret" in volume or "configMap" in volume
        if "configMap" not in volume:
            # As a volume gets fsGroup.
            for path in [folder, *folder.rglob("*")]:
                os.chown(path, -1, group, follow_symlinks=False)
        if not read_only:
            folder.chmod(0o2775)
        return [f"--volume={folder}:{mount['mountPath']}:{'ro' if read_only else 'rw'}"]

    def _folder(self, volume: dict[str, Any]) -> Path:
        if claim := volume.get("persistentVolumeClaim"):
            return self.namespace.claim(claim["claimName"])
        folder = self.namespace.base / "volumes" / self.name / volume["name"]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if secret := volume.get("secret"):
            rows = self.namespace.secrets[secret["secretName"]]
            mode = secret.get("defaultMode", 0o644)
            items = secret.get("items") or [{"key": key, "path": key} for key in rows]
            for item in items:
                (folder / item["path"]).write_text(rows[item["key"]])
                (folder / item["path"]).chmod(mode)
        if "configMap" in volume:
            shutil.copy(self.namespace.rendered / "plan.json", folder / "plan.json")
        return folder

    def probe(self, name: str) -> subprocess.CompletedProcess[str]:
        """Ask as the kubelet would; the probe's own time limit counts."""
        row = self.container[name]
        limit = str(row["timeoutSeconds"])
        line = command("exec", self.name, *row["exec"]["command"])
        return subprocess.run(
            ["timeout", limit, *line], capture_output=True, text=True, check=False
        )

    def answers_under_way(self) -> int:
        """How many answers its engine is at, by its metrics, which the pod's own key opens."""
        done = self.run("python3", "-I", "-c", _METRICS)
        found = re.search(r"^vllm:num_requests_running\S* ([0-9]+)", done.stdout, re.MULTILINE)
        return int(found.group(1)) if found else 0

    def logs(self) -> str:
        done = podman("logs", self.name, check=False)
        return done.stdout + done.stderr

    def exit_status(self) -> int | None:
        """Its exit status; None while it runs."""
        rows = json.loads(podman("inspect", self.name).stdout)
        state = rows[0]["State"]
        return None if state["Running"] else int(state["ExitCode"])

    def terminate(self) -> subprocess.Popen[str]:
        """Tell it to end, as a node does; it is killed when its grace is over."""
        line = command("stop", "--time", str(self.grace_s), self.name)
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside."""
        return podman("exec", self.name, *words, check=False)
