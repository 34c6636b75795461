"""The files of a pod: the plan, and its Secrets, each below its mount."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract import paths, pod
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan

_CACHE = re.compile(re.escape(paths.CACHE) + r"(?=/|$)")
# Variables that list folders.
_SEARCHED = ("PATH", "LD_LIBRARY_PATH")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Group:
    """The pod's part of a LeaderWorkerSet: the leader's address, the index and the size."""

    leader: str
    size: int
    index: int


@dataclass(frozen=True)
class Mounts:
    """The pod's plan and file system. `root` is / in a pod."""

    plan: MachinePlan
    environment: Mapping[str, str]
    root: str = "/"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Mounts:
        """Read the plan. Raises HostError where none is mounted."""
        given = dict(os.environ if environment is None else environment)
        root = given.get("KIMI_POD_ROOT", "/")
        path = paths.join_root(root, pod.PLAN)
        plan = plans.read_machine_plan(path)
        if not plan.get("engine") or not plan.get("instances"):
            raise HostError(
                f"{path} is missing, or no plan",
                "mount the ConfigMap of the rendered folder at /etc/kimi",
            )
        return cls(plan, given, root)

    def locate(self, path: str) -> str:
        """Return a path of the image or of a mount."""
        return paths.join_root(self.root, path)

    def find(self, path: str) -> str | None:
        """Return the path of a file that may be mounted; None where it is not."""
        found = self.locate(path)
        return found if os.path.exists(found) else None

    def run(self, name: str) -> str:
        """Return the path of a file of the pod's own; its folder is made, for its owner alone."""
        folder = self.locate(pod.RUN)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return os.path.join(folder, name)

    def replace_cache(self, text: str) -> str:
        """Return a path or text of the plan with the pod's own folder for caches."""
        return _CACHE.sub(lambda _: self.locate(pod.CACHE), text)

    def api_key(self) -> str:
        """Return the API key. Raises HostError where none is mounted."""
        path = self.locate(pod.API_KEY)
        key = read_text(path).strip()
        if not key:
            raise HostError(
                f"{path} is missing or empty",
                "make the Secret as the folder's README.md says; its item is named api-key",
            )
        return key

    def metrics_key_file(self) -> str | None:
        """Return the path of the key for metrics; None where none is mounted. Raises HostError."""
        path = self.find(pod.METRICS_KEY)
        if path and not read_text(path).strip():
            raise HostError(f"{path} is empty", "give the Secret's item metrics-key a value")
        return path

    def tls(self) -> tuple[str, str] | None:
        """Return the paths of certificate and key; None where neither is mounted.

        Raises HostError where one is missing, or where they do not belong together: plain HTTP must
        not happen by mistake, and the engine would report it only after it has loaded.
        """
        found = [self.find(path) for path in (pod.TLS_CERTIFICATE, pod.TLS_KEY)]
        certificate, key = found
        if certificate is None and key is None:
            return None
        fix = "make the Secret of the certificate as the folder's README.md says"
        if certificate is None or key is None:
            there, gone = ("tls.key", "tls.crt") if key else ("tls.crt", "tls.key")
            folder = os.path.dirname(self.locate(pod.TLS_KEY))
            raise HostError(f"{folder}: {gone} is missing, but {there} exists", fix)
        try:
            # openssl would ask for a key's passphrase on a terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: b"")
        except OSError as error:
            raise HostError(f"{certificate} and {key} are not a pair: {error}", fix) from None
        return certificate, key

    def group(self) -> Group | None:
        """Return the pod's part of a group, None where it serves alone. Raises HostError."""
        planned = int(self.plan["parallel"]["hosts"])
        leader = self.environment.get("LWS_LEADER_ADDRESS", "")
        size, index = self._number("LWS_GROUP_SIZE", 1), self._number("LWS_WORKER_INDEX", 0)
        if size != planned:
            raise HostError(
                f"the group has {size} pod{'s' if size > 1 else ''} (LWS_GROUP_SIZE), and the "
                f"engine is planned for {planned}",
                "correct size in leaderworkerset.yaml, or render again with kimi_hosts_per_model",
            )
        if size == 1:
            return None
        if not _NAME.fullmatch(leader) or index >= size:
            raise HostError(
                f"LWS_LEADER_ADDRESS {leader!r} and LWS_WORKER_INDEX {index} are not a member of a "
                f"group of {size}",
                "start the pod by the LeaderWorkerSet, which sets them",
            )
        return Group(leader, size, index)

    def _number(self, name: str, default: int) -> int:
        text = self.environment.get(name) or str(default)
        if not text.isdigit() or len(text) > 6:
            raise HostError(f"{name}: expected a whole number, found {text[:40]!r}")
        return int(text)

    def model(self) -> str:
        """Return the first name of the model that clients may use."""
        return str(self.plan["model"]["served_names"][0])

    def build_engine_environment(self) -> dict[str, str]:
        """Return the environment of the engine's own python, with the plan's variables.

        The variables of a container's manifest take precedence.
        """
        own = {
            name: self.replace_cache(str(value))
            for name, value in self.plan["instances"][0]["env"].items()
        }
        given = {
            name: value
            for name, value in self.environment.items()
            if name not in ("PYTHONPATH", "PYTHONHOME")
        }
        home = self.locate(pod.CACHE)
        for name in _SEARCHED:
            # Both count: the plan's folders are the engine's, the container's the driver's.
            if name in own and name in given:
                own[name] = given[name] = f"{own[name]}:{given[name]}"
        return {"TRITON_CACHE_DIR": f"{home}/triton", **own, **given} | {
            "HOME": home,
            "PYTHONNOUSERSITE": "1",
        }
