"""Tuning of the experts' Triton kernels: the tuner's arguments, and whether it is useful."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.contract import paths

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.plan.engine import MoeTuningPlan
    from kimi_prov.planner.decisions import Budget, EngineChoice

_SCRIPT = "benchmarks/kernels/benchmark_moe.py"
_SOURCES = "https://raw.githubusercontent.com/vllm-project/vllm"
# The tuner's names of the formats whose experts may run in Triton kernels.
_DTYPES = {"bf16": "auto", "fp8": "fp8_w8a8", "int4": "int4_w4a16"}
_MARLIN = ("int4", "nvfp4", "mxfp4")


def make_document(
    choice: EngineChoice, model: Model, budget: Budget, weights_dir: str
) -> MoeTuningPlan | None:
    """Return the plan's `moe_tuning`; None where this engine has no such kernels or tuner.

    `read`: whether the engine would read a table. Marlin kernels, which compute 4-bit experts on
    NVIDIA GPUs, have none.
    """
    gpu, engine = budget.gpu, choice.engine
    dtype = _DTYPES.get(choice.weights_format)
    if engine.moe_tuner_sha256 is None or gpu is None or dtype is None:
        return None
    read = choice.weights_format not in _MARLIN
    script = f"{paths.TOOLS}/tune-{engine.version}/benchmark_moe.py"
    folder = paths.build_tuned_path(engine.version)
    argv = [script, "--model", weights_dir, "--tp-size", str(gpu.ranks), "--dtype", dtype]
    argv += ["--tune", "--save-dir", folder]
    if gpu.expert_parallel:
        argv.append("--enable-expert-parallel")
    if model.architecture.class_name == "KimiK25ForConditionalGeneration":
        # The tuner does not know this class, but it knows the language model's part of the config.
        argv += ["--model-prefix", "text_config"]
    if model.trust_remote_code:
        argv.append("--trust-remote-code")
    return {
        "read": read,
        "reason": "Triton kernels carry the experts"
        if read
        else f"Marlin kernels carry {choice.weights_format} experts: they read no tuned table",
        "dir": folder,
        "script": script,
        "url": f"{_SOURCES}/v{engine.version}/{_SCRIPT}",
        "sha256": engine.moe_tuner_sha256,
        "argv": argv,
    }
