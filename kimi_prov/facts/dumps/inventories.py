"""Machines as other programs list them: Ansible, Kubernetes, ROCm, llama.cpp, HPE's iLO, PyTorch.

Each tells a part; what it does not tell stays untold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kimi_prov.contract.numbers import parse_int, parse_leading_int
from kimi_prov.facts.dumps.processors import locate_cpus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.facts.dumps.gpus import Row

_MAX_GPUS = 64
_SYSTEMS = {
    "Ubuntu": "ubuntu",
    "Debian": "debian",
    "Red Hat Enterprise Linux": "rhel",
    "RedHat": "rhel",
    "Rocky": "rocky",
    "AlmaLinux": "almalinux",
    "CentOS": "centos",
    "SLES": "sles",
}
_SYSTEM = re.compile(rf"({'|'.join(_SYSTEMS)})\D{{0,40}}(\d{{1,2}}(?:\.\d{{1,2}})?)")
_ARCHES = {"amd64": "x86_64", "arm64": "aarch64"}
_DEVICE = re.compile(
    r"^[ \t]*Device \d{1,2}: ([^,\n]{2,100}), (?:compute capability (\d+\.\d)|(gfx\w+))"
    r"[^\n]*?(?:VRAM: (\d{1,7}) MiB[^\n]*)?$",
    re.MULTILINE,
)
_MODULE = re.compile(r"^ *(PROC +\d+ DIMM +\d+) +(\d{1,4}) GB +(\d{3,5}) MT/s", re.MULTILINE)
_LABEL = re.compile(r"\bnvidia\.com/gpu\.(product|memory|count)[=:] ?\"?([\w.-]+)")
_CAPACITY = re.compile(r"^Capacity:\s*\n((?:[ \t]+\S[^\n]*\n)+)", re.MULTILINE)
_KIB = {"": 1 / 1024, "Ki": 1, "Mi": 1 << 10, "Gi": 1 << 20, "Ti": 1 << 30}


@dataclass
class Listed:
    """What such a program tells: files of a recording, GPUs, sockets and architecture."""

    texts: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    sockets: int | None = None
    arch: str | None = None
    kernel: str | None = None
    notes: list[str] = field(default_factory=list)


def read_ansible(document: Mapping[str, object]) -> Listed:
    """Read the facts that Ansible gathers; newer versions leave out the prefix of the names."""
    gathered = _read_mapping(document, "ansible_facts") or document
    fields = {str(key).removeprefix("ansible_"): value for key, value in gathered.items()}
    result = Listed(arch=_read_word(fields, "architecture"), kernel=_read_word(fields, "kernel"))
    processors = fields.get("processor")
    names = [str(one) for one in processors] if isinstance(processors, list) else []
    model = max((one for one in names if " " in one), key=len, default="")
    if model:
        result.texts["cpuinfo.txt"] = f"model name\t: {model}\n"
    counts = [parse_int(str(fields.get(f"processor_{key}"))) for key in ("count", "cores")]
    threads = parse_int(str(fields.get("processor_threads_per_core")))
    places = locate_cpus(sockets=counts[0], cores=counts[1], threads=threads)
    result.texts |= {"lscpu_e.txt": places} if places else {}
    size = parse_int(str(fields.get("memtotal_mb")))
    result.texts |= {"meminfo.txt": f"MemTotal: {size << 10} kB"} if size else {}
    system = f"{fields.get('distribution')} {fields.get('distribution_version')}"
    result.texts |= describe_system(system)
    return result


def _read_word(fields: Mapping[str, object], key: str) -> str | None:
    value = fields.get(key)
    return value if isinstance(value, str) else None


def describe_system(text: str) -> dict[str, str]:
    """Return a system's name and version as /etc/os-release says them."""
    match = _SYSTEM.search(text)
    if match is None:
        return {}
    lines = [f'PRETTY_NAME="{match[0]}"', f"ID={_SYSTEMS[match[1]]}", f'VERSION_ID="{match[2]}"']
    return {"os-release.txt": "\n".join(lines) + "\n"}


