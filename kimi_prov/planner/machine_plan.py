"""One machine's plan: software, memory and access are decided in this order.

Decides: the order of decisions and the keys of the plan.
Applied by: roles/plan.
Held by: tests/unit/planner/test_plan.py, tests/component/planner/test_plan_bytes.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from kimi_prov.contract import key_rules, paths, unit_names
from kimi_prov.facts import gpu_names
from kimi_prov.facts.host import read_host
from kimi_prov.planner import remediation, rules, web
from kimi_prov.planner.decisions import ServedModel
from kimi_prov.planner.engine import expert_backend, moe_tuning, prepared, speculative
from kimi_prov.planner.findings import Findings
from kimi_prov.planner.hosts import groups, site
from kimi_prov.planner.memory import budgets, checks, hybrid, offload, placement
from kimi_prov.planner.rules.context import PlanContext
from kimi_prov.planner.selection import command, engine
from kimi_prov.planner.selection import served as kept
from kimi_prov.planner.service import (
    certificates,
    engine_sleep,
    lifecycle,
    metrics,
    proxy,
    request_size,
    timeouts,
    watchdog,
)
from kimi_prov.planner.service.power import make_power_document
from kimi_prov.planner.settings import flag_names
from kimi_prov.planner.software import driver, installation, system
from kimi_prov.planner.storage import conversion, disk, ram_disk, weights
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.engine import (
        CacheType,
        EngineName,
        EnginePlan,
        EngineVariant,
        InstancePlan,
        ModelPlan,
    )
    from kimi_prov.contract.documents.plan.estimates import PowerPlan, ThroughputPlan
    from kimi_prov.contract.documents.plan.group import GroupPlan
    from kimi_prov.contract.documents.plan.lifecycle import UpgradePlan
    from kimi_prov.contract.documents.plan.service import BackendPlan, MetricsPlan, WebUiPlan
    from kimi_prov.contract.documents.plan.software import ControlFiles, DriverPlan, SitePlan
    from kimi_prov.contract.documents.plan.weights import (
        DiskPlan,
        PageCachePlan,
        PreparedWeightsPlan,
        WeightsPlan,
    )
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.decisions import (
        BoundMemory,
        Budget,
        ConvertedExperts,
        DraftPlan,
        EngineChoice,
        Placement,
        RamDisk,
        Weights,
    )
    from kimi_prov.planner.hosts.groups import Group
    from kimi_prov.planner.settings.parsing import Settings

    # Returns a plan's `throughput` for a number of requests at once.
    Speeds = Callable[[int], ThroughputPlan]

SCHEMA: Final = "kimi-prov/plan/v1"


class _Subject(NamedTuple):
    """The machine to plan, its group if it has one, and the model that it serves."""

    host: Host
    settings: Settings
    catalogue: Catalogue
    model: Model
    group: Group | None


class _Software(NamedTuple):
    """The software that runs on the machine."""

    choice: EngineChoice
    draft: DraftPlan | None
    driver: DriverPlan


class _Layout(NamedTuple):
    """Where weights and cache are stored, and the flags with which the engine uses them.

    `proposed` are the planner's flags; `flags` are the same with the inventory's over them.
    """

    budget: Budget
    places: tuple[Placement, ...]
    bound: BoundMemory
    proposed: dict[str, Any]
    flags: dict[str, Any]
    checkpoint: Weights
    converted: ConvertedExperts | None
    tmpfs: RamDisk
    prepared: PreparedWeightsPlan

    @property
    def files_dir(self) -> str:
        """The folder that the weights have in a RAM disk, also where there is none."""
        return self.checkpoint.directory.replace(paths.MODELS, paths.RAM, 1)


class _Access(NamedTuple):
    """The names, ports, web UI and metrics through which the model is reached."""

    served: ServedModel
    backends: list[BackendPlan]
    page: WebUiPlan | None
    watched: MetricsPlan | None


class _Disk(NamedTuple):
    """The disk space that is needed, and the directories that an upgrade in place removes first."""

    room: DiskPlan
    frees: list[str]


class _Decided(NamedTuple):
    """All decisions about one machine."""

    subject: _Subject
    software: _Software
    layout: _Layout
    access: _Access
    disk: _Disk


class _SharedSections(NamedTuple):
    """Sections of the plan from which other sections are made."""

    engine: EnginePlan
    model: ModelPlan
    group: GroupPlan | None
    weights: WeightsPlan
    prepared: PreparedWeightsPlan
    instances: list[InstancePlan]
    power: PowerPlan | None
    warm: PageCachePlan
    site: SitePlan


def plan_machine(
    facts: Facts, settings: Settings, catalogue: Catalogue, group: Group | None
) -> tuple[MachinePlan, Speeds]:
    """Make the plan of one machine, and the function that returns its speeds."""
    findings = Findings()
    host = groups.limit_to_smallest(
        read_host(gpu_names.add_known_gpus(facts, catalogue), catalogue), group
    )
    model = catalogue.model(settings.model)
    first = group.head.host.facts if group else facts
    settings = replace(settings, served=kept.find_served(first, settings, model))
    settings = speculative.take_measured_draft(host, settings, catalogue, model)
    subject = _Subject(host, settings, catalogue, model, group)
    subject, software = _choose_software(subject, findings)
    layout = _choose_layout(subject, software, findings)
    access = _choose_access(subject, software, layout, findings)
    found = _Decided(
        subject, software, layout, access, _plan_disk(subject, software, layout, access, findings)
    )

    speeds = prediction.make_speeds(
        host,
        subject.settings,
        subject.model,
        software.choice,
        layout.budget,
        layout.places[0],
        prediction.Beside(
            layout.tmpfs.enabled,
            speculative.find_draft(subject.settings, catalogue, software.choice.engine),
        ),
    )
    predicted = speeds(subject.settings.concurrency)
    _report_engine_sleep(found, predicted, findings)
    plan = _make_sections(found, predicted, findings)
    proxy.check_access(subject.settings, group, findings)
    context = PlanContext(
        *(host, subject.settings, catalogue, subject.model, software.choice, layout.budget),
        *(layout.places[0], layout.bound, layout.proposed, layout.flags, plan, group),
    )
    findings.extend(rules.check_rules(context))
    return {**plan, "findings": remediation.price_findings(findings.rows(), context)}, speeds


def _choose_software(subject: _Subject, findings: Findings) -> tuple[_Subject, _Software]:
    """Choose engine, draft and driver; the settings get the flags of the engine's version."""
    host, settings, catalogue, model, _ = subject
    system.check_system(host, catalogue, findings)
    choice = engine.choose_engine(host, settings, catalogue, model, findings)
    settings = engine.migrate_settings(host, settings, model, choice, catalogue, findings)
    draft = speculative.make_document(settings, catalogue, model, choice.engine, findings)
    driver_plan = driver.make_document(
        host, settings, choice.engine, catalogue, choice.weights_format, findings
    )
    return subject._replace(settings=settings), _Software(choice, draft, driver_plan)


