"""What tools print, read: their odd answers, as they were seen and as they are documented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from machine_of_files import tree

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.on_host.probe import amd_smi, devices, nvidia_smi, software
from kimi_prov.on_host.probe import cpu as probe_cpu
from kimi_prov.on_host.probe import gpu as probe_gpu
from kimi_prov.on_host.probe import memory as probe_memory
from kimi_prov.on_host.system.machine import Machine

RECORDED = Path(__file__).parents[3] / "data" / "recordings"
XML = (RECORDED / "h200-x1" / "nvidia-smi-q.xml").read_text()
TOPO = (RECORDED / "h200-x8" / "nvidia-smi-topo-m.txt").read_text()


def test_colours_in_the_topology_are_no_part_of_it() -> None:
    assert "\x1b[4m" in TOPO
    found = nvidia_smi.parse_topology(TOPO)
    assert found is not None
    assert found["matrix"] == [[0 if a == b else 18 for b in range(8)] for a in range(8)]
    assert found["near"][0] == {"cpus": "0-127", "numa_node": 0, "memory_numa_node": None}
    plain = TOPO.replace("\x1b[4m", "").replace("\x1b[0m", "")
    assert nvidia_smi.parse_topology(plain) == found


def test_pairs_of_cards_on_two_nodes_beside_a_network_card() -> None:
    text = (
        "\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tNV12\tSYS\tSYS\tPIX\t0-31,64-95\t0\t\tN/A\n"
        "GPU1\tNV12\t X \tSYS\tSYS\tSYS\t0-31,64-95\t0\t\tN/A\n"
        "GPU2\tSYS\tSYS\t X \tNV12\tSYS\t32-63,96-127\t1\t\tN/A\n"
        "GPU3\tSYS\tSYS\tNV12\t X \tSYS\t32-63,96-127\t1\t\tN/A\n"
        "NIC0\tPIX\tSYS\tSYS\tSYS\t X \n"
    )
    found = nvidia_smi.parse_topology(text)
    assert found is not None
    assert found["matrix"] == [[0, 12, 0, 0], [12, 0, 0, 0], [0, 0, 0, 12], [0, 0, 12, 0]]
    assert [near["numa_node"] for near in found["near"]] == [0, 0, 1, 1]
    assert found["paths"][0] == ["X", "NV12", "SYS", "SYS"]
    assert nvidia_smi.has_switch(found["matrix"], [{}] * 4, 0) is False


@pytest.mark.parametrize(
    "text", [None, "", "No devices were found", "GPU0", "\tGPU0\nGPU0", "\n\t\n"]
)
def test_no_topology(text: str | None) -> None:
    found = nvidia_smi.parse_topology(text)
    assert found is None or not any(cell for line in found["matrix"] for cell in line)


def test_switches_are_seen_on_the_bus_or_told_by_the_fabric() -> None:
    unknown = {"fabric_state": None}
    assert nvidia_smi.has_switch(None, [unknown] * 8, 4) is True
    assert nvidia_smi.has_switch(None, [{"fabric_state": "Completed"}], 0) is True
    assert nvidia_smi.has_switch(None, [unknown] * 8, 0) is None
    assert nvidia_smi.has_switch([[0] * 8] * 8, [unknown] * 8, 0) is False


def test_links_that_are_down_do_not_count() -> None:
    text = (
        "GPU 0: NVIDIA A100 (UUID: GPU-0)\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\n"
        "GPU 1: NVIDIA A100 (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s\n"
    )
    found = nvidia_smi.parse_links(text)
    assert found is not None
    assert [row["links"] for row in found] == [1, 2]
    assert found[0]["bytes_per_s"] == 25 * 10**9


def changed(**values: str) -> dict[str, Any]:
    text = XML
    for name, value in values.items():
        before, rest = text.split(f"<{name}>", 1)
        text = f"{before}<{name}>{value}</{name}>" + rest.split(f"</{name}>", 1)[1]
    found = nvidia_smi.parse_query(text)
    assert found is not None
    gpu: dict[str, Any] = found["gpus"][0]
    return gpu


@pytest.mark.parametrize(
    ("values", "key", "seen"),
    [
        ({"current_mig": "Enabled"}, "mig", True),
        ({"current_mig": "N/A"}, "mig", None),
        ({"current_ecc": "Disabled"}, "ecc", False),
        ({"persistence_mode": "Disabled"}, "persistence", False),
        ({"current_power_limit": "[Unknown Error]"}, "power_limit_w", None),
        ({"current_power_limit": "450.50 W"}, "power_limit_w", 450.5),
        ({"total": "Insufficient Permissions"}, "memory_bytes", None),
        ({"product_name": "N/A"}, "model", None),
    ],
)
def test_a_card_as_it_is_set(values: dict[str, str], key: str, seen: object) -> None:
    assert changed(**values)[key] == seen


def test_a_card_in_a_narrow_slot() -> None:
    pcie = changed(current_link_width="4x", max_link_gen="3")["pcie"]
    assert (pcie["width"], pcie["width_max"]) == (4, 16)
    assert (pcie["gen_max"], pcie["gen_card"]) == (3, 5)


@pytest.mark.parametrize(
    "text", ["", "Failed to initialize NVML: Driver/library version mismatch", XML[:900]]
)
def test_an_answer_that_is_none(text: str) -> None:
    assert nvidia_smi.parse_query(text) is None


def test_declarations_are_not_expanded() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "b">]><nvidia_smi_log><cuda_version>&a;</cuda_version>'
    bomb += "</nvidia_smi_log>"
    assert nvidia_smi.parse_query(bomb) is None


def test_the_table_tells_where_the_long_form_fails() -> None:
    row = nvidia_smi.parse_table((RECORDED / "h200-x1" / "gpus.csv").read_text())[0]
    gpu = nvidia_smi.build_gpu(row)
    assert (gpu["model"], gpu["memory_bytes"]) == ("NVIDIA H200", 143771 << 20)
    assert (gpu["compute_capability"], gpu["power_limit_w"]) == ("9.0", 700.0)
    assert nvidia_smi.parse_table('Field "compute_cap" is not a valid field to query.') == []


@pytest.mark.parametrize(
    ("text", "version", "is_open"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
            "580.159.04",
            True,
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39 2024",
            "535.183.01",
            False,
        ),
        (None, None, None),
    ],
)
def test_the_loaded_module(text: str | None, version: str | None, is_open: bool | None) -> None:
    assert nvidia_smi.parse_module(text) == {"version": version, "open": is_open}


def test_a_driver_that_is_installed_and_held(tmp_path: Path) -> None:
    def package(name: str, version: str, want: str = "hold") -> str:
        return f"Package: {name}\nStatus: {want} ok installed\nVersion: {version}\n\n"

    card = "/sys/bus/pci/devices/0000:01:00.0"
    status = (
        package("nvidia-driver", "580.95.05-1")
        + package("nvidia-fabricmanager", "580.82.07-1")
        + package("libnvidia-nscq", "1:580.95.05-1", "install")
        + package("nvidia-container-toolkit", "1.17.8-1", "install")
    )
    machine = tree(
        tmp_path,
        {
            f"{card}/vendor": "0x10de",
            f"{card}/class": "0x030200",
            "/var/lib/dpkg/status": status,
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1": "",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05": "",
        },
    )
    packages = software.Packages(machine)
    cards = probe_gpu.Nvidia(machine)
    units = {"nvidia-fabricmanager.service": {"ActiveState": "failed"}}
    found = cards.facts(cards.gpus(), packages, units)
    assert found is not None
    assert found["fabric_manager"] == {"package_version": "580.82.07", "active": False}
    assert found["nscq"] == "580.95.05"
    assert found["held"] is False, "one of them is not"
    assert "nvidia-container-toolkit" not in found["packages"]
    assert found["libs"] == {"libcuda": "580.95.05", "libnvidia-ml": None}
    assert software.describe_packages(machine, packages)["held"] == [
        "nvidia-driver",
        "nvidia-fabricmanager",
    ]


@pytest.mark.parametrize(
    ("switches", "on"),
    [({}, False), ({"20auto-upgrades": "1"}, True), ({"20auto": "1", "99no": "0"}, False)],
)
def test_unattended_upgrades(tmp_path: Path, switches: dict[str, str], on: bool) -> None:
    status = "Package: unattended-upgrades\nStatus: install ok installed\nVersion: 2.9\n"
    files = {"/var/lib/dpkg/status": status}
    for name, value in switches.items():
        files[f"/etc/apt/apt.conf.d/{name}"] = f'APT::Periodic::Unattended-Upgrade "{value}";\n'
    machine = tree(tmp_path, files)
    packages = software.Packages(machine)
    assert software.describe_packages(machine, packages)["unattended_upgrades"] is on


def test_gib_is_found_where_the_loader_would(tmp_path: Path) -> None:
    machine = tree(
        tmp_path,
        {
            "/etc/ld.so.conf.d/libc.conf": "# libc\n/usr/local/lib\n",
            "/etc/ld.so.conf.d/00-nccl.conf": "/usr/local/gib/lib64\n",
            "/usr/local/gib/lib64/libnccl-net.so": "",
        },
    )
    found = software.describe_gib(machine, software.read_loader(machine))
    assert found == {
        "present": True,
        "ld_conf": ["/etc/ld.so.conf.d/00-nccl.conf"],
        "cached": [],
        "directories": ["/usr/local/gib"],
    }
    clean = tree(tmp_path / "clean", {"/etc/ld.so.conf.d/libgibson.conf": "/usr/lib/gibbon\n"})
    seen = software.describe_gib(clean, software.read_loader(clean))
    assert seen is not None
    assert seen["present"] is False
    assert software.describe_gib(Machine(str(tmp_path / "none")), None) is None


MODULE = """Handle 0x0026, DMI type 17, 92 bytes
Memory Device
\tSize: {size}
\tLocator: {locator}
\tBank Locator: {bank}
\tType: DDR5
\tSpeed: 5600 MT/s
\tManufacturer: Samsung
\tConfigured Memory Speed: {speed}

