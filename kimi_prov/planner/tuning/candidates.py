"""Lists what a tune tries, setting by setting, and what this version leaves out and why.

Decides: what a tune tries, and in which order.
Held by: tests/unit/planner/tuning/test_candidates.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.facts import gpu_names
from kimi_prov.facts.host import read_host
from kimi_prov.planner.decisions import Workload
from kimi_prov.planner.memory import gpu
from kimi_prov.planner.selection import search
from kimi_prov.planner.settings.flag_names import VLLM
from kimi_prov.planner.tuning import flag_candidates
from kimi_prov.planner.tuning.candidate import Candidate, Direction, read_flag, set_flags
from kimi_prov.planner.tuning.subject import find_obstacle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.tune import TuneRange, Variables
    from kimi_prov.planner.tuning.subject import Subject

_BIND = "VLLM_CPU_OMP_THREADS_BIND"
_CHUNK = f"--{VLLM.chunk}"
# A smaller pass reads the weights once for too few tokens of a prompt.
_MIN_CHUNK, _MAX_CHUNK = 512, 65_536
# Of the layouts, the best ones by their estimates.
_MAX_LAYOUTS = 3


class Planned(NamedTuple):
    """A candidate with its plan; `obstacle`: why it is not tried."""

    candidate: Candidate
    plan: MachinePlan
    obstacle: str | None


class Setting(NamedTuple):
    """A setting that a tune tries: its name for --only, and what it is.

    `by_start`: its candidates are rated by the time of their starts.
    """

    name: str
    text: str
    list_values: Callable[[Subject, MachinePlan, Variables], list[Candidate]]
    by_start: bool = False


class LeftOut(NamedTuple):
    """A setting that this version does not try, and why."""

    name: str
    text: str
    reason: str


def plan_setting(
    setting: Setting, subject: Subject, base: Variables, plan: MachinePlan
) -> list[Planned]:
    """Plan the candidates of one setting over `base`, the best variables so far, whose plan it is.

    A candidate whose whole estimated range lies below that of what serves is not tried.
    """
    rows = []
    for candidate in setting.list_values(subject, plan, base):
        made = subject.plan(candidate.variables)
        obstacle = find_obstacle(plan, made) or _find_hopeless(subject, plan, made)
        rows.append(Planned(candidate, made, obstacle))
    return rows


def estimate(plan: MachinePlan, purpose: str) -> TuneRange | None:
    """Return the plan's estimate of what a tune rates; None where it has none."""
    speeds = plan["throughput"]
    row = speeds.get("single_tok_s") if purpose == "latency" else speeds["aggregate_tok_s"]
    if not row or row["expected"] is None or row["low"] is None or row["high"] is None:
        return None
    return {"low": row["low"], "expected": row["expected"], "high": row["high"]}


def _find_hopeless(subject: Subject, plan: MachinePlan, made: MachinePlan) -> str | None:
    mine, best = estimate(made, subject.purpose), estimate(plan, subject.purpose)
    if mine is None or best is None or mine["high"] >= best["low"]:
        return None
    return f"estimated {mine['high']:.3g} tokens/s at most, what serves {best['low']:.3g} at least"


