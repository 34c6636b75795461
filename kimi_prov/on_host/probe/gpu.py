"""GPUs: the devices on the PCI bus, and what their drivers report."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.contract.numbers import parse_int
from kimi_prov.on_host.probe import nvidia_smi
from kimi_prov.on_host.system.machine import Machine, parse_fields

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts.gpus import (
        FabricManagerFacts,
        GpuFacts,
        NvidiaFacts,
        NvlinkFacts,
    )
    from kimi_prov.on_host.probe.software import Packages

_NVIDIA = "0x10de"
_DISPLAY = ("0x0300", "0x0302", "0x0380")
_SWITCH = "0x0680"
# Packages of the driver; those for containers have versions and upgrades of their own.
_DRIVER = r"(lib)?nvidia-(?!container).*|cuda-drivers.*"
_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
# Where DKMS keeps the certificate of its signing key: Debian, Ubuntu.
_MODULE_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
# Without the persistence mode each call wakes every card first.
_TIMEOUT_S = 60.0
_COMMANDS = {
    "query": ["nvidia-smi", "-q", "-x"],
    "table": [
        "nvidia-smi",
        f"--query-gpu={','.join(nvidia_smi.COLUMNS)}",
        "--format=csv,noheader,nounits",
    ],
    "topology": ["nvidia-smi", "topo", "-m"],
    "links": ["nvidia-smi", "nvlink", "-s"],
    "modinfo": ["modinfo", "nvidia"],
}


class Nvidia:
    """The output of NVIDIA's tools and files, each read once, in parallel."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.cards = _list_devices(machine, _DISPLAY)
        self._switches = _list_devices(machine, (_SWITCH,))
        self.version = machine.read("/proc/driver/nvidia/version")
        self._served = machine.exists("/proc/driver/nvidia")
        # In a container the tool may answer although the driver's files are hidden.
        self._asks = self._served or machine.which("nvidia-smi") is not None
        self._output: dict[str, str | None] = {}
        self._query: dict[str, Any] | None = None
        if self.cards or self._asks:
            with ThreadPoolExecutor(len(_COMMANDS)) as pool:
                self._output = dict(zip(_COMMANDS, pool.map(self._ask, _COMMANDS)))
        self._query = nvidia_smi.parse_query(self._output.get("query"))
        self._topology = nvidia_smi.parse_topology(self._output.get("topology"))

    @property
    def present(self) -> bool:
        """Return whether there is such a card or a driver for one."""
        return bool(self.cards) or self._served or self._query is not None

    def _ask(self, what: str) -> str | None:
        if what != "modinfo" and not self._asks:
            return None
        return self._machine.run(_COMMANDS[what], timeout_s=_TIMEOUT_S)

    def gpus(self) -> list[GpuFacts]:
        """Return one row for each GPU that the driver serves; memory in bytes."""
        rows = nvidia_smi.parse_table(self._output.get("table"), list(nvidia_smi.COLUMNS))
        found: list[GpuFacts] = list((self._query or {}).get("gpus") or [])
        if not found:
            found = [nvidia_smi.build_gpu(row) for row in rows]
        by_index = {
            parse_int(row["index"]): nvidia_smi.parse_capability(row.get("compute_cap"))
            for row in rows
        }
        near = (self._topology or {}).get("near") or []
        for number, gpu in enumerate(found):
            gpu["compute_capability"] = gpu["compute_capability"] or by_index.get(gpu["index"])
            gpu["numa_node"] = self._node(gpu.get("pci"))
            if number < len(near):
                gpu["cpus"] = near[number]["cpus"]
                gpu["memory_numa_node"] = near[number]["memory_numa_node"]
                if gpu["numa_node"] is None:
                    gpu["numa_node"] = near[number]["numa_node"]
        return found

    def _node(self, address: str | None) -> int | None:
        return self._machine.node(f"/sys/bus/pci/devices/{_format_bus_name(address)}/numa_node")

    def facts(
        self,
        gpus: list[GpuFacts],
        packages: Packages,
        units: dict[str, dict[str, str]],
        *,
        container: bool = False,
    ) -> NvidiaFacts | None:
        """Return driver, fabric and links; None where there is neither such a card nor a driver.

        `container`: there the bus shows all devices of the machine, also those that it was not
        given.
        """
        if not self.present:
            return None
        cards = self.cards
        if container and (given := self._list_gpus(gpus)):
            cards = given
        loaded = nvidia_smi.parse_module(self.version)
        installed = parse_fields(self._output.get("modinfo"), ":")
        matrix = (self._topology or {}).get("matrix")
        return {
            "pci_devices": len(cards) or len(gpus),
            "pci_ids": [
                (self._machine.read(f"{path}/device") or "").replace("0x", "") for path in cards
            ],
            # nvidia-smi repeats what the kernel's module reports.
            "driver_loaded": loaded["version"] or (self._query or {}).get("driver"),
            "driver_installed": installed.get("version"),
            "open_module": _is_open(loaded["open"], installed.get("license")),
            "cuda": (self._query or {}).get("cuda"),
            "libs": self._libraries(),
            "fabric_manager": _describe_fabric_manager(packages, units),
            "nscq": packages.version(r"libnvidia-nscq(-\d+)?")
            or self._library("libnvidia-nscq.so"),
            "nvlink": self._nvlink(matrix),
            "nvswitch": nvidia_smi.has_switch(matrix, gpus, len(self._switches)),
            "nvswitch_devices": len(self._switches),
            "held": packages.list_held(_DRIVER),
            "packages": packages.matching(_DRIVER),
            "persistenced": _is_active(units, unit_names.PERSISTENCED),
            "module_key_enrolled": _is_key_enrolled(self._machine),
        }

    def _list_gpus(self, gpus: list[GpuFacts]) -> list[str]:
        """Return the cards on the bus that the driver lists."""
        addresses = {_format_bus_name(gpu.get("pci")) for gpu in gpus}
        return [path for path in self.cards if path.rsplit("/", 1)[1] in addresses]

    def _nvlink(self, matrix: list[list[int | None]] | None) -> NvlinkFacts | None:
        reported = nvidia_smi.parse_links(self._output.get("links"))
        if matrix is None and reported is None:
            return None
        counted: list[int | None] = [
            max((cell or 0 for cell in line), default=0) for line in matrix or []
        ]
        return {
            "matrix": matrix,
            "paths": (self._topology or {}).get("paths"),
            "links_per_gpu": [row["links"] for row in reported] if reported else counted,
            "link_bytes_per_s": reported[0]["bytes_per_s"] if reported else None,
        }

    def _libraries(self) -> dict[str, str | None]:
        return {name.split(".")[0]: self._library(name) for name in _LIBRARIES}

    def _library(self, name: str) -> str | None:
        """Return the version in the file name of a library of the driver."""
        for folder in _FOLDERS:
            for path in self._machine.glob(f"{folder}/{name}.[0-9]*"):
                version = path.rsplit(".so.", 1)[1]
                if re.fullmatch(r"\d{3,}(\.\d+)+", version):
                    return version
        return None


