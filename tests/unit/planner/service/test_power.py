"""A machine's power, held against what vendors rate whole servers for and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov import documents
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import spec
from kimi_prov.facts.host import read_host
from kimi_prov.planner.service.power import make_power_document

if TYPE_CHECKING:
    from pathlib import Path

SHEET = """\
schema: kimi-prov/spec/v1
name: a server
cpu: {{model: {cpu}, sockets: 2}}
memory: {{total_gb: 1024}}
gpus: {{model: {gpu}, count: 8}}
"""


@pytest.mark.parametrize(
    ("cpu", "gpu", "rated_kw"),
    [
        ("EPYC 7742", "A100 SXM 80GB", 6.5),
        ("Xeon Platinum 8480+", "H100 SXM", 10.2),
        ("Xeon Platinum 8592+", "H200 SXM", 10.2),
        ("Xeon Platinum 8592+", "B200 SXM", 14.3),
    ],
)
def test_the_nameplate_is_near_nvidias_own_of_such_a_server(
    tmp_path: Path, cpu: str, gpu: str, rated_kw: float
) -> None:
    file = tmp_path / "sheet.yml"
    file.write_text(SHEET.format(cpu=cpu, gpu=gpu))
    sheet = documents.read_document(file, what="a sheet", limit=1 << 20, fix="-")
    facts = spec.parse_sheet(sheet, load_catalogue())
    found = make_power_document(read_host(facts, load_catalogue()), load_catalogue())
    assert found is not None
    assert found["nameplate_kw"] == pytest.approx(rated_kw, rel=0.1)
    # Eight H100 were measured at no more than 82 % of it (IEEE Access 13, 61740).
    assert found["likely_kw"] < 0.82 * found["nameplate_kw"]
    assert found["kw"] == pytest.approx(found["likely_kw"] * found["cooling"], abs=0.01)
    assert found["order_kw"] > found["nameplate_kw"]


def test_a_part_without_design_power_leaves_it_out(tmp_path: Path) -> None:
    file = tmp_path / "sheet.yml"
    file.write_text(SHEET.format(cpu="EPYC 7742", gpu="H100 SXM"))
    sheet = documents.read_document(file, what="a sheet", limit=1 << 20, fix="-")
    facts = spec.parse_sheet(sheet, load_catalogue())
    facts["gpus"][0]["model"] = facts["gpus"][0]["name_raw"] = "a card of nobody"
    assert make_power_document(read_host(facts, load_catalogue()), load_catalogue()) is None