"""


def dimm(locator: str, bank: str = "BANK 0", size: str = "64 GB", speed: str = "4800 MT/s") -> str:
    return MODULE.format(size=size, locator=locator, bank=bank, speed=speed)


def test_modules_and_channels_of_two_processors() -> None:
    empty = {"size": "No Module Installed", "speed": "Unknown"}
    text = "# dmidecode 3.4\n\n" + "".join(
        dimm(f"P{cpu}-DIMM{letter}1") + dimm(f"P{cpu}-DIMM{letter}2", **empty)
        for cpu in (1, 2)
        for letter in "ABCDEFGH"
    )
    text += "".join(dimm(f"P{cpu}-DIMM{letter}1", **empty) for cpu in (1, 2) for letter in "IJKL")
    machine = Answers({"dmidecode": text})
    memory = probe_memory.describe_memory(machine, None)
    assert len(memory["dimms"]) == 16
    assert memory["dimms"][0]["size_bytes"] == 64 << 30
    assert memory["dimms"][0]["speed_mt_s"] == 5600
    assert memory["dimms"][0]["configured_mt_s"] == 4800
    assert (memory["channels_populated"], memory["channels_total"]) == (16, 24)
    assert memory["bandwidth_bytes_per_s"]["theoretical"] == 16 * 4800 * 10**6 * 8


def test_channels_by_the_bank() -> None:
    text = "".join(
        dimm(f"DIMM {n}", f"P0 CHANNEL {letter}") for n, letter in enumerate("ABCDEFGHIJKL")
    )
    memory = probe_memory.describe_memory(Answers({"dmidecode": text}), None)
    assert (memory["channels_populated"], memory["channels_total"]) == (12, 12)


@pytest.mark.parametrize(
    ("slots", "wanted"),
    [
        # Supermicro and Huawei: two slots are one channel.
        ([("P1-DIMMA1", "P0_Node0_Channel0_Dimm0"), ("P1-DIMMA2", "P0_Node0_Channel0_Dimm1")], 1),
        ([("DIMM130 J40", "_Node1_Channel3_Dimm0"), ("DIMM140 J26", "_Node1_Channel4_Dimm0")], 2),
        # Two processors of one node each, both called node 0.
        ([("x", "P0_Node0_Channel0_Dimm0"), ("y", "P1_Node0_Channel0_Dimm0")], 2),
        ([("DIMM 0", "P0 CHANNEL A"), ("DIMM 1", "P0 CHANNEL A"), ("DIMM 0", "P0 CHANNEL B")], 2),
        # HPE: before generation 9 the slot's number and the channel's letter, later a number alone.
        ([("PROC 1 DIMM 1D", "Not Specified"), ("PROC 1 DIMM 9A", "Not Specified")], 2),
        ([("PROC 1 DIMM 1", "Not Specified"), ("PROC 1 DIMM 2", "Not Specified")], None),
        # One processor: Gigabyte and Supermicro's small boards.
        ([("DIMM_A1", "BANK 0"), ("DIMM_A2", "BANK 1"), ("DIMMB1", "BANK 2")], 2),
        ([("DIMM_P0_A0", "BANK 0"), ("DIMM_P0_B0", "BANK 1")], 2),
        # Dell: A1 is the first slot of the first processor, its channel is in no name.
        ([("A1", "Not Specified"), ("A2", "Not Specified")], None),
    ],
)
def test_channels_by_the_names_that_makers_give(
    slots: list[tuple[str, str]], wanted: int | None
) -> None:
    text = "".join(dimm(locator, bank) for locator, bank in slots)
    memory = probe_memory.describe_memory(Answers({"dmidecode": text}), None)
    assert memory["channels_populated"] == wanted


def test_sizes_as_older_and_newer_versions_write_them() -> None:
    text = "".join(dimm("A1", size=size) for size in ("64 GB", "64 GiB", "65536 MB", "67108864 kB"))
    assert {row["size_bytes"] for row in probe_memory.parse_modules(text) or ()} == {64 << 30}


def test_channels_that_the_names_do_not_tell_are_unknown() -> None:
    memory = probe_memory.describe_memory(Answers({"dmidecode": dimm("A1") + dimm("B1")}), None)
    assert len(memory["dimms"]) == 2
    assert memory["channels_populated"] is None
    assert memory["bandwidth_bytes_per_s"]["theoretical"] is None


def test_a_virtual_machine_has_no_modules() -> None:
    text = dimm("DIMM 0").replace("Samsung", "QEMU")
    assert probe_memory.describe_memory(Answers({"dmidecode": text}), None)["dimms"] is None
    for maker in ("Microsoft Corporation", "VMware Virtual RAM", "Google"):
        assert probe_memory.parse_modules(dimm("M0001").replace("Samsung", maker)) is None
    assert probe_memory.parse_modules("# dmidecode 3.4\nPermission denied\n") is None


class Answers(Machine):
    """A machine of which only the answers of some commands are known."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__("/nonexistent")
        self._answers = answers

    def run(self, argv: Any, timeout_s: float = 10.0) -> str | None:
        return self._answers.get(argv[0])


