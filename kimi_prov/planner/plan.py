"""Facts, settings and the catalogue become the plan: every decision of the product, made here.

Decides: the order of decisions and the keys of the plan.
Applied by: roles/plan.
Held by: tests/unit/planner/test_plan.py, tests/component/planner/test_plan_bytes.py.
Decides: what a finding is and what its severity does (what stops `apply`).
Decides: the break-even of a purchase (how many requests at once are tried).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from kimi_prov.contract import paths, unit_names
from kimi_prov.facts import gpu_names
from kimi_prov.facts.host import read_host
from kimi_prov.planner import gateways, remediation, rules, stand_in, web
from kimi_prov.planner.decisions import ServedModel
from kimi_prov.planner.engine import expert_backend, moe_tuning, speculative
from kimi_prov.planner.findings import Findings
from kimi_prov.planner.hosts import groups, site
from kimi_prov.planner.memory import budgets, checks, hybrid, placement
from kimi_prov.planner.registry import DEFINITIONS
from kimi_prov.planner.rules.context import PlanContext
from kimi_prov.planner.selection import command, engine
from kimi_prov.planner.service import certificates, lifecycle, metrics, proxy, timeouts, watchdog
from kimi_prov.planner.settings import flag_names
from kimi_prov.planner.software import driver, installation, system
from kimi_prov.planner.storage import conversion, disk, ram_disk, weights
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan, Plan
    from kimi_prov.contract.documents.plan.engine import (
        CacheType,
        EngineName,
        EnginePlan,
        EngineVariant,
        ModelPlan,
    )
    from kimi_prov.contract.documents.plan.estimates import (
        MoreRequests,
        SpeedsByRequests,
        ThroughputPlan,
    )
    from kimi_prov.planner.decisions import Budget, EngineChoice, Weights
    from kimi_prov.planner.gateways import GatewayAddress
    from kimi_prov.planner.hosts.groups import Group, GroupHosts
    from kimi_prov.planner.settings.parsing import Settings

SCHEMA: Final = "kimi-prov/plan/v1"
# More requests at once than that say nothing of a single machine.
_MAX_REQUESTS = 4096
# A gain below that is the estimate's own rounding.
_MIN_GAIN = 1.01
# Speeds have three figures: what the cache holds of the requests is known as well as that.
_ALL_RUNNING_SHARE = 0.985
_CURVE_KEYS = ("concurrency", "decode_tok_s", "aggregate_tok_s", "prefill_tok_s", "ttft_s")
_MORE_REQUESTS_KEYS = ("concurrency", "aggregate_tok_s", "prefill_tok_s")


def make_plan(
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None = None,
    before: Sequence[GatewayAddress] = (),
) -> MachinePlan:
    """Decide everything for one machine. Pure: the same input gives the same plan.

    `hosts`: those that serve the model together with it, itself among them; without them it is one
    of `kimi_hosts_per_model` equal ones, the head. `before`: the gateways through which clients
    come. Nothing that moves by itself (free memory, free disk, what is converged already) is in the
    plan, findings aside. Raises UserError for an unknown model.
    """
    return _make_plan(facts, settings, catalogue, hosts, before)[0]


def make_plan_with_curve(
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None = None,
    before: Sequence[GatewayAddress] = (),
) -> MachinePlan:
    """Plan as `make_plan`, and add to `throughput` what more and fewer requests at once do.

    `curve`: speeds of 1, 2, 4, ... requests at once and of the planned number, up to as many as
    run. Up to the planned number they are of the machine as planned, above it of a plan of their
    own; one that the machine does not serve, or whose context does not hold such a request, ends
    the curve. `more_requests`: those above the planned number, as long as they gain and the context
    stays.
    """
    plan, speeds = _make_plan(facts, settings, catalogue, hosts, before)
    points = _make_curve(plan, speeds, facts, settings, catalogue, hosts)
    rows: list[SpeedsByRequests] = [
        {
            "concurrency": point.row["concurrency"],
            "decode_tok_s": point.row["decode_tok_s"],
            "aggregate_tok_s": point.row["aggregate_tok_s"],
            "prefill_tok_s": point.row["prefill_tok_s"],
            "ttft_s": point.row["ttft_s"],
        }
        for point in points
    ]
    more: list[MoreRequests] = []
    best = plan["throughput"]["aggregate_tok_s"]["expected"] or 0.0
    for row, point in zip(rows, points, strict=True):
        if row["concurrency"] > settings.concurrency:
            speed = row["aggregate_tok_s"]["expected"] or 0.0
            if point.context < plan["model"]["context"] or speed < best * _MIN_GAIN:
                break
            best = speed
            more.append(
                {
                    "concurrency": row["concurrency"],
                    "aggregate_tok_s": row["aggregate_tok_s"],
                    "prefill_tok_s": row["prefill_tok_s"],
                }
            )
    return {**plan, "throughput": {**plan["throughput"], "more_requests": more, "curve": rows}}


class _CurvePoint(NamedTuple):
    """A plan's `throughput` for a number of requests at once, and the context it has then."""

    row: ThroughputPlan
    context: int


