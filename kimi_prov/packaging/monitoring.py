"""Read the rules and consoles of a monitoring host, which are data of the package."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "monitoring"


def read_texts(kind: str, *endings: str) -> dict[str, str]:
    """Return the files of `rules` or `consoles` with one of these endings, by name."""
    folder = FOLDER / kind
    files = sorted(path for path in folder.glob("*") if path.suffix in endings)
    return {path.name: path.read_text(encoding="utf-8") for path in files}
