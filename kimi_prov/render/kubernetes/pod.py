"""What one pod of the engine requests of its node, and the plan with the image's paths.

Decides: objects for a Kubernetes cluster (sizes).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths, pod
from kimi_prov.contract.arguments import remove_flags
from kimi_prov.render import planned
from kimi_prov.render.kubernetes import access

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.engine import EnginePlan, InstancePlan
    from kimi_prov.planner.settings.parsing import Settings

_GIB = 1 << 30
# Size of /dev/shm; the engine refuses to start with less than its own minimum.
_SHM_PER_GPU = 2 * _GIB
# Share of a node's processors and memory for its system and the pods of every node: kubelet, the
# device plugin, the network, the collector of logs.
_SYSTEM_CPUS = 4
# kt-kernel's threads leave so many cores to the server and its scheduler.
_BESIDE_THREADS = 2
# Threads by which vLLM's server reads images and text of requests.
_READING_THREADS = 8
_SYSTEM_SHARE = 16
# The volume holds the files and the temporary files of a download.
_VOLUME_SPARE = 1.05
# Requests of the fetching pod.
FETCH_BYTES = 4 * _GIB
# A chat of one token waits behind prompts that are being read.
CHAT_S = 60
_NUMA_FLAGS = frozenset({"numa-bind", "numa-bind-nodes", "numa-bind-cpus"})


@dataclass(frozen=True)
class Pod:
    """What a pod of the engine gets; requests and limits are the same. Sizes in bytes.

    `needed`: the engine cannot run with less; `page_cache`: room for the files that it reads,
    which only makes the start faster. `shm` is a part of both `needed` and `memory`.
    """

    gpus: int
    cpus: int
    memory: int
    needed: int
    page_cache: int
    shm: int
    start_s: int
    grace_s: int

    @property
    def memory_gib(self) -> int:
        """The limit as it is written."""
        return self.memory // _GIB

    @property
    def shm_gib(self) -> int:
        """Size of /dev/shm as it is written."""
        return self.shm // _GIB


def size_pod(plan: MachinePlan, settings: Settings, facts: Facts) -> Pod:
    """Size a pod by the plan, the node's facts and what the site set."""
    gpus = len(plan["instances"][0]["gpus"])
    shm = pod.compute_shm_bytes(plan)
    if pod.count_workers(plan) > 1:
        shm = max(shm, _SHM_PER_GPU * gpus)
    needed = _round_up(pod.compute_process_bytes(plan) + shm)
    beside_cpus, beside_memory = count_fetch_share(plan, settings, facts)
    room = _count_node_memory(plan) - beside_memory - needed
    total = len(facts["gpus"])
    # Who takes some of a node's GPUs leaves the others as much for each of theirs.
    room = room * gpus // total if gpus and total else room
    page_cache = max(0, min(pod.count_shared_bytes(plan), room)) // _GIB * _GIB
    memory = needed + page_cache
    if settings.kubernetes_memory_gib != "auto":
        memory = settings.kubernetes_memory_gib * _GIB
        page_cache = max(0, memory - needed)
    return Pod(
        gpus=gpus,
        cpus=_count_cpus(plan, settings, facts, beside_cpus),
        memory=memory,
        needed=needed,
        page_cache=page_cache,
        shm=shm,
        start_s=int(plan["timeouts"]["start_s"]),
        grace_s=settings.kubernetes_grace_s,
    )


def _round_up(size: int) -> int:
    """Round up to whole GiB."""
    return math.ceil(size / _GIB) * _GIB


def _count_node_memory(plan: MachinePlan) -> int:
    """Give a node's memory less the share of its system."""
    available = int(plan["memory"]["host_ram_available_bytes"])
    return available - available // _SYSTEM_SHARE