def _choose_layout(subject: _Subject, software: _Software, findings: Findings) -> _Layout:
    """Share out memory, then decide where the weights come from and where they are stored."""
    host, settings, catalogue, model, _ = subject
    choice = software.choice
    budget = choice.budget
    names = flag_names.find_flag_names(choice.engine.name)
    checks.check_memory(host, settings, model, budget, names, findings)
    checkpoint = weights.resolve_source(settings, model, choice.weights_format, findings)
    places = placement.choose_placements(host, model, choice, budget, catalogue, findings)
    places = placement.choose_threads(host, settings, places)
    budget = engine_sleep.add_to_budget(host, settings, choice, budget, findings)
    bound = placement.measure_bound_memory(host, budget, places)
    proposed = command.make_flags(settings, model, choice, budget, places[0], host.capability)
    proposed |= speculative.make_flags(software.draft) | engine_sleep.make_flags(settings)
    flags = command.merge_flags(proposed, settings, names, findings)
    converted = conversion.choose_conversion(settings, model, choice, checkpoint, flags, findings)
    tmpfs = ram_disk.choose_ram_disk(
        *(host, settings, checkpoint, bound, findings),
        converted=converted,
        prepared=choice.prepared.enabled,
    )
    machine = offload.Machine(host, choice, budget, tmpfs)
    moved = offload.choose_offload(machine, settings, catalogue, model, findings)
    if moved is not None:
        proposed, flags = proposed | offload.make_flags(moved), flags | offload.make_flags(moved)
        budget = offload.add_to_budget(budget, moved)
        bound = placement.measure_bound_memory(host, budget, places)
    files = prepared.make_document(choice, settings, checkpoint, budget, flags)
    return _Layout(budget, places, bound, proposed, flags, checkpoint, converted, tmpfs, files)