def _make_curve(
    plan: MachinePlan,
    speeds: Callable[[int], ThroughputPlan],
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None,
) -> list[_CurvePoint]:
    """Give a point for each number of requests at once."""
    planned, known = settings.concurrency, {row["id"] for row in find_blockers(plan)}
    # A context that was asked for stays; one that was chosen has to hold a request.
    context: int = plan["model"]["context"]
    least = min(context, settings.request_tokens) if settings.auto("context") else context

    def plan_point(many: int) -> _CurvePoint | None:
        if many <= planned:
            return _CurvePoint(speeds(many), context)
        other, _ = _make_plan(facts, replace(settings, concurrency=many), catalogue, hosts)
        refused = {row["id"] for row in find_blockers(other)} - known
        if refused or other["model"]["context"] < least:
            return None
        return _CurvePoint(other["throughput"], other["model"]["context"])

    points: list[_CurvePoint] = []
    doubled = (1 << power for power in range(_MAX_REQUESTS.bit_length()))
    for many in sorted({planned, *doubled}):
        point = plan_point(many)
        if point is None or not point.row["decode_tok_s"]["expected"]:
            break
        total = point.row["aggregate_tok_s"]["expected"] or 0.0
        running = total / point.row["decode_tok_s"]["expected"]
        if running < many * _ALL_RUNNING_SHARE:
            most = round(running)
            if points and most > points[-1].row["concurrency"]:
                last = plan_point(most)
                points += [last] if last else []
            break
        points.append(point)
    return points


def _make_plan(
    facts: Facts,
    settings: Settings,
    catalogue: Catalogue,
    hosts: GroupHosts | None,
    before: Sequence[GatewayAddress] = (),
) -> tuple[MachinePlan, Callable[[int], ThroughputPlan]]:
    """Give the plan, and what gives its `throughput` with so many requests at once."""
    hosts = hosts or groups.make_equal_group(facts, settings)
    group = hosts.group(catalogue) if hosts else None
    settings = groups.adjust_settings(settings, group)
    elsewhere = gateways.check_web_ui(settings, before)
    settings = gateways.limit_to_gateways(settings, before)
    made, speeds = _plan_alone(facts, settings, catalogue, group)
    if settings.engine_stand_in:
        instead = stand_in.adjust_settings(settings, made["model"]["served_names"])
        small = hosts.with_facts(stand_in.remove_gpus).group(catalogue) if hosts else None
        served = _plan_alone(stand_in.remove_gpus(facts), instead, catalogue, small)[0]
        made = stand_in.merge_plans(made, served)
    if before:
        made["gateways"] = gateways.make_document(before)
        made["paths"] = {**made["paths"], **gateways.list_usage_paths()}
        made["findings"] = [*made["findings"], *elsewhere]
    return made, speeds


