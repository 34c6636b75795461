"""The rendered folder and the shared file system, as a job sees them: cluster.env and plan.json."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan

_OURS = re.compile(re.escape(paths.ROOT) + r"(?=/|$)")
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_WRITABLE = 0o700


@dataclass(frozen=True)
class Site:
    """The paths of a job. `root` stands for the plan's /srv/kimi."""

    root: str
    folder: str
    plan: MachinePlan
    environment: Mapping[str, str]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Site:
        """Read cluster.env's variables and the folder's plan. Raises HostError."""
        given = dict(os.environ if environment is None else environment)
        folder = given.get("KIMI_DIR") or os.getcwd()
        root = given.get("KIMI_ROOT", "")
        settings = os.path.join(folder, "cluster.env")
        if not root.startswith("/"):
            raise HostError(
                "KIMI_ROOT is not set: it is the folder on the shared file system",
                f"set it in {settings} and submit the job from {folder}",
            )
        plan = plans.read_machine_plan(os.path.join(folder, "plan.json"))
        if not plan.get("engine"):
            raise HostError(
                f"{folder}/plan.json is missing, or no plan",
                "render the folder again:  kimi-prov render slurm ... --output DIR",
            )
        site = cls(root.rstrip("/"), folder, plan, given)
        site._make_root(settings)
        return site

    def _make_root(self, settings: str) -> None:
        try:
            os.makedirs(self.root, mode=0o755, exist_ok=True)
        except OSError as error:
            raise HostError(
                f"KIMI_ROOT: {self.root} cannot be made: {error.strerror}",
                f"name a folder of the shared file system that is yours in {settings}",
            ) from None
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise HostError(
                f"KIMI_ROOT: {self.root} cannot be written to",
                f"name a folder of the shared file system that is yours in {settings}",
            )

    def replace_root(self, path: str) -> str:
        """Return a path or text of the plan with this site's root in it."""
        return _OURS.sub(lambda _: self.root, path)

    def locate(self, *parts: str) -> str:
        """Return a path below the root."""
        return os.path.join(self.root, *parts)

    def private(self, *parts: str) -> str:
        """Return a folder below the root that is for its owner alone; it is made if missing."""
        path = self.locate(*parts)
        os.makedirs(path, mode=_WRITABLE, exist_ok=True)
        os.chmod(path, _WRITABLE)
        return path

    def number(self, name: str, default: int) -> int:
        """Return a whole number of cluster.env. Raises HostError for anything else."""
        text = self.environment.get(name) or str(default)
        if not text.isdigit():
            raise HostError(
                f"{name}: expected a whole number, found {text!r}",
                f"correct it in {self.folder}/cluster.env",
            )
        return int(text)

    def build_engine_environment(self) -> dict[str, str]:
        """Return the environment of the engine's own python: no home, no other packages.

        A site's modules for Python may set PYTHONPATH, and a home may be full.
        """
        found = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PYTHONHOME")}
        return {**found, "HOME": self.private("cache", "home"), "PYTHONNOUSERSITE": "1"}

    @property
    def offline(self) -> bool:
        """Return whether compute nodes have no network."""
        return self.environment.get("KIMI_OFFLINE", "0") == "1"

    @property
    def wheels(self) -> str:
        """Return the folder in which wheels are prepared."""
        return self.locate("wheels")

    def decimal(self, name: str, default: float) -> float:
        """Return a number of cluster.env, with decimals. Raises HostError for anything else."""
        text = self.environment.get(name) or str(default)
        if not _DECIMAL.fullmatch(text):
            raise HostError(
                f"{name}: expected a number, found {text!r}",
                f"correct it in {self.folder}/cluster.env",
            )
        return float(text)

    @property
    def engine_dir(self) -> str:
        """Return the engine's environment."""
        return self.replace_root(str(self.plan["engine"]["env_dir"]))

    @property
    def engine_python(self) -> str:
        """Return the engine's interpreter."""
        return os.path.join(self.engine_dir, "bin", "python")

    @property
    def key_file(self) -> str:
        """Return the file of the API key."""
        return self.locate("keys", "api.key")

    @property
    def program(self) -> str:
        """Return the program that runs in the jobs."""
        return os.path.join(self.folder, "kimi-cluster.pyz")

    def locks(self) -> dict[str, str]:
        """Return the path of each lock file of the folder by its name."""
        folder = os.path.join(self.folder, "locks")
        found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return {name: os.path.join(folder, name) for name in found if name.endswith(".txt")}

    def lock(self, name: str) -> str:
        """Return the path of a lock file. Raises HostError where it is missing."""
        path = self.locks().get(name)
        if path is None:
            raise HostError(
                f"{self.folder}/locks/{name} is missing",
                "render the folder again:  kimi-prov render slurm ... --output DIR",
            )
        return path

    def require_environment(self) -> None:
        """Raise HostError where the engine is not installed."""
        if not os.path.exists(os.path.join(self.engine_dir, paths.ENV_COMPLETE)):
            raise HostError(
                f"the engine is not installed: {self.engine_dir} is not complete",
                "sbatch jobs/environment.sbatch",
            )

    def model(self) -> str:
        """Return the first name of the model that clients may use."""
        return str(self.plan["model"]["served_names"][0])

    def key(self) -> str:
        """Return the API key; empty where there is none yet."""
        return read_text(self.key_file).strip()