def _choose_access(
    subject: _Subject, software: _Software, layout: _Layout, findings: Findings
) -> _Access:
    """Choose the names and ports under which the model is served, the web UI and the metrics."""
    host, settings, catalogue, model, group = subject
    choice, many = software.choice, layout.budget.instances
    served = ServedModel(
        layout.files_dir if layout.tmpfs.enabled else layout.checkpoint.directory,
        list(settings.served_names) or [model.name],
        layout.converted.directory if layout.converted else None,
    )
    backends = proxy.list_backends(settings, 0 if group and group.rank else many)
    web.check_port(settings, many, findings)
    runtime = web.Runtime(choice.python, choice.interpreter, host.system.arch)
    page = web.make_document(settings, catalogue, model, runtime, served.names, many, findings)
    watched = metrics.make_document(host, settings, backends, page, findings)
    proxy.check_ports(host, settings, backends, page, watched, group, findings)
    return _Access(served, backends, page, watched)


def _plan_disk(
    subject: _Subject, software: _Software, layout: _Layout, access: _Access, findings: Findings
) -> _Disk:
    # `auto` takes no room that is not there: the engine writes them where there is some.
    always = subject.settings.prepared_weights == "on"
    others = disk.OtherFiles(
        *(software.draft, layout.converted, access.page), layout.prepared if always else None
    )
    return _Disk(
        *disk.make_document(
            subject.host,
            layout.checkpoint,
            software.choice,
            findings,
            others,
            in_place=subject.settings.upgrade_in_place,
        )
    )


def _report_engine_sleep(found: _Decided, predicted: ThroughputPlan, findings: Findings) -> None:
    layout = found.layout
    engine_sleep.report_gain(
        found.subject.host,
        found.subject.settings,
        found.software.choice,
        layout.budget,
        layout.tmpfs.size_bytes if layout.tmpfs.enabled else 0,
        (predicted["load_s"] or {}).get("expected"),
        findings,
    )


def _make_shared_sections(found: _Decided) -> _SharedSections:
    (host, settings, catalogue, model, group), (choice, draft, _), layout, access, _ = found
    checkpoint, converted, tmpfs = layout.checkpoint, layout.converted, layout.tmpfs
    served = access.served
    shown = _make_model_section(model, checkpoint, choice, layout.budget, served)
    digest = groups.compute_digest(choice, shown, layout.flags, served.names)
    to_convert = conversion.make_fetch_document(converted, settings)
    waits = timeouts.make_environment(choice, settings, checkpoint)
    slots = [
        replace(
            slot,
            flags={**slot.flags, **prepared.make_flags(layout.prepared, slot.index)},
            environment={
                **slot.environment,
                **waits,
                **engine_sleep.make_environment(settings, slot.index),
            },
        )
        for slot in groups.make_slots(group, settings, access.backends, on_cpu=not host.gpu_bytes)
    ]
    return _SharedSections(
        _make_engine_section(choice),
        shown,
        groups.make_document(group, settings, digest),
        weights.make_document(settings, checkpoint, draft, to_convert),
        layout.prepared,
        [
            command.make_instance(host, choice, layout.budget, place, layout.flags, slot, served)
            for place, slot in zip(layout.places, slots, strict=True)
        ],
        make_power_document(host, catalogue),
        ram_disk.make_page_cache_document(
            *(tmpfs, host, checkpoint, layout.bound.total, converted),
            prepared=choice.prepared.enabled,
        ),
        site.make_document(settings, host),
    )


