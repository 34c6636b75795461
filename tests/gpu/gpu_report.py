"""What was proven on which GPUs: a report as JSON and as text, which a person can send."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import cpuinfo
import psutil

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

SCHEMA = "kimi-prov/gpu-report/v1"
_CARDS = ("name", "memory.total", "driver_version", "vbios_version", "compute_cap")


@dataclass
class Report:
    """Outcomes and figures, written anew with each: an end in the middle keeps them."""

    folder: Path
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def outcome(self, name: str, claim: str | None, told: pytest.TestReport) -> None:
        """Keep how a test ended; `claim` is what it shows."""
        row = {"claim": (claim or name).strip().splitlines()[0], "outcome": told.outcome}
        if told.failed:
            said = [line[1:].strip() for line in told.longreprtext.splitlines() if line[:2] == "E "]
            row["reason"] = (said or [told.longreprtext])[0][:300]
        self.rows[name] = {**row, "seconds": round(told.duration, 1)}
        self.write()

    def figure(self, **figures: object) -> None:
        """Keep what was measured."""
        self.figures.update(figures)
        self.write()

    def document(self) -> dict[str, Any]:
        """Return the whole report."""
        return {
            "schema": SCHEMA,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commit": _said("git", "rev-parse", "--short", "HEAD") or None,
            "kernel": platform.release(),
            "processor": processor(),
            "cards": cards(),
            "tests": [{"test": name, **row} for name, row in self.rows.items()],
            "figures": self.figures,
        }

    def write(self) -> None:
        """Write both forms."""
        self.folder.mkdir(parents=True, exist_ok=True)
        document = self.document()
        text = json.dumps(document, indent=1) + "\n"
        (self.folder / "report.json").write_text(text, encoding="utf-8")
        (self.folder / "report.txt").write_text(as_text(document), encoding="utf-8")


@cache
def processor() -> dict[str, Any]:
    """Return what the kernel says of the processors and the memory."""
    said = cpuinfo.get_cpu_info()
    return {
        "name": said.get("brand_raw", "unknown"),
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "amx": sorted(flag for flag in said.get("flags", []) if flag.startswith("amx")),
    }


@cache
def cards() -> list[dict[str, str]]:
    """Return what the machine's own nvidia-smi says of each card."""
    said = _said("nvidia-smi", f"--query-gpu={','.join(_CARDS)}", "--format=csv,noheader")
    values = (line.split(", ") for line in said.splitlines())
    return [dict(zip(_CARDS, row, strict=True)) for row in values if len(row) == len(_CARDS)]


def as_text(document: dict[str, Any]) -> str:
    """Write a report for people."""
    found = document["cards"]
    first = found[0] if found else dict.fromkeys(_CARDS, "unknown")
    lines = [
        f"{document['date']}, commit {document['commit']}, kernel {document['kernel']}",
        f"{len(found)}x {first['name']}, {first['memory.total']}, {first['driver_version']}",
        f"{document['processor']['name']}, {document['processor']['cpus']} CPUs",
        "",
        *(
            f"{row['outcome']:<8}{row['seconds']:>7.1f} s  {row['claim']}"
            + (f"\n                    {row['reason']}" if "reason" in row else "")
            for row in document["tests"]
        ),
        "",
        *(f"{name}: {json.dumps(value)}" for name, value in document["figures"].items()),
    ]
    return "\n".join(lines) + "\n"


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return ""
    return done.stdout.strip()
