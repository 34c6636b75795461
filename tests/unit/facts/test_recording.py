"""Recorded machines, read by the probe's own code; the traps that such machines set."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time
from pathlib import Path

import closed_form
import pytest

from kimi_prov.catalog import loader
from kimi_prov.errors import UserError
from kimi_prov.facts import recording, synthetic
from kimi_prov.facts.host import read_host

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings"
ALL = sorted(path.parent for path in RECORDINGS.glob("*/gpus.csv"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the larger recording, to be changed."""
    copied = tmp_path / "machine"
    shutil.copytree(RECORDINGS / "h200-x8", copied)
    return copied


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name)
def test_a_recording_is_facts(path: Path) -> None:
    found = recording.read_recording(path)
    closed_form.validate(found, "facts")
    assert found["origin"]["kind"] == "recording"
    assert found["origin"]["name"] == path.name
    assert found["host"]["virtualization"] == "kvm"
    assert found["host"]["systemd_running"] is None
    assert found["python"]["version"] is None, "not that of the machine that reads"


def test_eight_cards_on_one_node_joined_by_a_switch() -> None:
    found = recording.read_recording(RECORDINGS / "h200-x8")
    assert len(found["gpus"]) == 8
    assert {gpu["numa_node"] for gpu in found["gpus"]} == {0}
    assert {gpu["model"] for gpu in found["gpus"]} == {"NVIDIA H200"}
    assert {gpu["memory_bytes"] for gpu in found["gpus"]} == {143771 << 20}
    assert {gpu["compute_capability"] for gpu in found["gpus"]} == {"9.0"}
    assert {gpu["fabric_state"] for gpu in found["gpus"]} == {"Completed"}
    assert found["gpus"][0]["pcie"] == {
        "gen": 5,
        "gen_max": 5,
        "gen_card": 5,
        "width": 16,
        "width_max": 16,
    }
    assert (found["gpus"][0]["mig"], found["gpus"][0]["ecc"]) == (False, True)
    nvidia = found["nvidia"]
    assert (nvidia["driver_loaded"], nvidia["cuda"]) == ("580.159.04", "13.0")
    assert nvidia["open_module"] is True
    assert nvidia["nvswitch"] is True
    assert nvidia["nvlink"]["links_per_gpu"] == [18] * 8
    assert nvidia["nvlink"]["matrix"][7] == [18] * 7 + [0]


def test_one_card_has_no_links_and_no_switch() -> None:
    found = recording.read_recording(RECORDINGS / "h200-x1")
    assert found["nvidia"]["nvlink"]["matrix"] == [[0]]
    assert found["nvidia"]["nvswitch"] is False
    assert found["nvidia"]["driver_loaded"] == "580.159.04"
    assert found["nvidia"]["open_module"] is None, "only /proc tells, and it was not recorded"
    assert found["cpu"]["threads"] == 16, "although only two CPUs of cpuinfo were kept"


def test_a_processor_without_a_model_number_is_known_by_its_family() -> None:
    cpu = recording.read_recording(RECORDINGS / "h200-x8")["cpu"]
    assert cpu["model"] == "Intel(R) Xeon(R) Processor"
    assert cpu["microarchitecture"] == "Emerald Rapids"
    assert (cpu["sockets"], cpu["cores"], cpu["smt"]) == (1, 128, False)
    assert {"avx512_bf16", "amx_int8"} <= set(cpu["isa"])
    assert cpu["amx_permission"] is None, (
        "the processor lists it; whether it may be used, nobody asked"
    )
    assert cpu["snc"] is None, "nodes of a virtual machine are not the firmware's"
    assert cpu["caches"]["l3_bytes"] == 300 << 20


def test_memory_that_reads_small_and_grows() -> None:
    found = recording.read_recording(RECORDINGS / "h200-x8")
    assert found["memory"]["total_bytes"] == 577563364 * 1024
    assert found["numa"]["nodes"][0]["memory_total_bytes"] == 6516208 * 1024
    assert found["numa"]["memory_grows"] is True
    seen = read_host(found, loader.load_catalogue())
    assert seen.nodes[0].memory_bytes == seen.memory_bytes > 500 << 30


def test_numactl_tells_where_the_kernel_was_not_asked(folder: Path) -> None:
    (folder / "numa.txt").unlink()
    text = (folder / "numactl-hardware.txt").read_text().replace("6363", "4443")
    (folder / "numactl-hardware.txt").write_text(text)
    found = recording.read_recording(folder)
    assert found["numa"]["nodes"] == [
        {
            "id": 0,
            "cpus": "0-127",
            "kind": "ddr",
            "memory_total_bytes": 4443 << 20,
            "memory_free_bytes": 4416 << 20,
            "memory_available_bytes": 4416 << 20,
            "distances": [10],
        }
    ]
    assert found["numa"]["memory_grows"] is True


