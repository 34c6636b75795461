"""Replace flags that the engine no longer accepts by those that have the same effect.

Decides: flags that a version no longer takes.
Applied by: roles/serve.
Held by: tests/unit/planner/engine/test_flag_migration.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.broken import Combination

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.catalog.engines import Engine
    from kimi_prov.catalog.flags import FlagState
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.planner.decisions import Workload
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

    Flags = dict[str, Any]

_NOTHING = "nothing"
_REFUSED = ("rejected", "fails")


def _convert_swap_space(value: object, others: Flags, ranks: int) -> object:
    """Convert `--swap-space`, GiB for each GPU, to `--kv-offloading-size`, GiB for all."""
    del others
    plain = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return value * ranks if plain else None  # type: ignore[operator]


def _convert_redundant_experts(value: object, others: Flags, ranks: int) -> object:
    """Add the number to the other values of `--eplb-config`."""
    del ranks
    have = others.get("eplb-config")
    return {**(have if isinstance(have, dict) else {}), "num_redundant_experts": value}


def _convert_graph_sizes(value: object, others: Flags, ranks: int) -> object:
    """Convert the list of `--cuda-graph-sizes` to its largest size."""
    del others, ranks
    sizes = value if isinstance(value, list) else [value]
    return max((n for n in sizes if isinstance(n, int)), default=None)


_CONVERTERS: dict[str, Callable[[object, Flags, int], object]] = {
    "swap-space": _convert_swap_space,
    "num-redundant-experts": _convert_redundant_experts,
    "cuda-graph-sizes": _convert_graph_sizes,
}


def migrate_flags(
    settings: Settings,
    catalogue: Catalogue,
    work: Workload,
    ranks: int,
    capability: str | None,
    findings: Findings,
) -> Settings:
    """Return the settings with flags that this engine accepts, with a finding for each change.

    `ranks`: GPUs that share the model; `capability`: their compute capability, such as "9.0".
    """
    engine = work.engine
    requested = dict(settings.engine_args)
    kept = dict(requested)
    for flag, value in sorted(requested.items()):
        text = value if isinstance(value, str) else None
        state = catalogue.flag(engine.name, engine.version, f"--{flag}", text)
        if value is None or state.status not in _REFUSED or state.becomes is None:
            continue
        kept.pop(flag)
        instead = _find_replacement(flag, value, state, kept, engine, catalogue, ranks)
        kept = {**instead, **kept} if flag != "num-redundant-experts" else {**kept, **instead}
        _report_replacement(engine, flag, value, state, instead, findings)
    kept = _drop_broken_flags(kept, catalogue, work, ranks, capability, findings)
    return replace(settings, engine_args=kept)


def _find_replacement(
    flag: str,
    value: object,
    state: FlagState,
    others: Flags,
    engine: Engine,
    catalogue: Catalogue,
    ranks: int,
) -> Flags:
    becomes = (state.becomes or _NOTHING).removeprefix("--")
    taken = catalogue.flag(engine.name, engine.version, f"--{becomes}").status == "accepted"
    if becomes == _NOTHING or not taken or (flag == "swap-space" and engine.variant == "cpu"):
        return {}
    convert = _CONVERTERS.get(flag)
    converted = convert(value, others, ranks) if convert else value
    return {} if converted is None else {becomes: converted}


def _report_replacement(
    engine: Engine,
    flag: str,
    value: object,
    state: FlagState,
    instead: Flags,
    findings: Findings,
) -> None:
    now = ", ".join(
        f"--{name} {_format_value(new_value)}".rstrip() for name, new_value in instead.items()
    )
    reason = f" ({state.reason})" if state.reason else ""
    # The catalogue's text says why nothing is needed, unless it names a flag.
    words = state.replacement or _NOTHING
    findings.add(
        "engine.flag_replaced",
        names={
            "engine": engine.name,
            "version": engine.version,
            "flag": flag,
            "instead": f"{next(iter(instead))} does its job" if instead else "it is left out",
        },
        observed=f"kimi_engine_args: {flag}: {_format_value(value) or 'true'}{reason}",
        required=now or (_NOTHING if words.startswith("--") else words),
        fix=f"write {now} into kimi_engine_args" if now else f"remove {flag} from kimi_engine_args",
        source=state.source or engine.source,
    )


def _format_value(value: object) -> str:
    return "" if value is True else str(value)


def _drop_broken_flags(
    flags: Flags,
    catalogue: Catalogue,
    work: Workload,
    ranks: int,
    capability: str | None,
    findings: Findings,
) -> Flags:
    """Remove flags that this engine is known to refuse for these weights, if it serves without."""
    engine, weights_format = work.engine, work.weights_format
    combination = Combination(
        engine=engine.name,
        variant=engine.variant,
        version=engine.version,
        model=work.model.name,
        weights_format=weights_format,
        tensor_parallel=ranks,
        capability=capability,
        flags=tuple(f"--{flag}" for flag, value in flags.items() if value not in (None, False)),
    )
    kept = dict(flags)
    for row in catalogue.broken_with(combination):
        gone = [flag for flag in row.leaves_out if kept.pop(flag.removeprefix("--"), None)]
        if gone:
            findings.add(
                "engine.flag_left_out",
                names={"combination": row.title, "flags": ", ".join(gone)},
                observed=row.note or row.title,
                required=f"weights, or a version, that it works with; here {weights_format} and "
                f"{engine.name} {engine.version}",
                fix=row.fix,
                source=row.source,
            )
    return kept