def test_limits_of_every_group_above_us(tmp_path: Path) -> None:
    group = "/sys/fs/cgroup/machine.slice"
    machine = tree(
        tmp_path,
        {
            "/proc/self/cgroup": "0::/machine.slice/engine.scope\n",
            f"{group}/memory.max": "8589934592",
            f"{group}/cpu.max": "400000 100000",
            f"{group}/engine.scope/memory.max": "max",
            f"{group}/engine.scope/cpu.max": "max 100000",
        },
    )
    assert probe_memory.read_cgroup(machine) == {"memory_bytes": 8 << 30, "cpus": 4.0}


def test_disks_and_network_cards(tmp_path: Path) -> None:
    machine = tree(
        tmp_path,
        {
            "/sys/block/nvme0n1/size": "1000",
            "/sys/block/nvme0n1/device/model": "SAMSUNG MZQL   ",
            "/sys/block/sda/size": "2000",
            "/sys/block/sda/queue/rotational": "1",
            "/sys/block/loop0/size": "8",
            "/sys/block/sr0/size": "8",
            "/sys/block/dm-0/size": "8",
            "/sys/class/net/eth0/device/x": "",
            "/sys/class/net/eth0/speed": "100000",
            "/sys/class/net/eth0/operstate": "up",
            "/sys/class/net/eth1/device/x": "",
            "/sys/class/net/eth1/speed": "-1",
            "/sys/class/net/docker0/speed": "10000",
            "/sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
            "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
        },
    )
    disks = devices.list_disks(machine)
    assert [(d["name"], d["kind"], d["size_bytes"]) for d in disks] == [
        ("nvme0n1", "nvme", 512000),
        ("sda", "hdd", 1024000),
    ]
    assert disks[0]["model"] == "SAMSUNG MZQL"
    nics = devices.list_nics(machine)
    assert [(n["name"], n["speed_bits_per_s"], n["up"]) for n in nics] == [
        ("eth0", 10**11, True),
        ("eth1", None, False),
        ("mlx5_0/1", 4 * 10**11, True),
    ]


