"""GPUs of different kinds: all wait for the least of them, wherever the sheet names it."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import spec
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = "cpu: 2x EPYC 9654\nmemory: 24x 64 GB\ndisks: 4x 3.84 TB NVMe\n"
KINDS = ("B200 SXM", "A100 SXM 80GB", "H100 SXM 80GB")


def planned(folder: Path, *cards: tuple[str, int]) -> dict[str, Any]:
    sheet = folder / "sheet.yml"
    rows = [f"{{model: {model}, count: {count}}}" for model, count in cards]
    sheet.write_text(f"{MACHINE}gpus: [{', '.join(rows)}]\n")
    settings = parse_settings({"kimi_model": "kimi-k2.5"}, host="one")
    return make_plan(spec.read_sheet(sheet, load_catalogue()), settings, load_catalogue())


@pytest.mark.parametrize("kinds", [*permutations(KINDS, 2)])
def test_whichever_is_named_first_the_plan_is_the_same(tmp_path: Path, kinds: Any) -> None:
    one, other = (
        planned(tmp_path, *((kind, 4) for kind in order)) for order in (kinds, kinds[::-1])
    )
    for part in ("model", "engine", "instances", "driver", "throughput", "power"):
        assert one[part] == other[part], part


def test_the_engine_is_told_what_all_of_them_can(tmp_path: Path) -> None:
    """An A100 has no 8-bit cache, and no kernel of Blackwell's."""
    mixed = planned(tmp_path, ("B200 SXM", 4), ("A100 SXM 80GB", 4))
    old = planned(tmp_path, ("A100 SXM 80GB", 8))
    assert mixed["instances"][0]["argv"] == old["instances"][0]["argv"]
    assert mixed["throughput"]["decode_tok_s"] == old["throughput"]["decode_tok_s"]
    # The driver is one for all of them, and the power is each one's own.
    new = planned(tmp_path, ("B200 SXM", 8))
    assert mixed["driver"]["required_branch"] == new["driver"]["required_branch"]
    assert old["power"]["kw"] < mixed["power"]["kw"] < new["power"]["kw"]