def parse_system(text: str) -> Listed:
    """Read the line OS of PyTorch's report."""
    arch = re.search(r"\((x86_64|aarch64)\)", text)
    return Listed(describe_system(text), arch=arch[1] if arch else None)


def parse_node(text: str) -> Listed:
    """Read `kubectl describe node`: its capacity, and what the GPU operator's labels say."""
    result = Listed()
    capacity = _CAPACITY.search(text)
    amounts = dict(re.findall(r"([\w./-]+): +(\w+)", capacity[1])) if capacity else {}
    arch = re.search(r"^[ \t]+Architecture: +(\w+)", text, re.MULTILINE)
    kernel = re.search(r"^[ \t]+Kernel Version: +(\S+)", text, re.MULTILINE)
    system = re.search(r"^[ \t]+OS Image: +(\S.*)$", text, re.MULTILINE)
    result.arch = _ARCHES.get(arch[1], arch[1]) if arch else None
    result.kernel = kernel[1] if kernel else None
    result.texts |= describe_system(system[1]) if system else {}
    _add_capacity(result, amounts, dict(_LABEL.findall(text)))
    return result


def read_node(document: Mapping[str, object]) -> Listed:
    """Read `kubectl get node -o json`: one node, or the first with GPUs of a list."""
    items = document.get("items")
    nodes = [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []
    nodes = nodes or [dict(document)]
    node = next((one for one in nodes if "nvidia.com/gpu" in str(one.get("status"))), nodes[0])
    status, metadata = _read_mapping(node, "status"), _read_mapping(node, "metadata")
    info = _read_mapping(status, "nodeInfo")
    arch = str(info.get("architecture") or "")
    result = Listed(describe_system(str(info.get("osImage"))), arch=_ARCHES.get(arch, arch) or None)
    result.kernel = _read_word(info, "kernelVersion")
    labels = {str(k): str(v) for k, v in _read_mapping(metadata, "labels").items()}
    named = {
        key: labels[f"nvidia.com/gpu.{key}"]
        for key in ("product", "memory", "count")
        if f"nvidia.com/gpu.{key}" in labels
    }
    amounts = {str(k): str(v) for k, v in _read_mapping(status, "capacity").items()}
    _add_capacity(result, amounts, named)
    if len(nodes) > 1:
        result.notes.append(f"{metadata.get('name')} was read, of {len(nodes)} nodes")
    return result


def _read_mapping(value: Mapping[str, object], key: str) -> Mapping[str, object]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def _add_capacity(result: Listed, amounts: Mapping[str, str], labels: Mapping[str, str]) -> None:
    size = re.fullmatch(r"(\d{1,16})(Ki|Mi|Gi|Ti)?", amounts.get("memory", ""))
    if size:
        result.texts["meminfo.txt"] = f"MemTotal: {round(int(size[1]) * _KIB[size[2] or ''])} kB"
    counted = parse_int(amounts.get("nvidia.com/gpu", "") or labels.get("count", ""))
    slices = [key for key in amounts if key.startswith("nvidia.com/mig-")]
    name = labels.get("product", "").replace("-", " ")
    shared = name.endswith(" SHARED")
    if shared:
        counted = parse_int(labels.get("count", ""))
        result.notes.append("the cluster shares each GPU among pods: the GPUs were counted once")
    if cpus := parse_leading_int(amounts.get("cpu")):
        result.notes.append(f"Kubernetes counts {cpus} CPUs: how many cores is not told")
    if slices:
        result.notes.append(
            f"{', '.join(slices)}: slices of GPUs, of which no pod gets a whole one"
        )
    cut = {"mig.mode.current": "Enabled"} if slices else {}
    memory = {"memory.total": f"{labels['memory']} MiB"} if "memory" in labels else {}
    for index in range(min(counted or (1 if slices else 0), _MAX_GPUS)):
        name = name.removesuffix(" SHARED") or "a GPU of no name"
        result.rows.append({"index": str(index), "name": name, **memory, **cut})


def parse_rocminfo(text: str) -> Listed:
    """Read rocminfo: agents that are processors, and agents that are GPUs."""
    result = Listed()
    names: list[str] = []
    sizes = []
    for agent in re.split(r"(?m)^[ \t]*Agent \d{1,3}[ \t]*$", text)[1:]:
        fields = dict(
            re.findall(r"^[ \t]*([\w ]+?): +(\S[^\n]*?)[ \t]*$", agent, re.MULTILINE)[::-1]
        )
        pool = re.search(r"^[ \t]*Size: +(\d{4,12})\(", agent, re.MULTILINE)
        name = fields.get("Marketing Name") or fields.get("Name", "")
        size = int(pool[1]) if pool else 0
        if fields.get("Device Type") == "CPU":
            names.append(name)
            sizes.append(size)
        elif fields.get("Device Type") == "GPU" and len(result.rows) < _MAX_GPUS:
            row = {"index": str(len(result.rows)), "vendor": "amd", "name": name}
            result.rows.append(row | ({"memory.total": f"{size >> 10} MiB"} if size else {}))
    if names:
        result.texts["cpuinfo.txt"] = f"model name\t: {names[0]}\n"
    if all(sizes) and sizes:
        result.texts["meminfo.txt"] = f"MemTotal: {sum(sizes)} kB"
    return result


def parse_ggml(text: str) -> Listed:
    """Read the GPUs that llama.cpp finds when it starts."""
    result = Listed()
    for match in list(_DEVICE.finditer(text))[:_MAX_GPUS]:
        row = {"index": str(len(result.rows)), "name": match[1].strip()}
        row |= {"vendor": "amd"} if match[3] else {"compute_cap": match[2]}
        row |= {"memory.total": f"{match[4]} MiB"} if match[4] else {}
        result.rows.append(row)
    return result


def parse_ilo(text: str) -> Listed:
    """Read the list of modules of HPE's iLO, as a health check prints it."""
    blocks = [
        f"Memory Device\n\tSize: {size} GB\n\tLocator: {slot}\n\tSpeed: {speed} MT/s\n"
        f"\tConfigured Memory Speed: {speed} MT/s\n"
        for slot, size, speed in _MODULE.findall(text)
    ]
    total = sum(int(size) for _, size, _ in _MODULE.findall(text))
    if not blocks:
        return Listed()
    memory = f"MemTotal: {total << 20} kB"
    return Listed({"dmidecode.txt": "\n\n".join(blocks), "meminfo.txt": memory})


def parse_lshw(text: str) -> Listed:
    """Read lshw: processors, the machine's memory, and GPUs by what stands in brackets."""
    result = Listed()
    cpus, cores, threads = [], 0, 0
    for block in re.split(r"(?m)^(?=[ \t]*\*-)", text):
        fields = dict(
            re.findall(r"^[ \t]*([a-z ]+): (\S[^\n]*?)[ \t]*$", block, re.MULTILINE)[::-1]
        )
        kind = re.match(r"[ \t]*\*-(\w+)", block)
        product, vendor = fields.get("product", ""), fields.get("vendor", "")
        counts = dict(re.findall(r"\b(cores|threads)=(\d{1,4})", fields.get("configuration", "")))
        size = re.fullmatch(r"(\d{1,7})(Ki|Mi|Gi|Ti)B", fields.get("size", ""))
        if kind and kind[1] == "cpu" and "cores" in counts:
            cpus.append(product)
            cores = int(counts["cores"])
            threads = int(counts["threads"]) if "threads" in counts else cores
        elif kind and kind[1] == "memory" and fields.get("description") == "System Memory" and size:
            result.texts["meminfo.txt"] = f"MemTotal: {int(size[1]) * round(_KIB[size[2]])} kB"
        elif kind and kind[1] == "display" and "NVIDIA" in vendor and len(result.rows) < _MAX_GPUS:
            name = re.search(r"\[([^\]\n]{2,80})\]", product)
            row = {"index": str(len(result.rows)), "name": name[1] if name else product}
            result.rows.append(row)
    if cpus and cpus[0]:
        result.texts["cpuinfo.txt"] = f"model name\t: {cpus[0]}\n"
    places = locate_cpus(
        sockets=len(cpus), cores=cores, threads=threads // cores if cores else None
    )
    result.texts |= {"lscpu_e.txt": places} if places else {}
    return result
