"""A job's address, written for its owner: $KIMI_ROOT/endpoints/JOB.json, mode 0600."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster import slurm
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.endpoint.api_client import Endpoint
from kimi_prov.on_host.system.files import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.on_host.cluster.site import Site

SCHEMA = "kimi-prov/endpoint/v1"
FOLDER = "endpoints"
NEWEST = "newest"


@dataclass
class Published:
    """The document of one job; `write` replaces the file in one step."""

    site: Site
    job: str
    nodes: list[str]
    port: int
    certificate: str
    ends_at: str | None
    state: str = "loading"
    successor: str | None = None
    notes: list[str] = field(default_factory=list)

    def write(self, state: str | None = None) -> None:
        """Write the file, with another state where one is given."""
        self.state = state or self.state
        self.site.private(FOLDER)
        write_json(self.path, self.document(), mode=0o600)

    @property
    def path(self) -> str:
        """The job's file."""
        return self.site.locate(FOLDER, f"{self.job}.json")

    def document(self) -> dict[str, Any]:
        """Return the content."""
        return {
            "schema": SCHEMA,
            "url": f"https://{self.nodes[0]}:{self.port}/v1",
            "node": self.nodes[0],
            "nodes": self.nodes,
            "job": self.job,
            "folder": self.site.folder,
            "model": self.site.model(),
            "certificate": self.certificate,
            "key_file": self.site.key_file,
            "state": self.state,
            "ends_at": self.ends_at,
            "successor": self.successor,
            "notes": self.notes,
        }


def find(site: Site, wanted: str) -> dict[str, Any]:
    """Return the endpoint of a job, or the newest that answers. Raises HostError."""
    folder = site.locate(FOLDER)
    names = os.listdir(folder) if os.path.isdir(folder) else []
    numbers = [name[:-5] for name in names if name.endswith(".json") and name[:-5].isdigit()]
    if wanted != NEWEST:
        numbers = [number for number in numbers if number == wanted]
    for number in sorted(numbers, key=int, reverse=True):
        found = read_json(os.path.join(folder, f"{number}.json"))
        ready = found.get("schema") == SCHEMA and found.get("state") == "ready"
        # A node that failed has not removed its file.
        if ready and slurm.is_running(number) is not False:
            return found
    whose = "no server" if wanted == NEWEST else f"no server of job {wanted}"
    raise HostError(
        f"{whose} answers: no file in {folder} has the state ready and a job that runs",
        "sbatch jobs/serve.sbatch, and wait until its log says ready",
    )


def find_with_key(site: Site, wanted: str) -> tuple[dict[str, Any], str]:
    """Return the endpoint as `find` does, and the API key. Raises HostError."""
    found = find(site, wanted)
    key = site.key()
    if not key:
        raise HostError(f"there is no key in {site.key_file}", "sbatch jobs/serve.sbatch")
    return found, key


def build_client_endpoint(found: Mapping[str, Any]) -> Endpoint:
    """Return the address that a client connects to, its certificate pinned. Raises HostError."""
    with contextlib.suppress(KeyError, ValueError, TypeError):
        port = int(str(found["url"]).rpartition(":")[2].partition("/")[0])
        fingerprint = tls.compute_fingerprint(str(found["certificate"]))
        if fingerprint:
            return Endpoint(str(found["node"]), port, fingerprint)
    raise HostError("the endpoint's file is incomplete", "submit the server's job again")
