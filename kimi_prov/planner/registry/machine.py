"""Findings about processors, memory and the operating system."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

_ENGINE_ROW = "the engine's row in kimi_prov/catalog/engines.yaml"

DEFINITIONS = (
    Definition(
        "catalogue.status",
        title="{name} is only announced: nobody sells or serves it yet, and its figures are what "
        "was promised",
        severities=("warning", "info"),
        source="the row's own status and source in the catalogue",
        remedy="hardware",
        own_source=True,
        titles={"info": "{name} is at its end of life: nobody sells or serves it any more"},
    ),
    Definition(
        "cpu.amx_permission",
        title="The CPU has AMX, and the kernel does not grant its state to processes",
        severities=("warning",),
        source="arch_prctl(ARCH_REQ_XCOMP_PERM): Linux 5.16 and later grant AMX state on request",
        remedy="software",
    ),
    Definition(
        "cpu.cores_left",
        title="Too few cores are left beside the engine's spinning threads",
        severities=("warning",),
        source="measured with kt-kernel 0.7.2: threads on every core cost 2.4 to 6 times",
        remedy="setting",
    ),
    Definition(
        "cpu.format_isa",
        title="The CPU lacks the instructions that the expert kernels of this format need",
        severities=("blocker", "warning"),
        source="kt-kernel 0.7.2: variants by CPU, kimi_prov/catalog/formats.yaml",
        remedy="hardware",
        titles={"warning": "The expert kernels fall back to AVX2"},
    ),
    Definition(
        "cpu.identity",
        title="The processor hides its model: figures for it are assumed",
        severities=("info",),
        source="virtual machines show names such as `Intel(R) Xeon(R) Processor`",
        remedy="catalogue",
    ),
    Definition(
        "cpu.isa",
        title="The CPU lacks the vector instructions that the engine needs",
        severities=("blocker", "pass"),
        source=_ENGINE_ROW,
        remedy="hardware",
        titles={"pass": "The CPU has the vector instructions that the engine needs"},
        own_source=True,
    ),
    Definition(
        "cpu.threads_as_cores",
        title="More expert threads are asked for than the CPU has physical cores",
        severities=("warning",),
        source="kt-kernel README: threads are physical cores; reference 003 takes 96 threads "
        "for cores",
        remedy="setting",
    ),
    Definition(
        "host.gib",
        title="Google's GIB libraries are installed: they break NCCL on a single machine",
        severities=("blocker",),
        source="reference 004, trouble 5: NCCL fails or hangs at the start",
        remedy="software",
        fixed_by_apply="always",
    ),
    Definition(
        "memory.cgroup",
        title="A limit gives this system less memory than the machine has",
        severities=("info",),
        source="cgroup v2 memory.max",
        remedy="software",
    ),
    Definition(
        "memory.channels",
        title="Memory channels are not populated: decoding from memory slows in proportion",
        severities=("warning", "info"),
        source="bandwidth is channels x transfers x 8 bytes",
        remedy="modules",
    ),
    Definition(
        "memory.dimms_mixed",
        title="DIMMs of different sizes: part of memory is not interleaved over all channels",
        severities=("warning",),
        source="vendors' population rules: equal DIMMs on every channel",
        remedy="hardware",
    ),
    Definition(
        "memory.host",
        title="The machine has too little memory for this model",
        severities=("blocker", "warning", "pass"),
        source="weights, cache, the engine's own memory and a reserve for the system",
        remedy="memory",
        titles={
            "warning": "How much memory the machine has is not known",
            "pass": "Memory holds the engine, its weights and its cache",
        },
    ),
    Definition(
        "memory.hugepages",
        title="Reserved huge pages are memory that the engine cannot have",
        severities=("warning",),
        source="vm.nr_hugepages takes memory away from everything else",
        remedy="software",
    ),
    Definition(
        "memory.shm",
        title="Shared memory is small: workers of one model talk through /dev/shm",
        severities=("warning",),
        source="NCCL and vLLM's workers share memory there; reference 000 gave it 128 GiB",
        remedy="software",
    ),
    Definition(
        "memory.speed",
        title="Memory runs below its own speed",
        severities=("info",),
        source="a second DIMM on a channel, or a processor that takes less, lowers the clock",
        remedy="hardware",
    ),
    Definition(
        "memory.swap",
        title="Swap is on: weights that were swapped out come back a page at a time",
        severities=("info",),
        source="vm.swappiness only makes it rarer",
        remedy="software",
    ),
    Definition(
        "numa.binding",
        title="The inventory's node list does not go with the thread pools",
        severities=("blocker",),
        source="sglang-kt: --kt-numa-nodes is as long as --kt-threadpool-count; moe-tp.hpp: "
        "the count divides the expert's width",
        remedy="setting",
    ),
    Definition(
        "numa.instances",
        title="There are fewer NUMA nodes than engines are asked for",
        severities=("blocker",),
        source="an engine's threads spin: two on the same cores slow each other down",
        remedy="setting",
    ),
    Definition(
        "numa.node_memory",
        title="A NUMA node is too small for an engine of its own",
        severities=("blocker",),
        source="--membind is strict: what does not fit is killed",
        remedy="memory",
        titles={"share": "A NUMA node is too small for its share of the experts"},
        own_source=True,
    ),
    Definition(
        "numa.node_room",
        title="A NUMA node has too little memory left for what will be bound to it",
        severities=("blocker",),
        source="--membind and kt-kernel's pools bind strictly: what the node does not hold is "
        "killed",
        remedy="process",
    ),
    Definition(
        "numa.node_size",
        title="The NUMA nodes show less memory than the machine has; the total was trusted",
        severities=("info",),
        source="seen on a virtual machine with 125 GiB and one node of 4443 MB",
        remedy="none",
    ),
    Definition(
        "numa.pools",
        title="The thread pools cannot use every NUMA node: their cores and channels lie idle",
        severities=("warning",),
        source="kt-kernel: moe-tp.hpp wants the expert's width divisible by the pools; "
        "worker_pool.h binds each pool's memory strictly to its node",
        remedy="firmware",
    ),
    Definition(
        "numa.sub_nodes",
        title="A socket is split into several NUMA nodes",
        severities=("info",),
        source="SNC and NPS: kt-kernel without a node list takes nodes 0 to count-1, part of "
        "one socket",
        remedy="none",
    ),
    Definition(
        "os.glibc",
        title="The C library is too old for the engine's wheels",
        severities=("blocker",),
        source=_ENGINE_ROW,
        remedy="software",
        own_source=True,
    ),
    Definition(
        "os.supported",
        title="The operating system is not supported",
        severities=("blocker", "warning", "info", "pass"),
        source="kimi_prov/catalog/systems.yaml",
        remedy="software",
        titles={
            "info": "The operating system is not known",
            "warning": "The operating system should work, and was not proven",
            "pass": "The operating system is supported",
        },
    ),
    Definition(
        "os.systemd",
        title="systemd does not run this machine",
        severities=("blocker",),
        source="every long task and service is a systemd unit",
        remedy="software",
    ),
    Definition(
        "tuning.governor",
        title="The CPU frequency governor saves power",
        severities=("warning", "info"),
        source="a governor that ramps up adds latency to every token",
        remedy="software",
    ),
    Definition(
        "tuning.numa_balancing",
        title="NUMA balancing moves pages that are bound on purpose",
        severities=("warning", "info"),
        source="ubergarm in ktransformers issue 806; kernel sysctl documentation",
        remedy="software",
    ),
    Definition(
        "tuning.thp",
        title="Transparent huge pages are off",
        severities=("warning", "info"),
        source="weights in memory of the engine's own are read from end to end for every token",
        remedy="software",
    ),
)
