"""Signs that a GPU begins to fail while it still serves: from one reading, and from counters.

A pure function of what nvidia-smi said. A value that is unknown is no fault. Errors that are
corrected matter by how many there are in a time, so the collector of the metrics keeps readings of
the last hour: `status` and `diagnose` judge by them without a monitoring host, and the alerts fire
on this same judgement.

Decides: which signs of a failing GPU are reported, and from how many errors on.
Applied by: playbooks/status.yml, playbooks/diagnose.yml.
Held by: tests/unit/on_host/probe/test_gpu_faults.py, tests/component/monitoring/test_alerts.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Optional, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kimi_prov.contract.documents.findings import ToldFinding
    from kimi_prov.on_host.probe.gpu_load import GpuNow

# Where the collector of the metrics keeps the readings, in its state.
READINGS = "gpu_readings"
# How far back errors are counted, and how far apart the readings are that are kept for it.
WINDOW_S = 3600.0
_MIN_INTERVAL_S = 300.0
_MAX_CARDS = 64
# NVIDIA names no limit for corrected errors, and one now and then is usual: one in six seconds.
MAX_CORRECTED = 600
# Limits by which NVIDIA's own watch (DCGM, dcgm_gpu_hardware_limits.h) warns: any recovery of a
# link, and 100 CRC errors in a second, here for a minute in all. It warns of any replay, too; one
# costs nothing, so we wait for one a minute.
MAX_OF_LINKS = {"recovery": 0, "replay": 60, "crc": 100 * 60}
_CORRECTED = "corrected"
_HOT = {"hw_thermal_slowdown", "sw_thermal_slowdown"}

# Errors of a card in the last hour, by kind.
Growth = Optional["Mapping[str, int]"]
# Words of a fault; empty where there is none, None where that is unknown.
Describe = Callable[["GpuNow", Growth], Optional[str]]


class Reading(TypedDict):
    """Counters of errors at one time, by card and kind."""

    at: float
    errors: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Fault:
    """One kind of fault. `<gpu>` in the fix becomes the cards' numbers, as nvidia-smi has them."""

    # Of its finding.
    id: str
    describe: Describe
    required: str
    fix: str

    @property
    def name(self) -> str:
        """The word for it in metrics."""
        return self.id.partition(".")[2]


def _describe_remap_failure(card: GpuNow, _: Growth) -> str | None:
    failed = card.row_remap_failed
    return None if failed is None else f"yes{_count_remapped(card)}" if failed else ""


def _describe_pending_remap(card: GpuNow, _: Growth) -> str | None:
    pending = card.row_remap_pending
    return None if pending is None else f"yes{_count_remapped(card)}" if pending else ""


def _count_remapped(card: GpuNow) -> str:
    counts = [
        f"{count} after {kind} errors"
        for kind, count in (
            ("uncorrectable", card.rows_remapped_uncorrectable),
            ("corrected", card.rows_remapped_correctable),
        )
        if count
    ]
    return f" (remapped so far: {', '.join(counts)})" if counts else ""


def _describe_uncorrected(card: GpuNow, _: Growth) -> str | None:
    count = card.ecc_uncorrected_now
    return None if count is None else f"{count} since the driver was loaded" if count else ""


def _describe_corrected(_: GpuNow, growth: Growth) -> str | None:
    count = (growth or {}).get(_CORRECTED)
    if count is None:
        return None
    return f"{count} in the last hour" if count > MAX_CORRECTED else ""


def _describe_links(_: GpuNow, growth: Growth) -> str | None:
    counts = {kind: (growth or {}).get(kind) for kind in MAX_OF_LINKS}
    over = [
        f"{count} {kind} errors"
        for kind, count in counts.items()
        if count is not None and count > MAX_OF_LINKS[kind]
    ]
    if all(count is None for count in counts.values()):
        return None
    return f"{', '.join(over)} in the last hour" if over else ""