def _list_requests(subject: Subject, _: MachinePlan, base: Variables) -> list[Candidate]:
    """Double the requests at once up to those of the load, and halve them once."""
    now = int(base.get("concurrency") or subject.settings.concurrency)
    more = _list_doubled(now, subject.users)
    rows: list[tuple[Direction, int]] = [("up", count) for count in more]
    if now > 1:
        rows.append(("down", now // 2))
    return [
        Candidate(
            "requests",
            f"{_name_count(count, 'request')} at once",
            {**base, "concurrency": count},
            way,
        )
        for way, count in rows
    ]


def _name_count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _list_doubled(now: int, most: int) -> list[int]:
    rows = []
    while now < most:
        now = min(2 * now, most)
        rows.append(now)
    return rows


def _list_threads(subject: Subject, plan: MachinePlan, base: Variables) -> list[Candidate]:
    """Try more and fewer cores of the nodes on which the engine computes."""
    instance, hybrid = plan["instances"][0], plan["hybrid"]
    bound = instance["env"].get(_BIND)
    now = hybrid["threads"] if hybrid else len(parse_list(bound)) if bound else 0
    if not now:
        return []
    host = read_host(subject.facts, subject.catalogue)
    allowed = set(parse_list(instance["cpus"])) if instance["cpus"] and not hybrid else None
    most = len([core for core in host.primary if allowed is None or core in allowed])
    rows: list[tuple[Direction, int]] = [("up", count) for count in _list_doubled(now, most)]
    if now > 1:
        rows.append(("down", now - 1))
    if now > 3:
        rows.append(("down", now // 2))
    return [
        Candidate("threads", _name_count(count, "thread"), {**base, "threads": count}, way)
        for way, count in rows
    ]


def _list_chunks(subject: Subject, plan: MachinePlan, base: Variables) -> list[Candidate]:
    """Double and halve the tokens of prompts in one pass."""
    now = read_flag(plan, _CHUNK)
    if now is None:
        return []
    rows: list[tuple[Direction, int]] = [
        ("up", 2 * now),
        ("up", 4 * now),
        ("down", now // 2),
        ("down", now // 4),
    ]
    return [
        Candidate(
            "batched-tokens",
            f"{count} tokens in one pass",
            set_flags(subject, base, {VLLM.chunk: count}),
            way,
        )
        for way, count in rows
        if _MIN_CHUNK <= count <= _MAX_CHUNK
    ]


def _list_chunking(subject: Subject, plan: MachinePlan, base: Variables) -> list[Candidate]:
    """Read each prompt in one pass, where a pass is as long as the context."""
    now = read_flag(plan, _CHUNK)
    on = "--enable-chunked-prefill" in plan["instances"][0]["argv"]
    if not on or now is None or now < plan["model"]["context"]:
        return []
    flags = set_flags(subject, base, {"enable-chunked-prefill": False})
    return [Candidate("chunked-prefill", "each prompt in one pass", flags)]


def _list_formats(_: Subject, plan: MachinePlan, base: Variables) -> list[Candidate]:
    """Try the cache's other number format on GPUs."""
    now = plan["model"].get("kv_dtype")
    if not plan["instances"][0]["gpus"] or now not in ("bf16", "fp8"):
        return []
    other = "fp8" if now == "bf16" else "bf16"
    return [Candidate("cache-format", f"cache in {other}", {**base, "kv_dtype": other})]


def _list_layouts(subject: Subject, plan: MachinePlan, base: Variables) -> list[Candidate]:
    """Try the layouts on GPUs that rate best by their estimates."""
    now = plan["parallel"]
    serving = (now["tensor"], now["pipeline"], now["data"], now["decode_context"])
    flags: dict[tuple[int, ...], Variables] = {}
    for one in _rank_layouts(subject, plan):
        ways, engines = one.layout[:4], one.layout[4]
        if engines == len(plan["instances"]) and ways != serving:
            flags.setdefault(ways, _build_layout_flags(ways))
    return [
        Candidate("layout", _describe_layout(ways), set_flags(subject, base, named))
        for ways, named in list(flags.items())[:_MAX_LAYOUTS]
    ]


def _list_engines(subject: Subject, plan: MachinePlan, base: Variables) -> list[Candidate]:
    """Name other numbers of engines side by side, the best by their estimates first."""
    now = len(plan["instances"])
    counts = dict.fromkeys(one.layout[4] for one in _rank_layouts(subject, plan))
    if not counts and not plan["instances"][0]["gpus"]:
        nodes = len(subject.facts["numa"]["nodes"])
        counts = dict.fromkeys(range(2, nodes + 1))
    return [
        Candidate("engines", f"{_name_count(count, 'engine')}", {**base, "instances": count})
        for count in counts
        if count != now
    ][:_MAX_LAYOUTS]


def _rank_layouts(subject: Subject, plan: MachinePlan) -> list[search.Candidate]:
    """List the layouts of vLLM on these GPUs, the best by their estimates first."""
    engine = plan["engine"]
    row = subject.catalogue.engine(engine["name"], engine["variant"], engine["version"])
    if not plan["instances"][0]["gpus"] or engine["name"] != "vllm" or row is None:
        return []
    host = read_host(gpu_names.add_known_gpus(subject.facts, subject.catalogue), subject.catalogue)
    model = subject.catalogue.model(subject.settings.model)
    work = Workload(row, model, plan["model"]["weights_format"])
    budgets = gpu.list_budgets(host, subject.settings, subject.catalogue, work)
    able = gpu.select_able(budgets, subject.settings, model)
    return sorted(
        search.list_candidates(host, subject.settings, work, able),
        key=lambda one: one.rate(subject.purpose),
        reverse=True,
    )


def _build_layout_flags(ways: tuple[int, int, int, int]) -> Variables:
    names = (
        VLLM.tensor_parallel,
        VLLM.pipeline_parallel,
        VLLM.data_parallel,
        VLLM.decode_context_parallel,
    )
    return {
        name: parts
        for name, parts in zip(names, ways, strict=True)
        if parts > 1 or name == VLLM.tensor_parallel
    }


def _describe_layout(ways: tuple[int, ...]) -> str:
    words = ("GPUs a layer", "stages", "copies of attention", "ranks share a cache")
    parts = [f"{count} {word}" for count, word in zip(ways, words, strict=True) if count > 1]
    return ", ".join(parts) or "1 GPU a layer"


# In this order: a faster start first, since each candidate needs one; then what holds most
# requests, since the others are measured under it.
SETTINGS = (
    Setting(
        "load-format",
        "how the engine reads its weights, by the time of its start",
        flag_candidates.list_load_formats,
        by_start=True,
    ),
    Setting("requests", "requests at once (kimi_concurrency)", _list_requests),
    Setting("threads", "threads on processors (kimi_threads)", _list_threads),
    Setting("batched-tokens", "tokens of prompts in one pass", _list_chunks),
    Setting("chunked-prefill", "prompts in pieces or whole", _list_chunking),
    Setting("capture-sizes", "sizes of captured CUDA graphs", flag_candidates.list_captures),
    Setting("draft", "a draft model and its length", flag_candidates.list_drafts),
    Setting("cache-format", "the cache's number format (kimi_kv_dtype)", _list_formats),
    Setting("numa", "workers bound to NUMA nodes", flag_candidates.list_bindings),
    Setting("layout", "how the model lies on the GPUs", _list_layouts),
    Setting("engines", "engines side by side (kimi_instances)", _list_engines),
)
BY_START = SETTINGS[0].name
NAMES = (*(setting.name for setting in SETTINGS), "moe-kernels")


def select_settings(only: Iterable[str]) -> list[Setting]:
    """Return the settings of these names in their order; all without a name."""
    names = set(only)
    return [setting for setting in SETTINGS if not names or setting.name in names]


def list_left_out(plan: MachinePlan, only: Iterable[str]) -> list[LeftOut]:
    """List the settings that this version does not try on such a machine, with the reasons."""
    names = set(only)
    tuning = plan.get("moe_tuning")
    if tuning is None:
        reason = "this engine has no kernels of experts that are tuned on this machine"
    elif not tuning["read"]:
        reason = tuning["reason"]
    else:
        reason = "its tuner takes hours: ansible-playbook playbooks/tune_moe.yml"
    row = LeftOut("moe-kernels", "kernels of the experts", reason)
    return [row] if not names or row.name in names else []