def test_compressed_files_are_read(folder: Path) -> None:
    before = recording.read_recording(folder)
    plain = folder / "nvidia-smi-q.xml"
    (folder / "nvidia-smi-q.xml.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert recording.read_recording(folder) == before


def test_two_nodes_and_threads_of_one_core(tmp_path: Path) -> None:
    head = "CPU NODE SOCKET CORE L1d:L1i:L2:L3 ONLINE\n"
    rows = [f"{n} {n % 4 // 2} {n % 4 // 2} {n % 4} 0:0:0:0 yes\n" for n in range(8)]
    (tmp_path / "lscpu_e.txt").write_text(head + "".join(rows))
    (tmp_path / "cpuinfo.txt").write_text("vendor_id : AuthenticAMD\nflags : avx2 avx512f\n")
    found = recording.read_recording(tmp_path)
    cpu = found["cpu"]
    assert (cpu["sockets"], cpu["cores"], cpu["threads"], cpu["smt"]) == (2, 4, 8, True)
    assert cpu["nps"] == 1
    assert [node["cpus"] for node in found["numa"]["nodes"]] == ["0-1,4-5", "2-3,6-7"]


@pytest.mark.parametrize("name", sorted(p.name for p in (RECORDINGS / "h200-x8").iterdir()))
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff<>{}[", b"node 0 cpus: 99999999999\n0-9999999\n"]
)
def test_a_broken_file_makes_things_unknown(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    closed_form.validate(recording.read_recording(folder), "facts")


def test_a_folder_with_nothing_recorded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no recording"):
        recording.read_recording(tmp_path)
    (tmp_path / "cpuinfo.txt.gz").write_bytes(gzip.compress(b"words" * 1000)[:-20])
    with pytest.raises(UserError, match=r"cpuinfo\.txt\.gz"):
        recording.read_recording(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        recording.read_recording(tmp_path / "nothing")


def test_what_lies_in_the_place_of_a_recorded_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lscpu.json"
    file.symlink_to("lscpu.json")
    with pytest.raises(UserError, match=r"lscpu\.json: .*symbolic links"):
        recording.read_recording(tmp_path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UserError, match=r"lscpu\.json: .*pipe"):
        recording.read_recording(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.raises(UserError, match=r"lscpu\.json: .*folder"):
        recording.read_recording(tmp_path)


ODD_NUMBERS = {
    "nvidia-smi-nvlink-s.txt": "GPU 0: H200\n\t Link 0: 26.5626.562 GB/s\n\t Link 1: . GB/s\n",
    "gpus.csv": "index, name, memory.total [MiB]\n², H200, 1 MiB\n" + "9" * 5000 + ", H, 1 MiB\n",
    "lscpu_e.txt": "SOCKET CORE CPU\n0\n0 0\n² ² ²\n0 0 " + "9" * 5000 + "\n",
    "cpuinfo.txt": f"processor : ²\nmodel name : X @ {'9' * 400}GHz\ncpu family : {'9' * 5000}\n",
    "lscpu.json": json.dumps(
        {
            "lscpu": [
                {"field": "L1d cache:", "data": f"{'9' * 400} MiB (² instances)"},
                {"field": "L2 cache:", "data": "1.2.3 MiB (" + "9" * 5000 + " instances)"},
            ]
        }
    ),
    "meminfo.txt": "MemTotal: ² kB\nMemFree: " + "9" * 5000 + " kB\nHugePages_Total: ²\n",
    "numa.txt": "/sys/devices/system/node/node0\n0-999999999\n² 10\nNode 0 MemTotal: ² kB\n",
    "numactl-hardware.txt": "node 0 cpus: ² "
    + "9" * 5000
    + "\nnode 0 size: "
    + "9" * 5000
    + " MB\n",
    "dmidecode.txt": "Memory Device\n\tSize: " + "9" * 5000 + " GB\n\tSpeed: " + "9" * 5000 + "\n",
    "nvidia-smi-q.xml": "<nvidia_smi_log><gpu><fb_memory_usage><total>"
    + "9" * 5000
    + " MiB</total></fb_memory_usage><gpu_power_readings><current_power_limit>"
    + "9" * 400
    + "</current_power_limit></gpu_power_readings></gpu></nvidia_smi_log>",
    "nvidia-smi-topo-m.txt": "\tGPU0\tGPU1\nGPU0\tX\tNV" + "9" * 5000 + "\n",
}


@pytest.mark.parametrize("name", ODD_NUMBERS)
def test_a_number_that_is_none_is_unknown(folder: Path, name: str) -> None:
    (folder / name).write_text(ODD_NUMBERS[name])
    found = recording.read_recording(folder)
    closed_form.validate(found, "facts")
    json.dumps(found, allow_nan=False)


ENDLESS = {
    "lscpu_e.txt": "CPU NODE SOCKET CORE\n" + "".join(f"{n} 0 0 0\n" for n in range(8192)),
    "numa.txt": "".join(
        f"/sys/devices/system/node/node{n}\n0-9999\n10\n" + f"Node {n} MemTotal: 1 kB\n" * 30
        for n in range(1000)
    ),
    "pci.txt": "".join(
        f"0000:{n >> 8:02x}:{n & 255:02x}.0 0x10de 1 0x0302 0\n" for n in range(65536)
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_machine_larger_than_any_is_read_in_time(folder: Path, name: str) -> None:
    (folder / name).write_text(ENDLESS[name])
    start = time.process_time()
    recording.read_recording(folder)
    assert time.process_time() - start < 20, "a hang guard"


def test_made_facts_say_so_and_leave_the_recorded_ones() -> None:
    recorded = recording.read_recording(RECORDINGS / "h200-x8")
    found = synthetic.make_variant(
        recorded, "h100-570", card=synthetic.H100, driver="570.133.20", cuda="12.8"
    )
    closed_form.validate(found, "facts")
    assert found["origin"]["kind"] == "made"
    assert "h200-x8" in found["origin"]["detail"]
    assert found["origins"]["gpus[7].memory_bytes"] == "made"
    assert found["nvidia"]["driver_loaded"] == "570.133.20"
    card = loader.load_catalogue().find_gpu(
        found["gpus"][0]["model"], found["gpus"][0]["memory_bytes"]
    )
    assert card is not None
    assert "H100" in card.name
    assert recorded == recording.read_recording(RECORDINGS / "h200-x8")
