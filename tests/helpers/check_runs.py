"""Reports of `kimi-prov check` as files, the suffix choosing the form."""

from __future__ import annotations

import json
from pathlib import Path

from kimi_prov.cli import cli
from kimi_prov.errors import ExitCode
from kimi_prov.show.report.writers import find_writer

_SPECS = Path(__file__).resolve().parents[2] / "inventories" / "specs"
SHEETS = sorted(_SPECS.glob("*.yml"))
TWO_H100 = _SPECS / "quote-2x-8x-h100.yml"
H200 = _SPECS / "quote-8x-h200.yml"


def report(folder: Path, suffix: str, *words: object) -> Path:
    """Check what `words` name, and return the report."""
    file = folder / f"report.{suffix}"
    words = ("check", *map(str, words), "--output", str(file))
    assert cli.main(args=words, standalone_mode=False) in (ExitCode.OK, ExitCode.BLOCKED)
    return file


def reports(folder: Path, *words: object) -> dict[str, str]:
    """Give every form of one check, by its suffix: it is judged once, and written in each."""
    found = report(folder, "json", *words).read_text()
    forms = {"html": "html", "md": "markdown", "txt": "text"}
    document = json.loads(found)
    return {"json": found} | {suffix: find_writer(form)(document) for suffix, form in forms.items()}