def _describe_heat(card: GpuNow, _: Growth) -> str | None:
    if card.throttled is None:
        return None
    if not _HOT & set(card.throttled):
        return ""
    degrees = [
        f"{what} {value:.0f} °C"
        for what, value in (("chip", card.temperature_c), ("memory", card.memory_temperature_c))
        if value is not None
    ]
    return f"slowed down now ({', '.join(degrees) or 'temperature unknown'}{_format_clock(card)})"


def _describe_power_brake(card: GpuNow, _: Growth) -> str | None:
    if card.throttled is None:
        return None
    reasons = set(card.throttled)
    # The general reason is set with heat as well; alone it means the supply of power.
    alone = "hw_slowdown" in reasons and not reasons & _HOT
    if not alone and "hw_power_brake_slowdown" not in reasons:
        return ""
    return f"slowed down now{_format_clock(card)}"


def _format_clock(card: GpuNow) -> str:
    if card.clock_mhz is None or card.clock_max_mhz is None:
        return ""
    return f", {card.clock_mhz:.0f} of {card.clock_max_mhz:.0f} MHz"


def _describe_width(card: GpuNow, _: Growth) -> str | None:
    # The maximum is that of card and slot together. The generation falls when the link idles.
    width, most = card.pcie_width, card.pcie_width_max
    if not width or not most:
        return None
    return f"x{width} of x{most}" if width < most else ""


_RESET = (
    "at a time of your choice:  kimi-prov stop INVENTORY --limit HOST;  restart the machine, or "
    "nvidia-smi --gpu-reset -i <gpu>  on it;  kimi-prov start INVENTORY --limit HOST"
)
_REPLACE = "have the card replaced (RMA); its vendor asks for the output of nvidia-bug-report.sh"

FAULTS = (
    Fault(
        "gpu.row_remap_failed",
        _describe_remap_failure,
        "a spare row for each faulty row of the memory",
        f"{_REPLACE}; an uncorrectable ECC error in that row may end the model at any time",
    ),
    Fault(
        "gpu.row_remap_pending",
        _describe_pending_remap,
        "no row that waits for the reset of the GPU",
        f"{_RESET}; where rows fail again, {_REPLACE}",
    ),
    Fault(
        "gpu.ecc_uncorrected",
        _describe_uncorrected,
        "none",
        "read which it was:  dmesg | grep -i xid;  nvidia-smi -q -d ECC,ROW_REMAPPER -i <gpu>;  "
        f"{_RESET}; where errors come again, {_REPLACE}",
    ),
    Fault(
        "gpu.ecc_storm",
        _describe_corrected,
        f"at most {MAX_CORRECTED} in an hour",
        "read where they are:  nvidia-smi -q -d ECC,ROW_REMAPPER -i <gpu>;  see that it is not "
        f"too hot;  {_RESET}; where they come again, {_REPLACE}",
    ),
    Fault(
        "gpu.nvlink_errors",
        _describe_links,
        "no recovery of a link, and hardly any replay",
        "read which links they are:  nvidia-smi nvlink -e -i <gpu>;  look for Xid 74 and SXid:  "
        "dmesg | grep -i xid;  restart the machine; where one link stays the one, have the cards "
        "at both its ends, the bridge or the switch checked",
    ),
    Fault(
        "gpu.heat",
        _describe_heat,
        "a GPU below the temperature at which it slows down",
        "look at fans, filters, liquid cooling and the air of the room:  nvidia-smi -q -d "
        "TEMPERATURE,PERFORMANCE -i <gpu>",
    ),
    Fault(
        "gpu.power_brake",
        _describe_power_brake,
        "a power supply that gives each GPU its power",
        "look at power supplies, cables and the power budget of the rack; the machine's BMC has "
        "events of the supplies:  nvidia-smi -q -d POWER,PERFORMANCE -i <gpu>",
    ),
    Fault(
        "gpu.pcie_width",
        _describe_width,
        "the width that card and slot have",
        "stop the model, seat the card again, look at the riser, the cable and the slot's setting "
        "in the firmware; see it with  nvidia-smi -q -i <gpu>  (Link Width)",
    ),
)