def test_amd_cards_by_the_kernel_and_their_names_by_amd_smi(tmp_path: Path) -> None:
    base = "/sys/bus/pci/devices/0000:05:00.0"
    small = "/sys/bus/pci/devices/0000:75:00.0"
    machine = tree(
        tmp_path,
        {
            f"{base}/vendor": "0x1002",
            f"{base}/mem_info_vram_total": str(192 << 30),
            f"{base}/current_link_speed": "32.0 GT/s PCIe",
            f"{base}/current_link_width": "16",
            f"{base}/numa_node": "1",
            f"{small}/vendor": "0x1002",
            f"{small}/mem_info_vram_total": str(512 << 20),
            "/sys/module/amdgpu/version": "6.12.12",
        },
    )
    gpus = amd_smi.list_gpus(machine)
    assert [(g["vendor"], g["memory_bytes"], g["numa_node"]) for g in gpus] == [
        ("amd", 192 << 30, 1)
    ]
    assert gpus[0]["pcie"]["gen"] == 5
    assert amd_smi.describe_amd(machine) == {"driver": "6.12.12", "rocm": None}
    row = {"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X"}, "bus": {"bdf": "0000:05:00.0"}}
    wanted = {"0000:05:00.0": "AMD Instinct MI300X"}
    assert amd_smi.parse_amd_smi(json.dumps([row])) == wanted
    assert amd_smi.parse_amd_smi(json.dumps({"gpu_data": [row, {"gpu": 1}]})) == wanted
    told = {"card0": {"Card Series": "AMD Instinct MI300X", "PCI Bus": "0000:05:00.0"}}
    assert amd_smi.parse_rocm_smi(json.dumps(told)) == wanted
    assert amd_smi.parse_amd_smi("WARNING: no permission") == amd_smi.parse_rocm_smi(None) == {}
    # One card without a list; a name that the tool did not find.
    assert amd_smi.parse_amd_smi(json.dumps(row)) == wanted
    assert amd_smi.parse_amd_smi(json.dumps([row | {"asic": {"market_name": "N/A"}}])) == {}
    # ROCm 5, 6 and 7 call it otherwise, write addresses in capitals, and warn before the JSON.
    low = "\n\nWARNING: AMD GPU device(s) is/are in a low-power state.\n\n"
    for key in ("Card series", "Card Series", "Device Name"):
        card = {key: "AMD Instinct MI300X", "Card model": "0x74a1", "PCI Bus": "0000:05:00.0"}
        told = {"card0": card, "system": {"Driver version": "6.12.12"}}
        assert amd_smi.parse_rocm_smi(low + json.dumps(told) + "\n") == wanted
    serial = {"card0": {"Card Series": "MI300X", "PCI Bus": "0000:E7:00.0 --> OAM ID: 1"}}
    assert amd_smi.parse_rocm_smi(json.dumps(serial)) == {"0000:e7:00.0": "MI300X"}
    number = {"card0": {"Card Series": "0x74a1", "PCI Bus": "0000:05:00.0"}}
    assert amd_smi.parse_rocm_smi(json.dumps(number)) == {}


