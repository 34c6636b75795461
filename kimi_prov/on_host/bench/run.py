"""`bench start|run|result`: how fast this machine is, and the model that it serves.

`start [FILE]` reads a load and its prompts from a file of the control machine, and runs the
measurement as the transient unit kimi-bench.service, so that a cut connection does not lose it;
`run` is the work of that unit; `result` prints the result and removes the unit.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import groups, protection, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.cpu_lists import parse_list
from kimi_prov.contract.errors import NOT_APPLIED, HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.bench import load as bench_load
from kimi_prov.on_host.bench.environment import Engine, Say, has_gpus
from kimi_prov.on_host.bench.serving import measure_service
from kimi_prov.on_host.endpoint import smoke_test
from kimi_prov.on_host.lifecycle import status
from kimi_prov.on_host.probe import collect, measure
from kimi_prov.on_host.system import plans
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_json, read_text, remove, write_json
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.on_host.system.process import run
from kimi_prov.on_host.system.progress import Progress

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import BenchAnswer
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan

PROGRESS = f"{layout.PROGRESS}/bench.json"
RESULT = f"{layout.RUN}/bench.json"
# The requested load, and the prompts of a file: removed when the unit has read them.
LOAD = f"{layout.RUN}/bench-load.json"
# The parts of the plan that the control machine gets.
_OF_PLAN = ("engine", "model", "throughput", "parallel", "hybrid", "experts", "stand_in")
_BATCHES = (1, 4, 64)
# Both keep 4 bits a weight and a scale for 32 of them: kt-kernel's scale has 4 bytes, that of the
# plugin's own kernel 2.
_RESIDENT_BYTES_PER_WEIGHT = {"kt": 0.625, "native": 0.5625}
_SHARE_OF_FREE = 0.6
# Bytes for reading through torch: large beside any cache, small beside memory.
_READ_BYTES, _READ_SHARE = 4 << 30, 8


def main(argv: list[str]) -> int:
    """Run the named verb."""
    action = argv[0] if argv else ""
    if action == "run":
        return measure_all()
    if action == "start":
        return answer({"ok": True, "load": start(argv[1] if len(argv) > 1 else None)})
    if action == "result":
        return answer(read_result())
    raise HostError("usage: bench start [FILE]|run|result")


def start(file: str | None) -> dict[str, Any] | None:
    """Start the unit with the load of a file, or without one; stop an earlier unit first.

    Returns the load that it took, so that the sender sees that this version knows loads.
    """
    plan = plans.read_machine_plan(layout.PLAN)
    if not plan:
        raise _make_no_plan_error()
    if not groups.serves_clients(plan):
        raise groups.make_head_only_error(plan, "the model is measured")
    if rests := status.find_refusal(Paths()):
        raise rests
    _end_unit()
    asked = read_json(file) if file else {}
    if file and "load" not in asked:
        raise HostError(f"{file}: this is not a load of a bench", "run `kimi-prov bench` again")
    load = bench_load.from_document(asked.get("load") or {})
    refused = bench_load.find_refusal(
        load, plan, lambda path: Path(path).read_text(encoding="utf-8")
    )
    if refused:
        raise refused
    # A load that does not fit is reported before anything is measured.
    bench_load.choose_lengths(load, plan["throughput"], int(plan["model"]["context"]))
    write_json(LOAD, asked, durable=False, mode=0o600)
    done = run(
        "systemd-run",
        "--quiet",
        "--no-block",
        f"--unit={unit_names.BENCH}",
        "--description=Kimi: measuring",
        "--service-type=oneshot",
        "--remain-after-exit",
        f"--property=TimeoutStartSec={bench_load.LIMIT_S}",
        # The unit writes progress and result there, and the sandbox's environment.
        *protection.build_run_options("measuring", gpus=has_gpus(plan), write=[layout.RUN]),
        sys.executable,
        "-I",
        layout.ZIPAPP,
        "bench",
        "run",
    )
    if done.returncode != 0:
        remove(LOAD)
        raise HostError(f"{unit_names.BENCH} cannot be started: {done.stderr.strip()}")
    found: dict[str, Any] | None = asked.get("load")
    return found


def read_result() -> dict[str, Any]:
    """Print the result."""
    found = read_json(RESULT)
    _end_unit()
    if not found:
        raise HostError(
            "nothing was measured", f"read why: journalctl -u {unit_names.BENCH}", retryable=True
        )
    return found


def _end_unit() -> None:
    """Stop the unit; remove the request and the result."""
    run("systemctl", "stop", unit_names.BENCH)
    run("systemctl", "reset-failed", unit_names.BENCH)
    remove(RESULT)
    remove(LOAD)


def measure_all() -> int:
    """Measure memory, kernel and service, and write the result; 1 where the service fails."""
    with Progress(PROGRESS, "bench") as progress:
        try:
            asked = read_json(LOAD) or {}
            # Removed at once: a unit that is stopped cleans nothing up.
            remove(LOAD)
            document = _measure_all(Paths(), lambda line: progress.say(line, log=False), asked)
        except HostError as error:
            progress.fail(error)
            return 1
        write_json(RESULT, document, durable=False, mode=0o600)
        progress.done("measured")
    return 0


def _make_no_plan_error() -> HostError:
    return HostError(*NOT_APPLIED)


def _measure_all(paths: Paths, say: Say, asked: dict[str, Any]) -> BenchAnswer:
    plan = plans.read_machine_plan(paths.plan)
    if not plan:
        raise _make_no_plan_error()
    say("asking for one token through the port")
    refusal = smoke_test.try_once(paths, plan)
    if refusal:
        raise HostError(
            f"the model does not answer through the port ({refusal})", "run `kimi-prov status`"
        )
    machine = Machine()
    facts = collect.collect(machine)
    load = os.getloadavg()[0]
    engine = Engine(plan)
    return {
        "plan": {
            **{name: plan.get(name) for name in _OF_PLAN},
            "instances": len(plan["instances"]),
        },
        "load": round(load, 2),
        "busy": measure.is_busy(load, facts),
        "facts": facts,
        "memory": measure_memory(machine, facts, engine, say),
        "layer": measure_layer(plan, facts, engine, say),
        "serve": measure_service(plan, paths, engine, say, asked),
    }


def measure_memory(machine: Machine, facts: Facts, engine: Engine, say: Say) -> dict[str, Any]:
    """Measure memory as `probe --measure` does, else by the engine's torch; `by` names which."""
    say("memory bandwidth")
    found = measure.measure_memory(machine, facts)
    if found["bytes_per_s"]:
        return {**found, "by": "probe"}
    free = facts["memory"]["available_bytes"] or 8 * _READ_BYTES
    config = {
        "threads": facts["cpu"]["cores"] or facts["cpu"]["threads"] or 1,
        "bytes": min(_READ_BYTES, free // _READ_SHARE),
    }
    try:
        speed = engine.run("memory", config, lambda _: None)["bytes_per_s"]
    except HostError as error:
        return {**found, "by": None, "reason": f"{found['reason']}; by torch: {error}"}
    return {"bytes_per_s": speed, "by": "torch", "reason": None, "nodes": [], "seconds": None}


def measure_layer(plan: MachinePlan, facts: Facts, engine: Engine, say: Say) -> dict[str, Any]:
    """Run one MoE layer of the model's own shape by the installed kernel, where there is one."""
    shape, reason = read_layer_shape(plan, read_text)
    if shape is None:
        return {"available": False, "reason": reason}
    free = int((facts["memory"]["available_bytes"] or 0) * _SHARE_OF_FREE)
    fitting = free // shape["bytes_per_expert"]
    whole = shape["experts"]
    if fitting < 4 * shape["top_k"]:
        reason = f"{format_bytes(free)} of memory hold too few experts of a layer"
        return {"available": False, "reason": reason}
    shape["experts"] = min(whole, fitting)
    size = shape["experts"] * shape["bytes_per_expert"]
    say(f"one MoE layer: {shape['experts']} of {whole} experts, {format_bytes(size)}")
    try:
        found = engine.run(
            "layer",
            {**shape, "batches": list(_BATCHES)},
            lambda _: None,
            before=tuple(plan["instances"][0]["numactl"]),
        )
    except HostError as error:
        return {"available": False, "reason": str(error)}
    return {
        "available": True,
        "reason": None if shape["experts"] == whole else "memory is short for all experts",
        "method": "RAWINT4" if shape["by"] == "kt" else "native",
        "experts": shape["experts"],
        "experts_of_model": whole,
        "layers_of_model": shape["layers"],
        "threads": shape["threads"],
        "bytes": size,
        **found,
    }


def read_layer_shape(
    plan: MachinePlan, read: Callable[[Path], str]
) -> tuple[dict[str, Any] | None, str]:
    """Read the shape of a layer of experts and how the engine runs it, or the reason for none."""
    ran = find_kernel(plan)
    if isinstance(ran, str):
        return None, ran
    backend, threads, nodes = ran
    config = json.loads(read(_find_config(plan)))
    text = config.get("text_config") or config
    hidden, inner = int(text["hidden_size"]), int(text["moe_intermediate_size"])
    return {
        "experts": int(text["n_routed_experts"]),
        "top_k": int(text["num_experts_per_tok"]),
        "hidden": hidden,
        "intermediate": inner,
        "layers": int(text["num_hidden_layers"]) - int(text.get("first_k_dense_replace") or 0),
        "by": backend,
        "bytes_per_expert": int(3 * hidden * inner * _RESIDENT_BYTES_PER_WEIGHT[backend]),
        "threads": threads,
        "nodes": nodes,
    }, ""


def find_kernel(plan: MachinePlan) -> tuple[str, int, list[int]] | str:
    """Return the kernel of the experts, its threads and NUMA nodes, or why there is none.

    kt-kernel's server has them on the command line; vLLM's plugin for experts reads its
    environment, and its own kernel computes in vLLM's threads.
    """
    engine, instance = plan["engine"]["name"], plan["instances"][0]
    env = instance["env"]
    if engine == "vllm" and env.get("KIMI_EXPERTS") == "kt":
        return "kt", int(env["KIMI_KT_THREADS"]), parse_list(env["KIMI_KT_NODES"])
    if engine == "vllm" and env.get("KIMI_EXPERTS") == "native":
        return "native", len(parse_list(env["VLLM_CPU_OMP_THREADS_BIND"])), []
    if engine != "ktransformers":
        return f"the engine {engine} has no kt-kernel"
    argv = instance["argv"]
    method = _list_flag_values(argv, "--kt-method")[:1]
    if method != ["RAWINT4"]:
        return f"only RAWINT4 is measured, the engine runs {''.join(method) or 'another'}"
    pools = int((_list_flag_values(argv, "--kt-threadpool-count") or ["1"])[0])
    nodes = [int(word) for word in _list_flag_values(argv, "--kt-numa-nodes")] or list(range(pools))
    return "kt", int((_list_flag_values(argv, "--kt-cpuinfer") or ["1"])[0]), nodes


def _find_config(plan: MachinePlan) -> Path:
    return Path(plan["model"]["serve_dir"]) / "config.json"


def _list_flag_values(argv: list[str], name: str) -> list[str]:
    """Return the values that follow a flag, none where it is not given."""
    if name not in argv:
        return []
    found = []
    for word in argv[argv.index(name) + 1 :]:
        if word.startswith("--"):
            break
        found.append(word)
    return found
