"""How much host memory keeps the cache of conversations that fall out of the GPUs.

Coding agents send their whole history with each request. What of it the GPUs no longer hold is read
back over PCIe instead of being computed again. vLLM copies every block there as it computes it, so
that host memory has to hold more than the GPUs do, or it holds the same once more.

Decides: the cache in host memory.
Applied by: roles/serve.
Held by: tests/unit/planner/memory/test_offload.py, tests/engines/test_offload_of_engines.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.catalog.versions import parse_version
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.decisions import GIB, MemoryPart, RamDisk
from kimi_prov.planner.engine import speculative
from kimi_prov.planner.settings.flag_names import VLLM

if TYPE_CHECKING:
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import Budget, EngineChoice
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

PART = "Cache moved out of the GPUs"
# The part of idle memory that `auto` takes, as InferenceX' benches of agents do on B300
# (dram-utilization, github.com/SemiAnalysisAI/InferenceX/pull/2158).
_SHARE = 0.8
# From this version all ranks keep one copy of MLA's cache, in a file of /dev/shm; before, each rank
# has its own (v1/kv_offload/cpu/spec.py and config.py of 0.32.0, 0.25.1 and 0.19.1).
_ONE_COPY_SINCE = "0.32.0"
# Other things lie in /dev/shm too, which is half as large as memory unless the machine says more.
_SHM_SHARE = 0.9
NO_RAM_DISK = RamDisk(enabled=False, size_bytes=0, reason="", options="")
# Coding agents repeat more than 90 % of a prompt (kimi_prefix_reuse says another share).
_REUSE_OF_AGENTS = 0.9
_MIN_REUSE = 0.5


@dataclass(frozen=True)
class Offload:
    """The cache in host memory: what each engine is told, what all take, and what they hold."""

    engine_bytes: int
    size_bytes: int
    tokens: int


class Machine(NamedTuple):
    """A machine, the engine on it, and the memory that is already planned."""

    host: Host
    choice: EngineChoice
    budget: Budget
    tmpfs: RamDisk

    @property
    def engines(self) -> int:
        """Engines that keep a cache of their own."""
        gpu = self.budget.gpu
        return self.budget.instances * (gpu.data if gpu else 1)

    @property
    def room(self) -> int:
        """Bytes that engine and RAM disk leave idle, and that /dev/shm may hold."""
        taken = self.budget.host_required + self.tmpfs.size_bytes
        idle = self.host.memory_bytes - taken
        shared = self.host.facts["memory"].get("shm_size_bytes") or self.host.memory_bytes // 2
        return max(0, min(idle, int(shared * _SHM_SHARE)))

    @property
    def one_copy(self) -> bool:
        """Whether all ranks of its engine keep one copy of the cache in host memory."""
        gpu = self.budget.gpu
        alone = gpu is not None and gpu.pipeline == gpu.decode_context == 1
        return alone and self._is_new

    @property
    def factor(self) -> int:
        """How many times the size that an engine is told it may take.

        Before the shared file each rank pinned a tensor for each layer, and torch rounds each up to
        a power of two (CachingHostAllocator.h of 2.10).
        """
        return 1 if self._is_new else 2

    def count_tokens(self, size: int) -> int:
        """Count the tokens whose cache so many bytes of host memory hold, all engines together."""
        gpu, budget = self.budget.gpu, self.budget
        assert gpu is not None, "asked without GPUs"  # noqa: S101
        copies = 1 if self.one_copy else gpu.ranks * gpu.pipeline
        # The ranks of context parallelism share out the cache of a token.
        return size // max(1, budget.kv_bytes_per_token * copies // gpu.decode_context)

    @property
    def _is_new(self) -> bool:
        return parse_version(self.choice.engine.version) >= parse_version(_ONE_COPY_SINCE)


def find_reuse(settings: Settings) -> float:
    """Return the share of a prompt's tokens that an earlier request had; 0 where nobody says."""
    if settings.prefix_reuse is not None:
        return settings.prefix_reuse
    return _REUSE_OF_AGENTS if settings.workload == "agents" else 0.0


