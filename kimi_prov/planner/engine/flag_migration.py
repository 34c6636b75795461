"""Flags that the engine no longer takes become what does their job now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.loader import Combination

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.catalog.loader import Catalogue, Engine, Model
    from kimi_prov.catalog.rows import FlagState
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Wishes

    Flags = dict[str, Any]

_NOTHING = "nothing"
_REFUSED = ("rejected", "fails")


def _offloaded(value: object, others: Flags, ranks: int) -> object:
    """`--swap-space` was in GiB for each GPU, `--kv-offloading-size` is for all together."""
    del others
    plain = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return value * ranks if plain else None  # type: ignore[operator]


def _redundant(value: object, others: Flags, ranks: int) -> object:
    """Put the number into `--eplb-config`, beside what is there."""
    del ranks
    have = others.get("eplb-config")
    return {**(have if isinstance(have, dict) else {}), "num_redundant_experts": value}


def _largest(value: object, others: Flags, ranks: int) -> object:
    """`--cuda-graph-sizes` listed them, now the largest is named."""
    del others, ranks
    sizes = value if isinstance(value, list) else [value]
    return max((n for n in sizes if isinstance(n, int)), default=None)


_CONVERTED: dict[str, Callable[[object, Flags, int], object]] = {
    "swap-space": _offloaded,
    "num-redundant-experts": _redundant,
    "cuda-graph-sizes": _largest,
}


def modern(
    wishes: Wishes,
    engine: Engine,
    catalogue: Catalogue,
    about: tuple[Model, str, int, str | None],
    findings: Findings,
) -> Wishes:
    """Return the wishes with flags that this engine takes; each that was changed is a finding.

    `about`: the model, the format of its weights, the ranks that share it, and the GPUs' compute
    capability.
    """
    given = dict(wishes.engine_args)
    kept = dict(given)
    for flag, value in sorted(given.items()):
        text = value if isinstance(value, str) else None
        state = catalogue.flag(engine.name, engine.version, f"--{flag}", text)
        if value is None or state.status not in _REFUSED or state.becomes is None:
            continue
        kept.pop(flag)
        instead = _instead(flag, value, state, kept, (engine, catalogue, about[2]))
        kept = {**instead, **kept} if flag != "num-redundant-experts" else {**kept, **instead}
        _say(engine, flag, value, state, instead, findings)
    kept = _without_broken(kept, engine, catalogue, about, findings)
    return replace(wishes, values={**wishes.values, "kimi_engine_args": kept})


def _instead(
    flag: str,
    value: object,
    state: FlagState,
    others: Flags,
    where: tuple[Engine, Catalogue, int],
) -> Flags:
    engine, catalogue, ranks = where
    becomes = (state.becomes or _NOTHING).removeprefix("--")
    taken = catalogue.flag(engine.name, engine.version, f"--{becomes}").status == "accepted"
    if becomes == _NOTHING or not taken or (flag == "swap-space" and engine.variant == "cpu"):
        return {}
    convert = _CONVERTED.get(flag)
    found = convert(value, others, ranks) if convert else value
    return {} if found is None else {becomes: found}


def _say(
    engine: Engine,
    flag: str,
    value: object,
    state: FlagState,
    instead: Flags,
    findings: Findings,
) -> None:
    now = ", ".join(f"--{name} {_shown(found)}".rstrip() for name, found in instead.items())
    reason = f" ({state.reason})" if state.reason else ""
    # The catalogue's own words say why nothing is needed, unless they name a flag.
    words = state.replacement or _NOTHING
    findings.warning(
        "engine.flag_replaced",
        f"{engine.name} {engine.version} has no --{flag}: "
        + (f"{next(iter(instead))} does its job" if instead else "it is left out"),
        observed=f"kimi_engine_args: {flag}: {_shown(value) or 'true'}{reason}",
        required=now or (_NOTHING if words.startswith("--") else words),
        fix=f"write {now} into kimi_engine_args" if now else f"remove {flag} from kimi_engine_args",
        source=state.source or engine.source,
    )


def _shown(value: object) -> str:
    return "" if value is True else str(value)


def _without_broken(
    flags: Flags,
    engine: Engine,
    catalogue: Catalogue,
    about: tuple[Model, str, int, str | None],
    findings: Findings,
) -> Flags:
    """Take out what this engine is known to refuse for these weights, where it serves without."""
    model, weights_format, ranks, capability = about
    given = Combination(
        engine=engine.name,
        variant=engine.variant,
        version=engine.version,
        model=model.name,
        weights_format=weights_format,
        tensor_parallel=ranks,
        capability=capability,
        flags=tuple(f"--{flag}" for flag, value in flags.items() if value not in (None, False)),
    )
    kept = dict(flags)
    for row in catalogue.broken_with(given):
        gone = [flag for flag in row.leaves_out if kept.pop(flag.removeprefix("--"), None)]
        if gone:
            findings.warning(
                "engine.flag_left_out",
                f"{row.title}: {', '.join(gone)} left out",
                observed=row.note or row.title,
                required=f"weights, or a version, that it works with; here {weights_format} and "
                f"{engine.name} {engine.version}",
                fix=row.fix,
                source=row.source,
            )
    return kept
