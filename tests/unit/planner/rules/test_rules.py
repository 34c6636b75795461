"""Every rule: the machine on which it speaks, and a machine on which it is silent."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from plan_inputs import (
    AVX512,
    GIB,
    HUGE,
    blocked_by,
    found,
    gpu_facts,
    hybrid_facts,
    lab_facts,
    metal_facts,
    plan,
    snc,
)

from kimi_prov.planner.rules.context import RULES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    """Set one key of the facts: `gpus.0.mig`."""

    def apply(facts: dict[str, Any]) -> None:
        where: Any = facts
        *way, last = path.split(".")
        for key in way:
            where = where[int(key)] if isinstance(where, list) else where[key]
        if isinstance(where, list):
            where[int(last)] = value
        else:
            where[last] = value

    return apply


def eight_h100() -> dict[str, Any]:
    facts = gpu_facts(mib=81559)
    for row in facts["gpus"]:
        row["model"] = "NVIDIA H100 80GB HBM3"
    return facts


def balancing(facts: dict[str, Any]) -> None:
    facts["tunables"]["sysctl"]["kernel.numa_balancing"] = {"value": "1", "writable": False}


def root_on_fuse(facts: dict[str, Any]) -> None:
    facts["filesystems"] = [
        {"mount": "/srv/kimi", "fstype": "fuse.gcsfuse", "holds": ["/srv/kimi"]}
        | {"device": "bucket", "total_bytes": None, "free_bytes": None}
    ]


def of_srv(**row: object) -> Callable[[dict[str, Any]], None]:
    """/srv as a file system of its own, with these facts of it."""

    def apply(facts: dict[str, Any]) -> None:
        facts["filesystems"].append(
            {"mount": "/srv", "device": "/dev/sdb1", "fstype": "ext4", "free_bytes": 7 << 40}
            | {"holds": ["/srv", "/srv/kimi", "/srv/kimi/engines", "/srv/kimi/models"]}
            | row
        )

    return apply


def account(row: dict[str, object]) -> Callable[[dict[str, Any]], None]:
    person = {"uid": 1001, "gid": 1001, "home": "/home/kimi", "shell": "/bin/bash", "processes": []}
    return change("kimi.accounts", {"kimi": person | row, "kimi-proxy": None})


def announced_cards(facts: dict[str, Any]) -> None:
    for card in facts["gpus"]:
        card |= {"model": "Rubin (per GPU)", "compute_capability": "10.7"}


def no_files(facts: dict[str, Any]) -> None:
    facts["filesystems"] = []
    facts["disks"] = [{"name": "nvme0n1", "kind": "nvme", "size_bytes": 480 * 10**9}]


def dimms(*rows: tuple[int, int, int]) -> Callable[[dict[str, Any]], None]:
    def apply(facts: dict[str, Any]) -> None:
        facts["memory"]["dimms"] = [
            {"size_bytes": size << 30, "speed_mt_s": speed, "configured_mt_s": now, "locator": None}
            for size, speed, now in rows
        ]

    return apply


def matrix(value: object) -> Callable[[dict[str, Any]], None]:
    return change("nvidia.nvlink", {"matrix": value, "links_per_gpu": None})


def full(count: int = 8, links: object = 18) -> list[list[object]]:
    return [[links if a != b else 0 for b in range(count)] for a in range(count)]


def pairs() -> list[list[int]]:
    return [[4 if a != b and a // 2 == b // 2 else 0 for b in range(8)] for a in range(8)]


def channels(facts: dict[str, Any]) -> None:
    facts["memory"] |= {"channels_populated": 12, "channels_total": 24}


def hugepages(facts: dict[str, Any]) -> None:
    facts["memory"] |= {"hugepages_total": 256, "hugepage_bytes": GIB}


def several(*changes: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def apply(facts: dict[str, Any]) -> None:
        for one in changes:
            one(facts)

    return apply


APT = {"lock": "/var/lib/dpkg/lock-frontend", "pid": 812, "process": "apt-get", "unit": None}
ARGS = "engine_args"
E8 = gpu_facts
NVL = hybrid_facts


# Rule, machine, what is changed on it, settings, how grave. Without the change and the settings the
# same machine must not raise it, unless it is in ALWAYS.
def recorded(**parts: Any) -> dict[str, Any]:
    """Make what a recording was read from."""
    return {"read": [], "not_told": [], "damaged": [], "skipped": [], **parts}


def at_one_socket(facts: dict[str, Any]) -> None:
    """Put all modules at the first processor."""
    facts["memory"]["dimms"] = [
        {"size_bytes": 64 * GIB, "locator": f"CPU1_DIMM_{letter}1", "bank": None}
        for letter in "ABCD"
    ]


def expander(facts: dict[str, Any]) -> None:
    """Add a node of an expander."""
    row = {"id": 2, "cpus": "", "kind": "cxl", "memory_total_bytes": 256 * GIB}
    facts["numa"]["nodes"].append(row)


TABLE: list[tuple[str, Callable[[], dict[str, Any]], Any, dict[str, Any], str]] = [
    ("catalogue.status", E8, announced_cards, {}, "warning"),
    ("cpu.format_isa", NVL, change("cpu.isa", ["avx"]), {}, "blocker"),
    ("cpu.format_isa", NVL, change("cpu.isa", ["avx2"]), {}, "warning"),
    (
        "cpu.amx_permission",
        NVL,
        several(
            change("cpu.isa", [*AVX512, "amx_tile", "amx_int8"]),
            change("cpu.amx_permission", False),
        ),
        {},
        "warning",
    ),
    (
        "cpu.amx_masked",
        NVL,
        several(
            change("host.virtualization", "kvm"),
            change("cpu.microarchitecture", "Emerald Rapids"),
        ),
        {},
        "warning",
    ),
    ("numa.without_memory", NVL, change("numa.nodes.1.memory_total_bytes", 0), {}, "warning"),
    ("numa.without_memory", NVL, at_one_socket, {}, "warning"),
    ("numa.other_memory", NVL, expander, {}, "info"),
    ("recording.not_told", NVL, change("recorded", recorded(not_told=["GPUs"])), {}, "warning"),
    (
        "recording.damaged",
        NVL,
        change("recorded", recorded(damaged=[{"file": "a.json", "problem": "cut off"}])),
        {},
        "warning",
    ),
    ("numa.node_room", NVL, change("numa.nodes.1.memory_available_bytes", GIB), {}, "blocker"),
    ("cpu.threads_as_cores", NVL, None, {ARGS: {"kt-cpuinfer": 192}}, "warning"),
    ("cpu.cores_left", NVL, None, {ARGS: {"kt-cpuinfer": 96}}, "warning"),
    ("numa.binding", NVL, None, {ARGS: {"kt-threadpool-count": 3}}, "blocker"),
    ("numa.binding", NVL, None, {ARGS: {"kt-numa-nodes": [0]}}, "blocker"),
    ("memory.channels", NVL, channels, {}, "warning"),
    ("memory.speed", NVL, dimms((64, 6400, 5200)), {}, "info"),
    ("memory.dimms_mixed", NVL, dimms((64, 4800, 4800), (32, 4800, 4800)), {}, "warning"),
    ("memory.cgroup", NVL, change("memory.cgroup_limit_bytes", 900 * GIB), {}, "info"),
    ("memory.shm", E8, change("memory.shm_size_bytes", 64 << 20), {}, "warning"),
    ("memory.swap", NVL, change("memory.swap_total_bytes", GIB), {}, "info"),
    ("memory.hugepages", NVL, hugepages, {}, "warning"),
    ("tuning.numa_balancing", NVL, balancing, {}, "warning"),
    (
        "tuning.governor",
        NVL,
        change("tunables.governor", {"value": "powersave", "choices": [], "writable": False}),
        {},
        "warning",
    ),
    ("tuning.thp", NVL, change("tunables.thp.value", "never"), {}, "info"),
    ("os.cgroups", E8, change("cgroup", {"hierarchy": "legacy"}), {}, "blocker"),
    ("os.cgroups", E8, change("cgroup", {"hierarchy": "hybrid"}), {}, "warning"),
    ("os.selinux", E8, change("security", {"selinux": "enforcing"}), {}, "blocker"),
    (
        "os.apparmor",
        E8,
        change("security", {"apparmor_enforced": ["/usr/sbin/haproxy"]}),
        {},
        "warning",
    ),
    ("packages.busy", E8, change("packages.busy", APT), {}, "info"),
    ("packages.unfinished", E8, change("packages.unfinished", ["nginx"]), {}, "blocker"),
    ("disk.network", NVL, root_on_fuse, {}, "warning"),
    ("disk.capacity", NVL, no_files, {}, "blocker"),
    ("disk.speed", NVL, change("disks", [{"read_bytes_per_s": 150_000_000}]), {}, "warning"),
    ("disk.mount", NVL, of_srv(options=["nodev", "noexec"]), {}, "blocker"),
    ("disk.mount", NVL, of_srv(options=["ro"]), {}, "blocker"),
    ("disk.mount", NVL, of_srv(fstype="nfs4", writable=False), {}, "blocker"),
    ("disk.mount", NVL, of_srv(linked={"/srv/kimi": "/data/kimi"}), {}, "blocker"),
    ("host.account", NVL, account({}), {}, "blocker"),
    ("host.account", NVL, account({"uid": 0}), {}, "blocker"),
    ("host.account", NVL, account({"uid": 997, "processes": ["postgres"]}), {}, "blocker"),
    ("host.account", NVL, account({"uid": 997, "shell": "/usr/sbin/nologin"}), {}, "info"),
    ("host.account", NVL, account({"uid": 70001, "shell": "/usr/sbin/nologin"}), {}, "info"),
    ("host.clock", NVL, change("clock", {"offset_s": -3600}), {}, "blocker"),
    ("host.clock", NVL, change("clock", {"offset_s": 3600}), {}, "warning"),
    (
        "host.clock",
        NVL,
        change("clock", {"offset_s": -3600, "synchronized": True}),
        {},
        "warning",
    ),
    ("host.gib", E8, change("gib", {"present": True, "cached": ["libnccl-net.so"]}), {}, "blocker"),
    ("gpu.mixed", E8, change("gpus.3.model", "NVIDIA H100 80GB HBM3"), {}, "warning"),
    ("gpu.mig", E8, change("gpus.0.mig", True), {}, "blocker"),
    ("gpu.mig_pending", E8, change("gpus.0.mig_pending", True), {}, "warning"),
    ("gpu.pcie", E8, change("gpus.0.pcie", {"width": 8, "width_max": 16}), {}, "warning"),
    ("gpu.pcie", NVL, change("gpus.0.pcie", {"gen_max": 4, "gen_card": 5}), {}, "warning"),
    ("gpu.nvlink", E8, matrix(full(links=0)), {}, "warning"),
    ("gpu.nvlink", E8, matrix(full(links="SYS")), {}, "warning"),
    ("gpu.nvlink", E8, matrix(pairs()), {}, "warning"),
    ("gpu.nvlink", E8, matrix(full(links="NV18")), {}, "pass"),
    ("gpu.fabric", E8, change("gpus.0.fabric_state", "In Progress"), {}, "blocker"),
    ("gpu.divisible", E8, None, {ARGS: {"tensor-parallel-size": 6}}, "blocker"),
    ("gpu.divisible", E8, None, {ARGS: {"tensor-parallel-size": 16}}, "blocker"),
    (
        "parallel.context",
        E8,
        change("gpus", gpu_facts(8, 81559)["gpus"]),
        {"context": 65536},
        "info",
    ),
    ("parallel.pipeline", E8, change("gpus", gpu_facts(6)["gpus"]), {}, "info"),
    ("parallel.instances", E8, change("gpus", gpu_facts(16)["gpus"]), {}, "info"),
    ("parallel.data", E8, None, {"concurrency": 256}, "info"),
    ("gpu.idle", E8, change("gpus", gpu_facts(6, 275040)["gpus"]), {}, "info"),
    (
        "driver.fabric_manager",
        E8,
        change("nvidia.fabric_manager", {"package_version": "580.95.05-1", "active": True}),
        {},
        "blocker",
    ),
    (
        "driver.fabric_manager",
        E8,
        several(
            change("nvidia.fabric_manager", {"package_version": None, "active": None}),
            change("nvidia.nvswitch", True),
        ),
        {},
        "blocker",
    ),
    (
        "driver.fabric_manager",
        E8,
        change("nvidia.fabric_manager", {"package_version": "580.159.04-1", "active": False}),
        {},
        "blocker",
    ),
    ("driver.nscq", E8, change("nvidia.nscq", "580.95.05-1"), {}, "warning"),
    (
        "driver.imex",
        E8,
        change("nvidia.packages", {"nvidia-imex-570": "570.133.20-1"}),
        {},
        "warning",
    ),
    (
        "driver.open_module",
        E8,
        several(
            change("gpus", [g | {"compute_capability": "10.0"} for g in gpu_facts()["gpus"]]),
            change("nvidia.open_module", False),
        ),
        {},
        "blocker",
    ),
    ("driver.hold", E8, change("nvidia.held", False), {}, "warning"),
    (
        "driver.stock",
        E8,
        several(
            change("nvidia.driver_loaded", "535.183.01"),
            change("nvidia.driver_installed", "535.183.01"),
        ),
        {},
        "info",
    ),
    ("driver.persistence", E8, change("gpus.0.persistence", False), {}, "info"),
    ("gpu.nvfp4", E8, None, {"weights_format": "nvfp4"}, "info"),
    (
        "engine.flag",
        E8,
        None,
        {ARGS: {"language-model-only": True}, "engine_version": "0.15.0"},
        "blocker",
    ),
    (
        "engine.flag",
        E8,
        None,
        {ARGS: {"num-redundant-experts": 8}, "engine_version": "0.11.1"},
        "warning",
    ),
    (
        "engine.known_broken",
        E8,
        None,
        {"kv_dtype": "fp8", "engine_version": "0.15.0"},
        "blocker",
    ),
    (
        "engine.known_broken",
        lambda: hybrid_facts(4),
        None,
        {"model": "kimi-k2.6", "engine": "ktransformers", ARGS: {"tensor-parallel-size": 4}},
        "blocker",
    ),
    ("engine.kv_dtype", NVL, change("gpus", []), {"kv_dtype": "fp8"}, "warning"),
    (
        "engine.kv_dtype",
        lambda: gpu_facts(8, 81920),
        change("gpus", [g | {"compute_capability": "8.0"} for g in gpu_facts(8, 81920)["gpus"]]),
        {"kv_dtype": "fp8"},
        "blocker",
    ),
    (
        "engine.kv_dtype_chosen",
        E8,
        change("gpus", gpu_facts(8, 81559)["gpus"]),
        {ARGS: {"tensor-parallel-size": 8}},
        "info",
    ),
    ("engine.tight", E8, change("gpus", gpu_facts(8, 81559)["gpus"]), {}, "warning"),
    ("engine.eager", E8, None, {ARGS: {"enforce-eager": True}}, "warning"),
    ("engine.eager", E8, None, {ARGS: {"optimization-level": 0}}, "warning"),
    (
        "engine.eager",
        E8,
        None,
        {ARGS: {"compilation-config": {"cudagraph_mode": "NONE"}}},
        "warning",
    ),
    (
        "engine.sequences",
        E8,
        change("gpus", gpu_facts(8, 81559)["gpus"]),
        {"concurrency": 1024},
        "warning",
    ),
    ("engine.override", E8, None, {"engine": "ktransformers"}, "info"),
    ("weights.format_override", E8, None, {"weights_format": "nvfp4"}, "info"),
    ("group.proven", eight_h100, None, {"hosts_per_model": 2}, "info"),
    ("group.unproven", E8, None, {"hosts_per_model": 4}, "warning"),
    ("group.engine", NVL, None, {"hosts_per_model": 2, "engine": "ktransformers"}, "blocker"),
    (
        "group.ray",
        E8,
        None,
        {"hosts_per_model": 2, ARGS: {"distributed-executor-backend": "ray"}},
        "blocker",
    ),
    (
        "group.layout",
        E8,
        None,
        {"hosts_per_model": 2, ARGS: {"pipeline-parallel-size": 1}},
        "blocker",
    ),
    ("gpu.held", E8, change("gpus.2.memory_used_bytes", 70 * GIB), {}, "warning"),
    (
        "engine.speculative",
        E8,
        None,
        {ARGS: {"speculative-config": {"method": "eagle3", "model": "x"}}},
        "info",
    ),
    *(
        ("weights.code_in_clear", machine, None, settings, "blocker")
        for machine, settings in (
            (E8, {"weights_source": "http://mirror.example.com/kimi"}),
            (NVL, {"weights_source": "http://mirror.example.com/kimi"}),
            (E8, {"hf_endpoint": "http://hub.example.com"}),
            (
                E8,
                {
                    "weights_source": "file:///srv/model",
                    "speculative_model": "kimi-k2.5-eagle3-mla",
                    "draft_weights_source": "http://mirror.example.com/draft",
                },
            ),
        )
    ),
]
# Rules that compare hosts: tests/unit/planner/hosts/test_groups.py and test_group_network_rules.py.
COMPARED = {
    *("group.settings", "group.unlike"),
    *("group.address", "group.gid", "group.link", "group.mtu", "group.rdma"),
}
# What drafts and a cache in host memory gain: test_draft_rules.py, memory/test_offload.py.
GAINS = {"engine.draft_gain", "engine.draft_context", "engine.cache_offload"}
# Rules that say something of every machine of their kind.
ALWAYS: list[tuple[str, Callable[[], dict[str, Any]], dict[str, Any], str]] = [
    ("cpu.identity", NVL, {}, "info"),
    ("numa.sub_nodes", lambda: snc(4), {}, "info"),
    ("kv.replication", E8, {}, "info"),
    ("engine.reasoning", E8, {}, "info"),
    ("engine.alternative", lambda: metal_facts(gib=1024, cores=96), {}, "info"),
    ("gpu.unknown", lambda: strange_cards(gpu_facts()), {}, "info"),
    ("gpu.shared_memory", lambda: strange_cards(gpu_facts(), "NVIDIA GB10"), {}, "warning"),
    ("weights.sibling", gpu_facts, {"model": "deepseek-v3.1"}, "warning"),
    ("experts.dense", lambda: metal_facts(gib=1024, cores=96), {}, "info"),
    (
        "experts.dense",
        lambda: metal_facts(gib=1024, cores=96),
        {"dense_weights": "int8"},
        "warning",
    ),
]


def strange_cards(facts: dict[str, Any], name: str = "Strange Card 9000") -> dict[str, Any]:
    for card in facts["gpus"]:
        card["model"] = name
    return facts


@pytest.mark.parametrize(
    ("identity", "machine", "broken", "settings", "severity"),
    TABLE,
    ids=[f"{row[0]}-{n}" for n, row in enumerate(TABLE)],
)
def test_a_rule_speaks_where_it_should_and_only_there(
    identity: str,
    machine: Callable[[], dict[str, Any]],
    broken: Callable[[dict[str, Any]], None] | None,
    settings: dict[str, Any],
    severity: str,
) -> None:
    well = machine()
    before = [row["severity"] for row in found(plan(well, **HUGE), identity)]
    facts = copy.deepcopy(machine())
    if broken:
        broken(facts)
    rows = found(plan(facts, **(HUGE | settings)), identity)
    assert severity in {row["severity"] for row in rows}
    assert severity not in before
    for row in rows:
        assert row["title"]
        assert row["observed"]
        assert row["required"]
        assert row["source"]
        assert row["fix"] or row["severity"] in ("info", "pass")


@pytest.mark.parametrize(("identity", "machine", "settings", "severity"), ALWAYS)
def test_a_rule_says_what_was_assumed(
    identity: str, machine: Callable[[], dict[str, Any]], settings: dict[str, Any], severity: str
) -> None:
    rows = found(plan(machine(), **(HUGE | settings)), identity)
    assert [row["severity"] for row in rows] == [severity]


def test_every_rule_has_a_test() -> None:
    assert {row[0] for row in [*TABLE, *ALWAYS]} | COMPARED | GAINS == set(RULES)


@pytest.mark.parametrize(
    "settings",
    [
        {"weights_source": "https://mirror.example.com/kimi"},
        {"weights_source": "file:///srv/model", "hf_endpoint": "http://hub.example.com"},
        {
            "weights_source": "http://mirror.example.com/kimi",
            "engine_args": {"trust-remote-code": None},
        },
        {"model": "kimi-k2-lab", "weights_source": "http://mirror.example.com/kimi"},
    ],
)
def test_http_alone_without_code_or_code_alone_without_http_is_no_blocker(
    settings: dict[str, Any],
) -> None:
    assert not found(plan(gpu_facts(), **(HUGE | settings)), "weights.code_in_clear")


def test_a_manifest_allows_http_for_code(tmp_path: Path) -> None:
    file = tmp_path / "kimi.json"
    row = {"path": "model.safetensors", "size": 5, "sha256": "0" * 64}
    file.write_text(json.dumps({"files": [row]}))
    wishes = {"weights_source": "http://mirror.example.com/kimi"}
    blocked = blocked_by(plan(gpu_facts(), **(HUGE | wishes)))
    pinned = plan(gpu_facts(), **(HUGE | wishes), weights_manifest=str(file))
    assert blocked == {"weights.code_in_clear"}
    assert not found(pinned, "weights.code_in_clear")


def converged(facts: dict[str, Any]) -> dict[str, Any]:
    """The machine after its packages were installed."""
    names = plan(facts, **HUGE)["packages"]
    facts["packages"]["installed"] = dict.fromkeys(names, "1")
    return facts


@pytest.mark.parametrize("state", [{"busy": APT}, {"unfinished": ["nginx"]}])
def test_what_dpkg_is_at_matters_only_where_it_has_work_of_ours(state: dict[str, Any]) -> None:
    facts = converged(gpu_facts())
    facts["packages"] |= state
    rows = {row["id"] for row in plan(facts, **HUGE)["findings"]}
    assert not rows & {"packages.busy", "packages.unfinished"}
    facts["packages"]["installed"] = None
    assert not found(plan(facts, **HUGE), "packages.unfinished"), "another package manager"


def test_packages_that_are_being_installed_now_are_not_unfinished() -> None:
    facts = gpu_facts()
    facts["packages"] |= {"busy": APT, "unfinished": ["nginx"]}
    document = plan(facts, **HUGE)
    assert not found(document, "packages.unfinished")
    assert "apt-get (PID 812) holds" in found(document, "packages.busy")[0]["observed"]


def test_many_unfinished_packages_are_counted() -> None:
    facts = gpu_facts()
    facts["packages"]["unfinished"] = [f"p{n}" for n in range(20)]
    row = found(plan(facts, **HUGE), "packages.unfinished")[0]
    assert row["observed"].endswith("p7 and 12 more")
    assert "dpkg --configure -a" in row["fix"]


def test_our_own_engine_may_hold_the_gpus() -> None:
    facts = gpu_facts()
    facts["gpus"][0]["memory_used_bytes"] = 130 * GIB
    facts["kimi"]["units"] = {"kimi-serve@0.service": "active"}
    assert not found(plan(facts, **HUGE), "gpu.held")


def test_a_small_model_of_the_lab_is_not_bothered() -> None:
    rules = {row["id"] for row in plan()["findings"]} & set(RULES)
    assert rules == set()


def test_three_nodes_of_a_socket_leave_pools_idle() -> None:
    document = plan(snc(6), **HUGE)
    assert document["hybrid"]["pools"] == 4
    assert document["hybrid"]["nodes"] == [0, 1, 3, 4]
    assert found(document, "numa.pools")[0]["severity"] == "warning"
    assert not found(plan(snc(8), **HUGE), "numa.pools")


def test_a_node_that_cannot_hold_its_share_is_a_blocker() -> None:
    facts = hybrid_facts(gib=768)
    facts["numa"]["nodes"][1]["memory_total_bytes"] = 200 * GIB
    assert "numa.node_memory" in blocked_by(plan(facts, **HUGE))


@pytest.mark.parametrize(
    ("installed", "loaded", "rule"),
    [
        ("580.159.04", "575.57.08", "driver.restart"),
        ("570.133.20", "570.133.20", "driver.branch"),
    ],
)
def test_a_driver_that_has_to_be_mended(installed: str, loaded: str, rule: str) -> None:
    facts = gpu_facts(driver=loaded)
    facts["nvidia"]["driver_installed"] = installed
    document = plan(facts, **HUGE)
    assert rule in blocked_by(document)
    assert document["driver"]["action"] == {"driver.restart": "restart"}.get(rule, "install")
    if rule == "driver.branch":
        assert "PTX JIT compilation failed" in found(document, rule)[0]["required"]


def test_a_driver_that_is_installed_and_not_loaded() -> None:
    facts = gpu_facts()
    facts["nvidia"]["driver_loaded"] = None
    assert found(plan(facts, **HUGE), "driver.not_loaded")[0]["severity"] == "warning"


def test_an_engine_too_old_for_the_model_is_a_blocker() -> None:
    document = plan(gpu_facts(), engine_version="0.11.1", **HUGE)
    assert "engine.too_old" in blocked_by(document)
    newer = plan(gpu_facts(), **(HUGE | {"model": "kimi-k2.6"}))
    assert not found(newer, "engine.too_old")


def test_what_a_broken_row_says_to_set_ends_its_warning() -> None:
    given = {"model": "kimi-k2", "weights_format": "fp8", "engine": "ktransformers"}

    def told(**more: Any) -> list[str]:
        facts = hybrid_facts(4)
        for card in facts["gpus"]:
            card["compute_capability"] = "12.0"
        rows = found(plan(facts, **HUGE | given | more), "engine.known_broken")
        return [row["fix"] for row in rows if "FP8" in row["title"]]

    assert told() == ["set kimi_engine_args: {fp8-gemm-backend: triton}"]
    assert told(engine_args={"fp8-gemm-backend": "triton"}) == []
    assert len(told(engine_args={"fp8-gemm-backend": "deep_gemm"})) == 1


def test_a_model_that_no_recipe_knows_is_a_warning() -> None:
    document = plan(gpu_facts(), **(HUGE | {"model": "glm-5.2"}))
    assert found(document, "engine.model_unknown")[0]["severity"] == "warning"


def test_a_lab_container_is_served_as_before() -> None:
    """The path that is provisioned today: its command line and environment do not move."""
    document = plan(lab_facts())
    instance = document["instances"][0]
    # The path that really runs, not the link to it.
    assert instance["argv"] == [
        *[f"{document['engine']['env_dir']}/bin/python", "-m"],
        "vllm.entrypoints.openai.api_server",
        *["--model", "/srv/kimi/ram/kimi-k2-lab/lab-1", "--served-model-name", "kimi-k2-lab"],
        *["--host", "127.0.0.1", "--port", "8001", "--max-model-len", "4096"],
        *["--max-num-seqs", "16", "--dtype", "bfloat16", "--enforce-eager"],
        *["--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2"],
        *["--reasoning-parser", "kimi_k2"],
    ]
    assert set(instance["env"]) == {
        *["DO_NOT_TRACK", "HF_HOME", "HF_HUB_OFFLINE", "TORCHDYNAMO_DISABLE"],
        *["TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "VLLM_CPU_KVCACHE_SPACE"],
        *["VLLM_CPU_OMP_THREADS_BIND", "VLLM_NO_USAGE_STATS", "XDG_CACHE_HOME"],
    }


def test_a_node_without_room_for_what_is_bound_to_it_is_refused_before_the_first_start() -> None:
    facts = metal_facts(gib=64)
    for row in facts["numa"]["nodes"]:
        row["memory_available_bytes"] = 30 << 30
    assert not found(plan(facts), "numa.node_room")
    facts["numa"]["nodes"][1]["memory_available_bytes"] = 2 << 30
    (refused,) = found(plan(facts), "numa.node_room")
    assert refused["severity"] == "blocker"
    assert "node 1: 2.0 GiB" in refused["observed"]
    # What is not bound there does not need it.
    assert not found(plan(facts, instances=1), "numa.node_room")
    # A converged host has used what it was given.
    facts["kimi"]["units"] = {"kimi-serve@1.service": "active"}
    assert not found(plan(facts), "numa.node_room")