def _format_bus_name(address: str | None) -> str:
    """Return the kernel's address of a device: 0000:00:06.0 for `00000000:00:06.0`."""
    return (address or "").lower()[-12:]


def _list_devices(machine: Machine, classes: tuple[str, ...]) -> list[str]:
    return [
        path
        for path in machine.glob("/sys/bus/pci/devices/*")
        if machine.read(f"{path}/vendor") == _NVIDIA
        and (machine.read(f"{path}/class") or "")[:6] in classes
    ]


def _is_open(loaded: bool | None, licence: str | None) -> bool | None:
    """Read the loaded module, else the one that would be loaded: the open one is MIT/GPL."""
    if loaded is not None:
        return loaded
    return "GPL" in licence if licence else None


def _is_key_enrolled(machine: Machine) -> bool | None:
    """Return whether the firmware knows the key with which modules built here are signed."""
    key = next((path for path in _MODULE_KEYS if machine.exists(path)), None)
    output = machine.run(["mokutil", "--test-key", key]) if key else None
    return "already enrolled" in output if output else None


def _describe_fabric_manager(
    packages: Packages, units: dict[str, dict[str, str]]
) -> FabricManagerFacts | None:
    version = packages.version(r"(cuda-drivers|nvidia)-fabricmanager(-\d+)?")
    active = _is_active(units, unit_names.FABRIC_MANAGER)
    if version is None and active is None:
        return None
    return {"package_version": version, "active": active}


def _is_active(units: dict[str, dict[str, str]], name: str) -> bool | None:
    return units[name].get("ActiveState") == "active" if name in units else None