def _plan_alone(
    facts: Facts, settings: Settings, catalogue: Catalogue, group: Group | None
) -> tuple[MachinePlan, Callable[[int], ThroughputPlan]]:
    findings = Findings()
    host = groups.limit_to_smallest(
        read_host(gpu_names.add_known_gpus(facts, catalogue), catalogue), group
    )
    model = catalogue.model(settings.model)
    system.check_system(host, catalogue, findings)
    choice = engine.choose_engine(host, settings, catalogue, model, findings)
    settings = engine.migrate_settings(host, settings, model, choice, catalogue, findings)
    draft = speculative.make_document(settings, catalogue, model, choice.engine, findings)
    driver_plan = driver.make_document(
        host, settings, choice.engine, catalogue, choice.weights_format, findings
    )
    budget = budgets.choose_budget(host, settings, model, choice, catalogue, findings)
    names = flag_names.find_flag_names(choice.engine.name)
    checks.check_memory(host, settings, model, budget, names, findings)
    checkpoint = weights.resolve_source(settings, model, choice.weights_format, findings)
    places = placement.choose_placements(host, model, choice, budget, catalogue, findings)
    place = places[0]
    bound = placement.measure_bound_memory(host, budget, places)
    proposed = command.make_flags(settings, model, choice, budget, place, host.capability)
    proposed |= speculative.make_flags(draft)
    flags = command.merge_flags(proposed, settings, names, findings)
    converted = conversion.choose_conversion(settings, model, choice, checkpoint, flags, findings)
    tmpfs = ram_disk.choose_ram_disk(
        host, settings, checkpoint, bound, findings, converted=converted
    )
    files_dir = checkpoint.directory.replace(paths.MODELS, paths.RAM, 1)
    served = ServedModel(
        files_dir if tmpfs.enabled else checkpoint.directory,
        list(settings.served_names) or [model.name],
        converted.directory if converted else None,
    )
    backends = proxy.list_backends(settings, 0 if group and group.rank else budget.instances)
    web.check_port(settings, budget.instances, findings)
    page = web.make_document(
        settings,
        catalogue,
        model,
        web.Runtime(choice.python, choice.interpreter, host.system.arch),
        served.names,
        budget.instances,
        findings,
    )
    watched = metrics.make_document(host, settings, backends, page, findings)
    proxy.check_ports(host, settings, backends, page, watched, group, findings)
    slots = groups.make_slots(group, settings, backends, on_cpu=not host.gpu_bytes)
    room, frees = disk.make_document(
        host,
        checkpoint,
        choice,
        findings,
        disk.OtherFiles(draft, converted, page),
        in_place=settings.upgrade_in_place,
    )
    warm = ram_disk.make_page_cache_document(tmpfs, host, checkpoint, bound.total, converted)

    def speeds(many: int) -> ThroughputPlan:
        asked = replace(settings, concurrency=many)
        return prediction.make_document(
            host, asked, model, choice, budget, place, in_memory=tmpfs.enabled
        )

    shown = _make_model_section(model, checkpoint, choice, budget, served)
    power = prediction.make_power_document(host, catalogue)
    predicted = speeds(settings.concurrency)
    lifecycle.report_engine_sleep(
        host,
        settings,
        choice.engine.name,
        (checkpoint.size_bytes, bound.total + (tmpfs.size_bytes if tmpfs.enabled else 0)),
        (predicted["load_s"] or {}).get("expected"),
        findings,
    )
    digest = groups.compute_digest(choice, shown, flags, served.names)
    together = groups.make_document(group, settings, digest)
    fetched = weights.make_document(
        settings, checkpoint, draft, conversion.make_fetch_document(converted, settings)
    )
    engine_plan = _make_engine_section(choice)
    site_plan = site.make_document(settings)
    instances = [
        command.make_instance(host, choice, budget, where, flags, slot, served)
        for where, slot in zip(places, slots, strict=True)
    ]
    plan: MachinePlan = {
        "schema": SCHEMA,
        "stand_in": None,
        "engine": engine_plan,
        "model": shown,
        "group": together,
        "weights": fetched,
        "conversion": conversion.make_document(converted, choice, model, flags),
        "instances": instances,
        "memory": budgets.make_document(budget, host, tmpfs.size_bytes),
        "parallel": budgets.make_parallel_document(budget, flags, settings.hosts_per_model),
        "hybrid": hybrid.make_document(choice, budget, place),
        "experts": expert_backend.make_document(choice.experts, place, choice.dense),
        "speculative": speculative.make_section(draft),
        "throughput": predicted,
        "moe_tuning": moe_tuning.make_document(choice, model, budget, served.directory),
        "power": power,
        "ram_disk": ram_disk.make_document(tmpfs, host, files_dir, warm),
        "warm": warm,
        "disk": room,
        "upgrade": {
            "in_place": settings.upgrade_in_place,
            "min_speed": settings.upgrade_min_speed,
            "keep_versions": settings.keep_versions,
            "frees": frees,
            # What serves is no part of a plan: who has reached the machine compares.
            "switches": False,
        },
        "tuning": system.choose_tuning(host, on_cpu=not host.gpu_bytes),
        "proxy": proxy.make_document(host, settings, backends),
        "firewall": proxy.make_firewall_document(host, settings, together, watched),
        "web": page,
        "metrics": watched,
        "rest": lifecycle.make_document(
            settings, tmpfs, fetched["source"], findings, catalogue, power, group
        ),
        "drift": {"timer": settings.drift_timer},
        "usage": {"keep_days": settings.usage_keep_days},
        "driver": driver_plan,
        "nccl": {"guard": bool(host.gpu_bytes) and not host.amd},
        "packages": system.list_packages(
            host,
            None if choice.interpreter else choice.python.path,
            system.PackageGroups(
                kernel=choice.experts is not None,
                drives=driver_plan["repository"] is not None,
                orders=certificates.choose_mode(settings) == "acme",
                watched=watched is not None,
                buckets="bucket" in fetched,
            ),
            compiles=command.is_compiling(choice, flags),
        ),
        "site": site_plan,
        "control": {
            "api_keys_file": settings.api_keys_file,
            "hf_token_file": settings.hf_token_file,
            "web_admin_file": settings.web_admin_file,
            "metrics_key_file": settings.metrics_key_file,
        },
        "timeouts": timeouts.make_document(settings, checkpoint),
        "paths": paths.collect_paths(),
        "units": unit_names.collect_units(),
        "marks": paths.collect_marks(),
        "users": paths.collect_users(),
        "installation": installation.make_document(
            settings,
            choice,
            catalogue,
            engine_plan["env_dir"],
            instances[0],
            fetched,
            site_plan["proxy"],
        ),
        "watchdog": watchdog.make_document(
            settings, catalogue, engine_plan, flags, budget.context, predicted, together
        ),
        "findings": [],
    }
    if "bucket" in fetched:
        plan["control"]["bucket_credentials_file"] = settings.bucket_credentials_file
    proxy.check_access(settings, group, findings)
    context = PlanContext(
        host, settings, catalogue, model, choice, budget, place, bound, proposed, flags, plan, group
    )
    findings.extend(rules.check_rules(context))
    return {**plan, "findings": remediation.price_findings(findings.rows(), context)}, speeds


