"""Outputs of commands are recognised by their content, in every form that people keep."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import closed_form
import pytest

from kimi_prov.facts import recording

if TYPE_CHECKING:
    from pathlib import Path

H200 = "NVIDIA H200"
SMI_TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA H200                    On  |   00000000:19:00.0 Off |                    0 |
| N/A   30C    P0             75W /  700W |       0MiB / 143771MiB |      0%      Default |
|                                         |                        |            Disabled* |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H200                    On  |   00000000:3B:00.0 Off |                    0 |
| N/A   31C    P0             76W /  700W |       0MiB / 143771MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
"""
SMI_QUERY = """
==============NVSMI LOG==============

Timestamp                                 : Thu Jan  1 00:00:00 2026
Driver Version                            : 580.95.05
CUDA Version                              : 13.0

Attached GPUs                             : 2
GPU 00000000:19:00.0
    Product Name                          : NVIDIA H200
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Enabled
    FB Memory Usage
        Total                             : 143771 MiB
        Used                              : 0 MiB
    BAR1 Memory Usage
        Total                             : 262144 MiB
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA H200
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    FB Memory Usage
        Total                             : 143771 MiB
"""
SMI_LIST = "".join(
    f"GPU {n}: {H200} (UUID: GPU-{n}0000000-0000-0000-0000-000000000000)\n" for n in (0, 1)
)
LSPCI = """\
00:1f.0 ISA bridge: Intel Corporation Device 1b81
19:00.0 3D controller: NVIDIA Corporation GH100 [H200 SXM 141GB] (rev a1)
3b:00.0 3D controller: NVIDIA Corporation GH100 [H200 SXM 141GB] (rev a1)
05:00.0 Bridge: NVIDIA Corporation GH100 [H100 NVSwitch] (rev a1)
"""
LSCPU = """\
Architecture:            x86_64
CPU(s):                  96
On-line CPU(s) list:     0-95
Vendor ID:               GenuineIntel
Model name:              Intel(R) Xeon(R) Platinum 8468
CPU family:              6
Model:                   143
Thread(s) per core:      1
Core(s) per socket:      48
Socket(s):               2
Stepping:                8
Flags:                   fpu sse2 lm avx2 avx512f avx512bw amx_tile amx_int8 amx_bf16
NUMA node(s):            2
NUMA node0 CPU(s):       0-47
NUMA node1 CPU(s):       48-95
"""
FREE_HEAD = "       total   used   free   shared  buff/cache   available\nMem: "
FREE = {
    "bytes": f"{FREE_HEAD}1081101176832 1 2 3 4 900000000000\n",
    "kib": f"{FREE_HEAD}1055762868 1 2 3 4 900000000\n",
    "mib": f"{FREE_HEAD}1031018 1 2 3 4 900000\n",
    "human": f"{FREE_HEAD}1.0Ti 1Gi 2Gi 3Gi 4Gi 900Gi\n",
    "gib": f"{FREE_HEAD}1006 1 2 3 4 900\n",
}


def read(folder: Path, text: str, name: str = "notes.txt") -> Any:
    (folder / name).write_text(text)
    found = recording.read_recording(folder)
    closed_form.validate(found, "facts")
    return found


SIZE = "143771 MiB"
CSV = {
    "other order": f"memory.total [MiB], name, index\n{SIZE}, {H200}, 0\n{SIZE}, {H200}, 1\n",
    "without units": f"index, name, memory.total\n0, {H200}, 143771\n1, {H200}, 143771\n",
    "without a head": f"0, {H200}, {SIZE}\n1, {H200}, {SIZE}\n",
    "without an index": f"name, memory.total [MiB]\n{H200}, {SIZE}\n{H200}, {SIZE}\n",
    "used before total": f"0, {H200}, 1024 MiB, {SIZE}\n1, {H200}, 1024 MiB, {SIZE}\n",
}


