"""Renders the units of the model server, and says what a change of them means.

The templates of role serve are rendered here and not by a task, so that `plan` can say beforehand
which engine restarts, and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from kimi_prov.contract import groups, paths, protection, unit_files, unit_names
from kimi_prov.contract.errors import EXIT_PERMANENT
from kimi_prov.contract.unit_comparison import (
    LOADING,
    ROUNDS,
    Form,
    build_gated_command,
    compute_digest,
    list_restart_reasons,
    parse_form,
)
from kimi_prov.on_host.system.started import join_unit
from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.findings import Findings

_DROP_IN = "10-plan.conf.j2"


@dataclass(frozen=True)
class Options:
    """Options of the role: seconds, and the number of starts that may fail in a row."""

    start_timeout_s: int
    stop_timeout_s: int
    restart_delay_s: int
    start_limit_burst: int

    @property
    def start_limit_interval_s(self) -> int:
        """Seconds in which failed starts are counted: longer than all these starts take."""
        each = self.start_timeout_s + self.stop_timeout_s + self.restart_delay_s
        return (self.start_limit_burst + 1) * each


# A running process does not depend on these directives.
_ANY = Options(0, 0, 0, 0)


@dataclass(frozen=True)
class Units:
    """The file that the units share, and each unit's drop-in by name."""

    template: str
    drop_ins: dict[str, str]

    def form(self, unit: str) -> Form:
        """Return what the process of a unit depends on."""
        return parse_form(join_unit(self.template, self.drop_ins[unit]))


def render(plan: MachinePlan, options: Options) -> Units:
    """Fill in the templates for every instance of a plan."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.find_root() / "roles" / "serve" / "templates"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - units, not HTML
    )
    environment.filters["systemd_quote"] = unit_files.quote_argument
    environment.filters["systemd_assignment"] = unit_files.quote_assignment
    environment.filters["unit_protection"] = protection.format_unit_lines
    first = unit_names.get_engine_unit(plan["instances"][0])
    group = plan.get("group")
    kept = plan.get("prepared_weights")
    prepared = kept["dir"] if kept else None
    template = environment.get_template(f"{unit_names.find_shared_file(first)}.j2").render(
        kimi_plan=plan,
        group=group,
        # The host's own address is among them, because its engine also reaches itself by it.
        members=[*group["own_addresses"], *group["peer_addresses"]] if group else [],
        options=options,
        start_limit_interval_s=options.start_limit_interval_s,
        on_gpus=any(instance["gpus"] for instance in plan["instances"]),
        gpu_module=protection.GPU_MODULE,
        # An engine starts without the folder too, and loads in the ordinary way.
        prepared=[f"-{prepared}"] if prepared else [],
        loopback=protection.LOOPBACK,
        permanent=EXIT_PERMANENT,
        runtime_directory=Path(paths.GROUP_RUN).name,
    )
    drop_in = environment.get_template(_DROP_IN)
    supervision = _build_supervision(plan, options) if group else []

    def render_drop_in(instance: Mapping[str, Any]) -> str:
        line = build_gated_command(instance["argv"], plan["paths"]["zipapp"], supervision)
        words = [*instance["numactl"], *line]
        start = " ".join(unit_files.quote_argument(word) for word in words)
        values = {"kimi_plan": plan, "instance": instance, "exec_start": start}
        values["gpu_files"] = protection.GPU_FILES
        control = instance["env"].get(paths.CONTROL_VARIABLE)
        values["control_folder"] = Path(control).parent.name if control else ""
        mark = compute_digest(parse_form(join_unit(template, drop_in.render(**values, stamp=""))))
        return drop_in.render(**values, stamp=mark)

    return Units(
        template,
        {unit_names.get_engine_unit(row): render_drop_in(row) for row in plan["instances"]},
    )


def _build_supervision(plan: MachinePlan, options: Options) -> list[str]:
    """Return the options of the supervisor of a host in a group."""
    group, (instance,) = groups.get_group(plan), plan["instances"]
    served = [plan["model"]["serve_dir"]]
    if plan["weights"]["draft"]:
        served.append(plan["weights"]["draft"]["dir"])
    line = ["--name", group["name"], "--rank", str(group["rank"])]
    line += [f"--member={row['host']}={row['address']}" for row in group["members"]]
    line += ["--port", str(group["control_port"]), "--digest", group["digest"]]
    line += ["--environment", f"{plan['engine']['env_dir']}/{paths.ENV_COMPLETE}"]
    for folder in served:
        line += ["--weights", f"{folder}/{paths.MODEL_VERIFIED}"]
    line += [LOADING, str(options.start_timeout_s), ROUNDS, str(options.start_limit_burst)]
    if instance["port"] is not None:
        line += ["--chat-port", str(instance["port"]), "--model", plan["model"]["served_names"][0]]
    return line


def find_restarts(plan: MachinePlan, facts: Facts, findings: Findings) -> None:
    """Find the running engines that an `apply` of the plan would restart, and the reasons."""
    serving: Mapping[str, Any] = (facts.get("kimi") or {}).get("serving") or {}
    if not serving:
        return
    units = render(plan, _ANY)
    restarted = False
    for instance in plan["instances"]:
        unit = unit_names.get_engine_unit(instance)
        row = serving.get(unit)
        reasons = list_restart_reasons(row["stamp"], row["form"], units.form(unit)) if row else []
        if reasons:
            restarted = True
            findings.add(
                "serve.restart",
                names={"index": instance["index"], "reasons": "; ".join(reasons)},
                observed=f"the process of {unit} was started otherwise",
                required="it runs as planned: apply restarts it, and it loads its weights again",
            )
    group = plan.get("group")
    if restarted and group:
        findings.add(
            "upgrade.group",
            observed=f"{group['name']} serves one model over several hosts",
            required="it serves what is applied: else all of them go back, each by itself",
            fix="where it serves and verify or the speed is not as you want it: `kimi-prov "
            "rollback` for all of its hosts",
        )