def _make_sections(found: _Decided, predicted: ThroughputPlan, findings: Findings) -> MachinePlan:
    """Make the plan's sections from the decisions; the findings are added later."""
    (host, settings, catalogue, model, group), (choice, draft, drivers), layout, access, _ = found
    budget, flags, place, tmpfs = layout.budget, layout.flags, layout.places[0], layout.tmpfs
    shared = _make_shared_sections(found)
    body_max = request_size.choose_request_size(settings, model, budget.context)
    fetched, power, env_dir = shared.weights, shared.power, shared.engine["env_dir"]
    return {
        "schema": SCHEMA,
        "stand_in": None,
        "engine": shared.engine,
        "model": shared.model,
        "group": shared.group,
        "weights": fetched,
        "conversion": conversion.make_document(layout.converted, choice, model, flags),
        "instances": shared.instances,
        "memory": budgets.make_document(budget, host, tmpfs.size_bytes),
        "parallel": budgets.make_parallel_document(
            *(budget, flags, settings.hosts_per_model), choice.layout_reason
        ),
        "hybrid": hybrid.make_document(choice, budget, place),
        "experts": expert_backend.make_document(choice.experts, place, choice.dense),
        "speculative": speculative.make_section(draft),
        "throughput": predicted,
        "moe_tuning": moe_tuning.make_document(choice, model, budget, access.served.directory),
        "power": power,
        "ram_disk": ram_disk.make_document(tmpfs, host, layout.files_dir, shared.warm),
        "warm": shared.warm,
        "prepared_weights": shared.prepared,
        "disk": found.disk.room,
        "upgrade": _make_upgrade_section(settings, found.disk.frees),
        "tuning": system.choose_tuning(host, on_cpu=not host.gpu_bytes),
        "proxy": proxy.make_document(host, settings, access.backends, body_max),
        "firewall": proxy.make_firewall_document(host, settings, shared.group, access.watched),
        "web": access.page,
        "metrics": access.watched,
        "rest": lifecycle.make_document(
            settings, tmpfs, fetched["source"], findings, catalogue, power, group
        ),
        "drift": {"timer": settings.drift_timer},
        "usage": {"keep_days": settings.usage_keep_days, "waits_s": key_rules.WAITS_S},
        "driver": drivers,
        "nccl": {"guard": bool(host.gpu_bytes) and not host.amd},
        "packages": _list_packages(found, shared),
        "site": shared.site,
        "control": _make_control_section(settings, fetched),
        "timeouts": timeouts.make_document(settings, layout.checkpoint),
        "paths": paths.collect_paths(),
        "units": unit_names.collect_units(),
        "marks": paths.collect_marks(),
        "users": paths.collect_users(),
        "installation": installation.make_document(
            *(settings, choice, catalogue, env_dir, shared.instances[0], fetched),
            shared.site["proxy"],
        ),
        "watchdog": watchdog.make_document(
            settings, catalogue, shared.engine, flags, budget.context, predicted, shared.group
        ),
        "findings": [],
    }


def _list_packages(found: _Decided, shared: _SharedSections) -> list[str]:
    choice, settings = found.software.choice, found.subject.settings
    return system.list_packages(
        found.subject.host,
        None if choice.interpreter else choice.python.path,
        system.PackageGroups(
            kernel=choice.experts is not None,
            drives=found.software.driver["repository"] is not None,
            orders=certificates.choose_mode(settings) == "acme",
            watched=found.access.watched is not None,
            buckets="bucket" in shared.weights,
            rdma=bool(shared.group and shared.group["rdma"]),
        ),
        compiles=command.is_compiling(choice, found.layout.flags),
    )


def _make_upgrade_section(settings: Settings, frees: list[str]) -> UpgradePlan:
    return {
        "in_place": settings.upgrade_in_place,
        "min_speed": settings.upgrade_min_speed,
        "keep_versions": settings.keep_versions,
        "frees": frees,
        # A plan does not depend on what serves: a run that reaches the machine compares both.
        "switches": False,
    }


def _make_control_section(settings: Settings, fetched: WeightsPlan) -> ControlFiles:
    section: ControlFiles = {
        "api_keys_file": settings.api_keys_file,
        "hf_token_file": settings.hf_token_file,
        "web_admin_file": settings.web_admin_file,
        "metrics_key_file": settings.metrics_key_file,
    }
    if "bucket" in fetched:
        section["bucket_credentials_file"] = settings.bucket_credentials_file
    return section


def _make_engine_section(choice: EngineChoice) -> EnginePlan:
    return {
        # The catalogue has no other names.
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
