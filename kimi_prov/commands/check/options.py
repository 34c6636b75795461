"""The options of `check`: settings of each target, how it is paid for, and a load."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog import loader
from kimi_prov.errors import UserError
from kimi_prov.operate.bundle import coverage
from kimi_prov.packaging import bundles
from kimi_prov.planner.settings import parsing
from kimi_prov.show.report.cost import Use
from kimi_prov.sizing import load as loads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from kimi_prov.operate.bundle.coverage import Compare
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.sizing.load import Load

DEFAULT_MODEL = "kimi-k2.5"


# What says how many requests there are: one of them at most.
_WHO = ("people", "users", "concurrency")


@dataclass(frozen=True)
class CheckOptions:
    """Options of the command line: settings by variable's name, only the given ones.

    `load` is the load to carry; `suggest`: also judge machines of the catalogue; `compare` reads
    the files of an offline bundle once, although a machine is judged in several ways.
    """

    variables: Mapping[str, Any]
    use: Use
    load: Load | None = None
    suggest: bool = False
    measured: tuple[Path, ...] = ()
    compare: Compare | None = None

    def settings(self, host: str, own: Mapping[str, Any] | None = None) -> Settings:
        """Return a target's settings; options win over its `own` variables. Raises UserError."""
        variables = {"kimi_model": DEFAULT_MODEL, **(own or {}), **self.variables}
        return parsing.parse_settings(variables, host=host, locate=self.option_of)

    def option_of(self, variable: str) -> str | None:
        """Return the option that gave a variable, for messages about its value."""
        option = "--" + variable.removeprefix("kimi_").replace("_", "-")
        return option if variable in self.variables else None


def parse(
    *,
    amortise_years: float | None,
    utilisation: float | None,
    power_price: float | None,
    load_file: Path | None = None,
    suggest: bool = False,
    measured: tuple[Path, ...] = (),
    bundle: Path | None = None,
    **named: object,
) -> CheckOptions:
    """Sort the options of the command line; None means not given.

    Raises UserError for an invalid load file, and for users together with a concurrency.
    """
    settings = {name: value for name, value in named.items() if value is not None}
    request = {name: settings.pop(name) for name in loads.NAMES if name in settings}
    _refuse_both(request, settings)
    variables = {f"kimi_{name}": value for name, value in settings.items()}
    if bundle is not None:
        # Nothing is installed from it: whoever signed it is told, and not asked for.
        signer = bundles.find_signer(bundle)
        variables |= {"kimi_bundle": str(bundle.absolute()), "kimi_bundle_key": signer}
    use = Use(amortise_years, utilisation, power_price)
    compare = functools.cache(coverage.find_faults)
    chosen = CheckOptions(variables, use, suggest=suggest, measured=measured, compare=compare)
    if load_file is not None:
        from kimi_prov.sizing import load_file as files  # noqa: PLC0415

        values = files.read_load(load_file)
        if request.keys() & {"people", "users"}:
            values = {name: value for name, value in values.items() if name not in _WHO}
        request = {**values, **request}
        _refuse_both(request, settings)
    if not request:
        return chosen
    rows = loader.load_catalogue().prices.assumptions
    share = next(row.value for row in rows if row.name == "people_in_flight")
    load = loads.make_load(request, chosen.settings("--concurrency").concurrency, share)
    if load is None:
        return chosen
    lengths = {"kimi_input_tokens": load.input_tokens, "kimi_output_tokens": load.output_tokens}
    return replace(chosen, variables={**variables, **lengths}, load=load)


def _refuse_both(request: Collection[str], settings: Collection[str]) -> None:
    """Refuse two options of which each says how many requests there are."""
    both = [name for name in _WHO if name in request or name in settings]
    if len(both) > 1:
        raise UserError(
            f"--{both[0]} and --{both[1]} exclude each other: both say how many requests there are",
            fix="give --people N for the machines that N people need, --users N for those that "
            "carry N requests at once, or --concurrency N for one machine that serves N",
        )