def find_blockers(plan: Plan) -> list[Finding]:
    """Return the findings that forbid to go on."""
    return [row for row in plan["findings"] if row["severity"] == "blocker"]


def find_refusals(plan: Plan) -> list[Finding]:
    """Return what forbids `apply`: the blockers, and what this version plans but cannot apply.

    The plan is a true answer for a buyer without these; a machine must not be half provisioned.
    What `apply` itself fixes does not forbid it.
    """
    not_applied: list[Finding] = [
        {**row, "severity": "blocker"}
        for row in plan["findings"]
        if DEFINITIONS[row["id"]].blocks_apply and row["severity"] != "blocker"
    ]
    fixed: set[str | None] = {"always", *(["driver"] if plan["driver"]["action"] != "none" else [])}
    found = [*find_blockers(plan), *not_applied]
    return [row for row in found if DEFINITIONS[row["id"]].fixed_by_apply not in fixed]


def _make_engine_section(choice: EngineChoice) -> EnginePlan:
    return {
        # The catalogue's rows have no others.
        "name": cast("EngineName", choice.engine.name),
        "variant": cast("EngineVariant", choice.engine.variant),
        "version": choice.engine.version,
        "reason": choice.reason,
        "distribution": choice.engine.distribution,
        "module": choice.engine.module,
        "torch": choice.engine.torch,
        "cuda": choice.engine.cuda,
        "env_name": choice.env_name,
        "env_dir": engine.make_env_dir(choice),
        "provisioned": choice.provisioned,
        "python": choice.python.path,
        "python_version": choice.python.version,
        "python_reason": choice.python_reason,
        "lock": choice.lock,
        "locks": choice.locks,
    }


def _make_model_section(
    model: Model,
    checkpoint: Weights,
    choice: EngineChoice,
    budget: Budget,
    served: ServedModel,
) -> ModelPlan:
    section: ModelPlan = {
        "name": model.name,
        "revision": checkpoint.revision,
        "dir": checkpoint.directory,
        "serve_dir": served.directory,
        "served_names": served.names,
        "random_weights": model.random_weights,
        "architecture": model.architecture.class_name,
        "context": budget.context,
        "context_max": model.context,
        "weights_format": choice.weights_format,
        "kv_dtype": cast("CacheType", budget.kv_dtype),
        "bytes": checkpoint.size_bytes,
    }
    if model.trained_on:
        section["trained_on"] = model.trained_on
    return section