@pytest.mark.parametrize("text", [SMI_TABLE, SMI_QUERY, *CSV.values()])
def test_every_form_of_nvidia_smi_tells_names_and_memory(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert [(gpu["model"], gpu["memory_bytes"]) for gpu in found["gpus"]] == [
        (H200, 143771 << 20)
    ] * 2
    assert "GPUs" not in found["recorded"]["not_told"]


@pytest.mark.parametrize("text", [SMI_TABLE, SMI_QUERY])
def test_a_pending_mig_and_the_driver_are_read(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert [gpu["mig_pending"] for gpu in found["gpus"]] == [True, False]
    assert found["nvidia"]["driver_loaded"] == "580.95.05"


@pytest.mark.parametrize("text", [SMI_LIST, LSPCI])
def test_names_alone_are_gpus_too(tmp_path: Path, text: str) -> None:
    found = read(tmp_path, text)
    assert len(found["gpus"]) == 2
    assert all("H200" in gpu["model"] for gpu in found["gpus"])
    assert "NVIDIA driver" in found["recorded"]["not_told"]


def nest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put all but the first row below it, as later versions of lscpu do."""
    return [{**rows[0], "children": [{"field": "Group:", "data": None, "children": rows[1:]}]}]


@pytest.mark.parametrize("form", ["plain", "flat", "nested"])
def test_lscpu_alone_tells_processor_instructions_and_nodes(tmp_path: Path, form: str) -> None:
    rows = [
        {"field": f"{key}:", "data": value.strip()}
        for key, _, value in (line.partition(":") for line in LSCPU.splitlines())
    ]
    text = {
        "plain": LSCPU,
        "flat": json.dumps({"lscpu": rows}, indent=3),
        "nested": json.dumps({"lscpu": nest(rows)}, indent=3),
    }[form]
    found = read(tmp_path, text)
    cpu = found["cpu"]
    assert cpu["model"] == "Intel(R) Xeon(R) Platinum 8468"
    assert (cpu["sockets"], cpu["cores"], cpu["microarchitecture"]) == (2, 96, "Sapphire Rapids")
    assert "amx_int8" in cpu["isa"]
    assert [row["cpus"] for row in found["numa"]["nodes"]] == ["0-47", "48-95"]
    assert found["host"]["arch"] == "x86_64"
    assert {"memory", "GPUs"} <= set(found["recorded"]["not_told"])


@pytest.mark.parametrize("unit", FREE)
def test_free_in_any_unit_is_the_memory(tmp_path: Path, unit: str) -> None:
    found = read(tmp_path, FREE[unit])
    assert 1000 << 30 < found["memory"]["total_bytes"] <= 1024 << 30


def test_outputs_pasted_into_one_text_are_told_apart(tmp_path: Path) -> None:
    text = "\n".join(
        ["my machine:", "user@host:~$ lscpu", LSCPU, "$ free -b", FREE["bytes"], "```", SMI_TABLE]
    )
    found = recording.read_text(text, "paste.txt")
    assert found is not None
    closed_form.validate(found, "facts")
    assert {row["what"] for row in found["recorded"]["read"]} == {"lscpu", "free", "nvidia-smi"}
    assert (found["cpu"]["cores"], len(found["gpus"])) == (96, 2)
    assert found["memory"]["total_bytes"] == 1081101176832


def test_a_collection_of_folders_and_compressed_files_is_read(tmp_path: Path) -> None:
    deep = tmp_path / "sos_commands" / "processor"
    deep.mkdir(parents=True)
    (deep / "lscpu").write_text(LSCPU)
    report = "_" * 44 + "\n\n*** /proc/meminfo\nMemTotal:       1055762868 kB\n" + "_" * 44 + "\n"
    report += "\n/usr/bin/nvidia-smi --query\n" + SMI_QUERY
    (tmp_path / "nvidia-bug-report.log.gz").write_bytes(gzip.compress(report.encode()))
    found = recording.read_recording(tmp_path)
    assert (found["cpu"]["cores"], len(found["gpus"])) == (96, 2)
    assert found["memory"]["total_bytes"] == 1055762868 << 10


def test_redfish_tells_a_server_before_it_has_a_system(tmp_path: Path) -> None:
    document = {
        "@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem",
        "ProcessorSummary": {"Count": 2, "Model": "AMD EPYC 9654", "CoreCount": 192},
        "MemorySummary": {"TotalSystemMemoryGiB": 1536},
        "Processors": {
            "Members": [
                {"ProcessorType": "GPU", "Manufacturer": "NVIDIA", "Model": H200},
                {"ProcessorType": "GPU", "Status": {"State": "Absent"}},
            ]
        },
    }
    found = read(tmp_path, json.dumps(document), "system.json")
    assert (found["cpu"]["model"], found["cpu"]["cores"]) == ("AMD EPYC 9654", 192)
    assert found["memory"]["total_bytes"] == 1536 << 30
    assert [gpu["model"] for gpu in found["gpus"]] == [H200]


def test_a_file_that_is_cut_off_is_damaged_and_not_absent(tmp_path: Path) -> None:
    (tmp_path / "meminfo.txt").write_text("MemTotal: 1055762868 kB\n")
    found = read(tmp_path, '{"lscpu": [{"field": "Architecture:", "da', "lscpu.json")
    assert [row["file"] for row in found["recorded"]["damaged"]] == ["lscpu.json"]
    assert "processor" in found["recorded"]["not_told"]


def test_no_gpu_is_told_where_the_tool_found_none(tmp_path: Path) -> None:
    found = read(tmp_path, LSCPU + "\n$ nvidia-smi\nNo devices were found\n")
    assert "GPUs" not in found["recorded"]["not_told"]


def test_files_of_other_kinds_are_no_recording(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("kimi: {hosts: {a: {}}}\n")
    (tmp_path / "os").write_text("NAME=x\nID=y\n")
    with pytest.raises(recording.NoRecordingError):
        recording.read_recording(tmp_path)
    assert recording.read_text("kimi:\n  hosts:\n", "hosts.yml") is None
