"""Findings about GPUs, and how a model is shared out over them."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition, Remedy

_MEMORY_ERRORS = "docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt"
_REASONS = "docs.nvidia.com/deploy/nvml-api, nvmlClocksEventReasons"


def _define_fault(identity: str, title: str, source: str, remedy: Remedy = "depends") -> Definition:
    """Define a sign of failing hardware: `status` and `diagnose` report it, no plan does."""
    return Definition(
        identity,
        title=title,
        severities=("warning",),
        source=source,
        remedy=remedy,
        concerns="deployment",
    )


DEFINITIONS = (
    _define_fault(
        "gpu.ecc_storm",
        "A GPU corrects more memory errors than it should",
        "nvidia-smi: ecc.errors.corrected.aggregate.total, twice within an hour",
    ),
    _define_fault(
        "gpu.ecc_uncorrected",
        "A GPU had uncorrectable ECC errors in its memory",
        f"nvidia-smi: ecc.errors.uncorrected.volatile.total; {_MEMORY_ERRORS}",
    ),
    _define_fault(
        "gpu.heat",
        "A GPU is too hot and slows itself down",
        f"nvidia-smi: clocks_event_reasons, thermal slowdown; {_REASONS}",
    ),
    _define_fault(
        "gpu.nvlink_errors",
        "A GPU's NVLink has to repeat, or to set itself up again",
        "nvidia-smi nvlink -e, twice within an hour; limits: "
        "github.com/NVIDIA/DCGM, dcgm_gpu_hardware_limits.h",
    ),
    _define_fault(
        "gpu.pcie_width",
        "A GPU's PCIe link lost lanes",
        "nvidia-smi: pcie.link.width.current and .max, which is that of card and slot together",
    ),
    _define_fault(
        "gpu.power_brake",
        "The machine's power supply slows a GPU down",
        f"nvidia-smi: clocks_event_reasons, power brake; {_REASONS}",
    ),
    _define_fault(
        "gpu.row_remap_failed",
        "A row of a GPU's memory is faulty and could not be replaced",
        f"nvidia-smi: remapped_rows.failure (Xid 64); {_MEMORY_ERRORS}",
    ),
    _define_fault(
        "gpu.row_remap_pending",
        "A row of a GPU's memory is faulty: it is replaced when the GPU is reset",
        f"nvidia-smi: remapped_rows.pending (Xid 63); {_MEMORY_ERRORS}",
        "reboot",
    ),
    Definition(
        "gpu.divisible",
        title="The model cannot be cut into so many equal parts",
        severities=("blocker",),
        source="tensor parallelism cuts attention heads and expert width",
        remedy="setting",
    ),
    Definition(
        "gpu.fabric",
        title="The NVSwitch fabric is not ready: CUDA does not start on these GPUs",
        severities=("blocker",),
        source="nvidia-smi -q: Fabric State; on virtual machines the host owns the fabric manager",
        remedy="software",
        concerns="deployment",
        fixed_by_apply="driver",
    ),
    Definition(
        "gpu.held",
        title="Something else holds memory of the GPUs",
        severities=("warning",),
        source="vLLM may leave memory held after a crash; what it asks for has to be free when "
        "it starts",
        remedy="process",
        concerns="deployment",
    ),
    Definition(
        "gpu.idle",
        title="Some GPUs lie idle: the model is cut into powers of two",
        severities=("info",),
        source="heads and expert width are powers of two",
        remedy="none",
    ),
    Definition(
        "gpu.memory",
        title="The GPUs do not hold {model}: no memory is left for the cache",
        severities=("blocker", "pass"),
        source="weights over the ranks, what every rank holds in full, working memory as measured",
        remedy="gpus",
        titles={"pass": "The GPUs hold their share of the weights"},
    ),
    Definition(
        "gpu.mig",
        title="A GPU is cut into instances (MIG): the engine needs it whole",
        severities=("blocker",),
        source="NVIDIA MIG user guide: instances have no peer-to-peer",
        remedy="reboot",
        concerns="deployment",
    ),
    Definition(
        "gpu.mig_pending",
        title="MIG is requested: the next restart or reset cuts the GPU into instances",
        severities=("warning",),
        source="nvidia-smi -q: MIG Mode, Current and Pending; installing a driver restarts",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "gpu.mixed",
        title="GPUs of different kinds: tensor parallelism is as slow, and as small, as the "
        "least of them",
        severities=("warning",),
        source="every rank holds an equal share",
        remedy="hardware",
    ),
    Definition(
        "gpu.nvfp4",
        title="These GPUs have no FP4 units: NVFP4 weights are unpacked to 16 bit by Marlin "
        "kernels",
        severities=("info",),
        source="vLLM 0.19.1: weight-only FP4 where the GPU has no native support; faster only "
        "on Blackwell",
        remedy="none",
        titles={
            "mxfp4": "These GPUs have no FP4 units: MXFP4 weights are unpacked to 16 bit by Marlin "
            "kernels"
        },
    ),
    Definition(
        "gpu.nvlink",
        title="The GPUs of one model are not all linked by NVLink",
        severities=("warning", "info", "pass"),
        source="two all-reduces a layer: without NVLink they go over PCIe",
        remedy="hardware",
        titles={
            "pass": "Every pair of GPUs is linked by NVLink",
            "some": "NVLink joins only some of the GPUs",
        },
    ),
    Definition(
        "gpu.pcie",
        title="A GPU's PCIe link is narrower or slower than it can be",
        severities=("warning", "info"),
        source="nvidia-smi -q: a link that trained down under load; idle links save power and "
        "show less",
        remedy="hardware",
    ),
    Definition(
        "gpu.shared_memory",
        title="The GPU has no memory of its own: the machine is planned without it",
        severities=("warning",),
        source="kimi_prov/catalog/gpus.yaml; nvidia-smi shows no memory of such a GPU",
        remedy="hardware",
    ),
    Definition(
        "gpu.unknown",
        title="The catalogue does not know these GPUs",
        severities=("info",),
        source="kimi_prov/catalog/gpus.yaml",
        remedy="catalogue",
    ),
    Definition(
        "kv.replication",
        title="Every tensor-parallel rank holds the whole cache: more GPUs do not make it longer",
        severities=("info",),
        source="MLA keeps one latent for all heads; read in vLLM's logs, with and without "
        "context parallelism",
        remedy="none",
    ),
    Definition(
        "parallel.context",
        title="GPUs share the cache of each conversation: it holds more, and a token takes longer",
        severities=("info",),
        source="vLLM: decode-context-parallel-size shares out the cache; K2-Thinking was "
        "served so on 8x H200",
        remedy="setting",
    ),
    Definition(
        "parallel.data",
        title="Data-parallel attention would hold more requests at once",
        severities=("info",),
        source="MLA's cache is whole on every tensor-parallel rank; a copy of attention for "
        "each has its own",
        remedy="setting",
    ),
    Definition(
        "parallel.instances",
        title="The machine runs several instances: each holds the model on GPUs of its own",
        severities=("info",),
        source="decoding is latency-bound: more ranks make a token hardly faster",
        remedy="setting",
    ),
    Definition(
        "parallel.pipeline",
        title="Stages of layers were chosen: they use more GPUs, or leave more room for the cache",
        severities=("info",),
        source="tensor parallelism takes powers of two; stages take any number, one after the "
        "other",
        remedy="none",
    ),
)
