"""Render a Kubernetes folder by the command, for a spec sheet of the project's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kimi_prov import cli
from kimi_prov.show.exit_handling import run_guarded

SPECS = Path(__file__).parents[2] / "inventories" / "specs"
IMAGE = "kimi_kubernetes_image: registry.example.com/kimi:0.19.1\n"


def render(target: str, output: Path, *more: str, variables: str) -> int:
    """Return the exit code; `target` is a sheet's name, or a path."""
    file = output.parent / f"{output.name}.vars.yml"
    file.write_text(variables)
    sheet = target if "/" in target else str(SPECS / f"{target}.yml")
    words = ["render", "kubernetes", sheet, "--vars", str(file), "--output", str(output), *more]
    return int(run_guarded(lambda: cli.cli.main(words, standalone_mode=False)))


def plan_of(folder: Path) -> dict[str, Any]:
    """Return the plan of a rendered folder."""
    found: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return found
