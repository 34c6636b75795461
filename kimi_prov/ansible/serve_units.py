"""The units of the model server: role serve's templates filled in, and what a change of them means.

Filled in here and not by a task, so that `plan` can tell beforehand which engine restarts, and why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jinja2

from kimi_prov.contract import protection, unit_files, unit_names
from kimi_prov.contract.unit_form import Form, form, gated, restart_reasons, stamp
from kimi_prov.on_host.system.started import joined
from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.planner.findings import Findings

_TEMPLATE, _DROP_IN = "kimi-serve@.service.j2", "10-plan.conf.j2"


@dataclass(frozen=True)
class Options:
    """Options of the role: seconds, and the number of starts that may fail in a row."""

    start_timeout_s: int
    stop_timeout_s: int
    restart_delay_s: int
    start_limit_burst: int

    @property
    def start_limit_interval_s(self) -> int:
        """Seconds in which failed starts are counted: longer than all of them take."""
        each = self.start_timeout_s + self.stop_timeout_s + self.restart_delay_s
        return (self.start_limit_burst + 1) * each


# A running process depends on none of them.
_ANY = Options(0, 0, 0, 0)


@dataclass(frozen=True)
class Units:
    """The unit that the instances share, and each instance's drop-in by its index."""

    template: str
    drop_ins: dict[int, str]

    def form(self, index: int) -> Form:
        """Tell what the process of an instance depends on."""
        return form(joined(self.template, self.drop_ins[index]))


def render(plan: Mapping[str, Any], options: Options) -> Units:
    """Fill the templates in for every instance of a plan."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resources.root() / "roles" / "serve" / "templates"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - units, not HTML
    )
    environment.filters["systemd_quote"] = unit_files.quote_argument
    environment.filters["systemd_assignment"] = unit_files.quote_assignment
    environment.filters["unit_protection"] = protection.lines
    template = environment.get_template(_TEMPLATE).render(
        kimi_plan=plan,
        options=options,
        start_limit_interval_s=options.start_limit_interval_s,
        on_gpus=any(instance["gpus"] for instance in plan["instances"]),
        gpu_module=protection.GPU_MODULE,
        loopback=protection.LOOPBACK,
    )
    drop_in = environment.get_template(_DROP_IN)

    def of(instance: Mapping[str, Any]) -> str:
        words = [*instance["numactl"], *gated(instance["argv"], plan["paths"]["zipapp"])]
        start = " ".join(unit_files.quote_argument(word) for word in words)
        values = {"kimi_plan": plan, "instance": instance, "exec_start": start}
        values["gpu_files"] = protection.GPU_FILES
        mark = stamp(form(joined(template, drop_in.render(**values, stamp=""))))
        return drop_in.render(**values, stamp=mark)

    return Units(template, {int(row["index"]): of(row) for row in plan["instances"]})


def restarts(plan: Mapping[str, Any], facts: Mapping[str, Any], findings: Findings) -> None:
    """Find the running engines that an `apply` of the plan would restart, and say why."""
    serving: Mapping[str, Any] = (facts.get("kimi") or {}).get("serving") or {}
    if not serving:
        return
    units = render(plan, _ANY)
    for index in units.drop_ins:
        row = serving.get(unit_names.serve(index))
        reasons = restart_reasons(row["stamp"], row["form"], units.form(index)) if row else []
        if reasons:
            findings.add(
                "serve.restart",
                names={"index": index, "reasons": "; ".join(reasons)},
                observed=f"the process of {unit_names.serve(index)} was started otherwise",
                required="it runs as planned: apply restarts it, and it loads its weights again",
            )
