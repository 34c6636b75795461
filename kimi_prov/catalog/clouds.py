"""Machines that clouds rent by the hour. Units stand in the names; None is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kimi_prov.catalog.confidence import Confidence  # noqa: TC001  (read at run time)
from kimi_prov.catalog.currency import Row


@dataclass(frozen=True)
class CloudMachine(Row):
    """A machine's type by the cloud's own name.

    `cpu` and `gpu` are names of the catalogue, `accelerator` is SkyPilot's name of the GPU.
    `quota_spot` and `quota_on_demand` name the cloud's quotas, `quota` is the amount it takes.
    `local_disks` are NVMe disks of the machine itself, `local_disk_gb` the size of each, and
    `local_write_mb_s` what all take together, None where nobody wrote it down. `gpu_family` is
    Google's dimension of the quota that bounds all GPUs of a family, spot or not.
    """

    name: str
    cloud: Literal["gcp", "aws"]
    cpu: str
    sockets: int
    cores: int
    memory_gb: int
    gpu: str
    gpus: int
    accelerator: str
    quota: int
    source: str
    confidence: Confidence
    quota_spot: str | None = None
    quota_on_demand: str | None = None
    gpu_family: str | None = None
    local_disks: int = 0
    local_disk_gb: int = 0
    local_write_mb_s: int | None = None
    note: str | None = None

    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("sockets", "cores", "memory_gb", "gpus", "quota")

    def sheet(self, disk_gb: int) -> dict[str, object]:
        """Return the machine as a spec sheet with one disk: a stripe of its own, or another."""
        own = {"kind": "nvme", "size_gb": self.local_disks * self.local_disk_gb}
        return {
            "schema": "kimi-prov/spec/v1",
            "name": self.name,
            "cpu": {"model": self.cpu, "sockets": self.sockets, "cores": self.cores},
            "memory": {"total_gb": self.memory_gb},
            "gpus": {"model": self.gpu, "count": self.gpus},
            "disks": [own if self.local_disks else {"kind": "ssd", "size_gb": disk_gb}],
            "software": {"virtualization": "kvm"},
        }