def choose_offload(
    machine: Machine,
    settings: Settings,
    catalogue: Catalogue,
    model: Model,
    findings: Findings,
) -> Offload | None:
    """Choose the host memory for the cache, of what the engine and the RAM disk leave idle."""
    request = settings.cache_offload
    if request == "off":
        return None
    if VLLM.cache_offloading in settings.engine_args:
        if request != "auto":
            _report(findings, str(request), "its size in one place", "flag")
        return None
    reason = _find_obstacle(machine, settings, catalogue, model)
    if request != "auto":
        return _take_size(int(request) * GIB, machine, reason, findings)
    if reason or find_reuse(settings) < _MIN_REUSE or machine.budget.kv_bytes <= 0:
        return None
    chosen = _make_offload(int(machine.room * _SHARE) // machine.factor, machine)
    on_gpus = machine.budget.kv_tokens * machine.budget.instances
    if chosen.tokens > on_gpus:
        return chosen
    findings.add(
        "engine.cache_offload",
        severity="info",
        wording="small",
        observed=f"{chosen.tokens:,} tokens in {format_bytes(chosen.size_bytes)}",
        required=f"more than the {on_gpus:,} tokens on the GPUs",
        fix="add memory, or set kimi_engine_version to 0.32.0, whose ranks keep one copy together"
        if machine.factor > 1
        else "add memory",
    )
    return None


def add_to_budget(budget: Budget, offload: Offload | None) -> Budget:
    """Return the budget with the cache in host memory."""
    if offload is None:
        return budget
    part = MemoryPart("cache", PART, offload.size_bytes)
    return replace(budget, parts=(*budget.parts, part))


def make_flags(offload: Offload | None) -> dict[str, int]:
    """Return the engine's flag: GiB of one engine, all of its ranks together."""
    return {VLLM.cache_offloading: offload.engine_bytes // GIB} if offload else {}


def _find_obstacle(
    machine: Machine, settings: Settings, catalogue: Catalogue, model: Model
) -> str | None:
    """Say what this engine lacks to keep cache in host memory; None where it can."""
    engine = machine.choice.engine
    if engine.name != "vllm" or engine.variant != "cuda" or machine.budget.gpu is None:
        return "vLLM on GPUs that hold all weights"
    if settings.hosts_per_model > 1:
        return "a model that one host serves"
    if model.architecture.state_bytes_per_sequence:
        return "a model whose layers all keep a cache by tokens"
    draft = speculative.find_draft(settings, catalogue, engine)
    if draft is not None and draft.kv_split:
        # Its cache is a group of its own (github.com/vllm-project/vllm/pull/56953).
        return "a draft whose cache is like the model's (MLA)"
    return None


def _take_size(
    size: int, machine: Machine, reason: str | None, findings: Findings
) -> Offload | None:
    """Take the size that the inventory names; what is impossible is a finding."""
    request = f"{size // GIB}"
    if reason is not None:
        _report(findings, request, reason, "impossible")
        return None
    chosen = _make_offload(size, machine)
    if not chosen.engine_bytes or chosen.size_bytes > machine.room:
        most = machine.room // machine.factor // GIB
        least = machine.engines
        _report(findings, request, f"{least} to {most} GiB, which the rest leaves", "large")
        return None
    return chosen


def _make_offload(size: int, machine: Machine) -> Offload:
    """Divide bytes of cache over the engines, in whole GiB of each."""
    each = max(0, size) // machine.engines // GIB * GIB
    of_all = each * machine.engines
    return Offload(each, of_all * machine.factor, machine.count_tokens(of_all))


def _report(findings: Findings, request: str, required: str, wording: str) -> None:
    findings.add(
        "engine.cache_offload",
        severity="warning" if wording == "flag" else "blocker",
        wording=wording,
        observed=f"kimi_cache_offload: {request}",
        required=required,
        fix=f"remove {VLLM.cache_offloading} from kimi_engine_args, or kimi_cache_offload"
        if wording == "flag"
        else "set kimi_cache_offload to auto or off",
    )