def _count_cpus(plan: MachinePlan, settings: Settings, facts: Facts, beside_cpus: int) -> int:
    """Return whole processors: what the engine uses, in whole cores, so that no core is shared.

    At most the share of the node that belongs to the GPUs. `beside_cpus` are left to a pod that
    must run on the same node. The CPU manager gives whole processors to a pod that asks for them.
    """
    if settings.kubernetes_cpus != "auto":
        return settings.kubernetes_cpus
    gpus, total = len(plan["instances"][0]["gpus"]), len(facts["gpus"])
    threads, per_core = count_threads(facts), _count_cpus_per_core(facts)
    # A small node, as in a trial, keeps at least one processor for its system.
    kept = max(min(_SYSTEM_CPUS, threads // 4), threads // _SYSTEM_SHARE)
    free = threads - kept - beside_cpus
    used = count_used_cpus(plan, per_core) or free
    if gpus and total and not plan["hybrid"]:
        free = free * gpus // total
    return max(1, min(free, -(-used // per_core) * per_core) // per_core * per_core)


def count_used_cpus(plan: MachinePlan, per_core: int) -> int:
    """Count the processors that an engine on GPUs keeps busy; 0 for one that takes what there is.

    kt-kernel's threads spin, each on a core of its own, where another thread of that core is free.
    vLLM has a process for each GPU, which waits for it without sleeping, and one that schedules:
    each gets a core. A last one reads requests, by eight threads (vLLM's
    docs/configuration/optimization.md, VLLM_MEDIA_LOADING_THREAD_COUNT).
    """
    gpus = len(plan["instances"][0]["gpus"])
    if plan["hybrid"]:
        return int(plan["hybrid"]["threads"]) + gpus + _BESIDE_THREADS
    return (gpus + 1) * per_core + _READING_THREADS if gpus else 0


def count_threads(facts: Facts) -> int:
    """Give the processors of a node, as the kernel counts them; one at least."""
    return facts["cpu"]["threads"] or 1


def _count_cpus_per_core(facts: Facts) -> int:
    """Give the processors of a core."""
    threads, cores = count_threads(facts), facts["cpu"]["cores"]
    return max(1, threads // cores) if cores else 1


def count_fetch_cpus(plan: MachinePlan, facts: Facts) -> int:
    """Give the processors of the fetching pod: one for each file at a time, in whole cores.

    A quarter of a node at most. A kubelet with full-pcpus-only refuses a pod that asks for half of
    a core (SMTAlignmentError).
    """
    per_core, threads = _count_cpus_per_core(facts), count_threads(facts)
    workers = math.ceil(int(plan["weights"]["workers"]) / per_core)
    return max(1, min(workers, threads // 4 // per_core)) * per_core


def count_fetch_share(plan: MachinePlan, settings: Settings, facts: Facts) -> tuple[int, int]:
    """Give the processors and bytes that the fetching pod takes of the engine's node.

    Where only one node can mount the volume, the fetching pod runs there and the engine waits.
    """
    if access.choose_mode(settings, int(plan["parallel"]["hosts"])) != "ReadWriteOnce":
        return 0, 0
    return count_fetch_cpus(plan, facts), FETCH_BYTES


def is_memory_placed(plan: MachinePlan) -> bool:
    """Whether the plan places the engine's memory on NUMA nodes."""
    instance = plan["instances"][0]
    flags = {word.removeprefix("--") for word in instance["argv"] if word.startswith("--")}
    return bool(instance["numactl"] or flags & _NUMA_FLAGS)


def count_volume_gib(plan: MachinePlan, revisions: int = 1) -> int:
    """Return the size of a volume in GiB for so many revisions of the weights and the draft."""
    weights = plan["weights"]
    parts = [weights, *([weights["draft"]] if weights["draft"] else [])]
    size = revisions * sum(int(part["bytes"]) for part in parts)
    return math.ceil(size * _VOLUME_SPARE / _GIB) + 1


def adapt_to_image(plan: MachinePlan, settings: Settings) -> MachinePlan:
    """Return the plan with the image's paths, without what is known only when the pod runs."""
    instance = plan["instances"][0]
    rewrite = _make_path_rewriter(plan)
    argv = [rewrite(word) for word in instance["argv"]]
    at = argv.index("-m") + 2
    argv = argv[:at] + _list_arguments(plan, settings, argv[at:])
    environment = {
        name: rewrite(value)
        for name, value in instance["env"].items()
        if name not in planned.ENVIRONMENT_OF_THE_RUN
    }
    placed = settings.kubernetes_seccomp_profile is not None
    engine: EnginePlan = {
        **plan["engine"],
        "env_dir": pod.ENGINE,
        "python": f"{pod.ENGINE}/bin/python",
    }
    changed: InstancePlan = {
        **instance,
        "argv": argv,
        "env": environment,
        "port": pod.ENGINE_PORT if pod.is_proxied(plan) else pod.PORT,
        "numactl": instance["numactl"] if placed else [],
    }
    adapted: MachinePlan = {**plan, "engine": engine, "instances": [changed]}
    # A pod keeps none: its image has no plugin for them.
    adapted.pop("prepared_weights", None)
    return adapted


def _make_path_rewriter(plan: MachinePlan) -> Any:  # noqa: ANN401
    """Return the function that writes a path or text of the plan as the image has it."""
    table = {plan["engine"]["env_dir"]: pod.ENGINE, paths.CACHE: pod.CACHE}
    ours = re.compile("|".join(rf"{re.escape(path)}(?=/|$)" for path in table))
    return lambda text: ours.sub(lambda match: table[match.group()], text)


def _list_arguments(plan: MachinePlan, settings: Settings, words: list[str]) -> list[str]:
    """Give the engine's arguments but those that the pod finds out when it runs."""
    left_out = set(planned.OF_THE_RUN)
    if settings.kubernetes_seccomp_profile is None:
        left_out |= _NUMA_FLAGS
    arguments = remove_flags(words, {f"--{name}" for name in left_out})
    return [*arguments, *planned.drain(plan, arguments, settings.kubernetes_grace_s)]