def judge(
    cards: Sequence[GpuNow], growth: Mapping[int, Mapping[str, int]]
) -> list[tuple[Fault, int, str | None]]:
    """Return for each kind of fault and each card what was found; `growth` is by card."""
    return [
        (fault, card.index, fault.describe(card, growth.get(card.index)))
        for fault in FAULTS
        for card in cards
    ]


def list_findings(
    cards: Sequence[GpuNow], growth: Mapping[int, Mapping[str, int]]
) -> list[ToldFinding]:
    """Return one finding for each kind of fault that some card has."""
    rows = [row for row in judge(cards, growth) if row[2]]
    findings: list[ToldFinding] = []
    for fault in FAULTS:
        seen = [(index, words) for kind, index, words in rows if kind is fault]
        if seen:
            numbers = ",".join(str(index) for index, _ in seen)
            findings.append(
                {
                    "id": fault.id,
                    "observed": "; ".join(f"GPU {index}: {words}" for index, words in seen),
                    "required": fault.required,
                    "fix": fault.fix.replace("<gpu>", numbers),
                }
            )
    return findings


def add_reading(
    kept: object,
    cards: Iterable[GpuNow],
    links: Mapping[str, Mapping[str, int]],
    now_s: float,
) -> list[Reading]:
    """Return the readings to keep with a new one of all counters; `links`: by card and kind."""
    errors: dict[str, dict[str, int]] = {}
    for card in cards:
        of_links = links.get(str(card.index)) or {}
        counts = {kind: of_links[kind] for kind in MAX_OF_LINKS if kind in of_links}
        if card.ecc_corrected is not None:
            counts[_CORRECTED] = card.ecc_corrected
        errors[str(card.index)] = counts
    rows = read_readings(kept, now_s)
    if not errors:
        return rows
    if len(rows) > 1 and _is_replaceable(rows[-2], rows[-1]):
        rows.pop()
    return [*rows, {"at": now_s, "errors": errors}]


def _is_replaceable(before: Reading, last: Reading) -> bool:
    """Whether the last reading may go: soon after the one before, and no counter was set back."""
    if (
        last["at"] - before["at"] >= _MIN_INTERVAL_S
        or before["errors"].keys() != last["errors"].keys()
    ):
        return False
    return not any(
        counts.get(kind, 0) < count
        for card, counts in last["errors"].items()
        for kind, count in before["errors"][card].items()
    )


def read_readings(kept: object, now_s: float) -> list[Reading]:
    """Return the kept readings of the last hour; what has another form counts as none."""
    rows: list[Reading] = []
    for row in kept if isinstance(kept, list) else ():
        at, errors = (row.get("at"), row.get("errors")) if isinstance(row, dict) else (None, None)
        if not isinstance(at, (int, float)) or not isinstance(errors, dict):
            continue
        if 0 <= now_s - at <= WINDOW_S and (not rows or at > rows[-1]["at"]):
            rows.append({"at": float(at), "errors": _read_errors(errors)})
    return rows


def _read_errors(errors: Mapping[Any, Any]) -> dict[str, dict[str, int]]:
    return {
        str(card): {
            kind: counts[kind]
            for kind in (_CORRECTED, *MAX_OF_LINKS)
            if type(counts.get(kind)) is int and counts[kind] >= 0
        }
        for card, counts in list(errors.items())[:_MAX_CARDS]
        if isinstance(counts, dict)
    }


def compute_growth(kept: object, now_s: float) -> dict[int, dict[str, int]]:
    """Return the errors of each card in the last hour, by kind; absent where nothing was kept.

    A counter that fell was set back by a reset or a restart: what it has then is not counted.
    """
    rows = read_readings(kept, now_s)
    totals: dict[int, dict[str, int]] = {}
    for before, after in zip(rows, rows[1:]):
        for card, counts in after["errors"].items():
            earlier = before["errors"].get(card) or {}
            if not card.isascii() or not card.isdigit():
                continue
            grown = totals.setdefault(int(card), {})
            for kind in counts.keys() & earlier.keys():
                grown[kind] = grown.get(kind, 0) + max(0, counts[kind] - earlier[kind])
    return totals