@pytest.mark.parametrize("end", ["", " OAM", " VF"])
def test_amd_cards_are_found_by_the_names_that_their_tools_print(end: str) -> None:
    for card in ("MI300X", "MI325X", "MI355X"):
        row = load_catalogue().find_gpu(f"AMD Instinct {card}{end}")
        assert row is not None
        assert row.name == card


@pytest.mark.parametrize(
    ("vendor", "nodes", "flags", "wanted"),
    [
        ("GenuineIntel", 6, "avx2", (3, 3, None)),
        ("AuthenticAMD", 8, "avx2", (4, None, 4)),
        ("GenuineIntel", 2, "avx2 hypervisor", (1, None, None)),
        ("GenuineIntel", 3, "avx2", (None, None, None)),
    ],
)
def test_clusters_of_a_socket(
    tmp_path: Path, vendor: str, nodes: int, flags: str, wanted: tuple[int | None, ...]
) -> None:
    node = "/sys/devices/system/node/node"
    files = {f"{node}{n}/cpulist": str(n) for n in range(nodes)}
    files[f"{node}{nodes}/cpulist"] = ""  # memory alone, such as CXL
    found = probe_cpu.describe_clusters(tree(tmp_path, files), vendor, 2, set(flags.split()))
    assert (found["nodes_per_socket"], found["snc"], found["nps"]) == wanted


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name"),
    [
        ("GenuineIntel", 6, 143, "Sapphire Rapids"),
        ("GenuineIntel", 6, 173, "Granite Rapids"),
        ("AuthenticAMD", 25, 17, "Zen 4"),
        ("AuthenticAMD", 26, 2, "Zen 5"),
        ("GenuineIntel", 6, 1, None),
        (None, None, None, None),
    ],
)
def test_designs(
    vendor: str | None, family: int | None, model: int | None, name: str | None
) -> None:
    assert probe_cpu.find_design(vendor, family, model) == name
