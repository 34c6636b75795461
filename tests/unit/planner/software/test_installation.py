"""What the plan says of installations: environments, indexes, and what completes an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from golden import ROOT, h200

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "https://index.example/simple"
TORCH = "https://torch.example/cpu"


def plan(*, gpus: bool = False, **settings: object) -> dict[str, Any]:
    facts = h200() if gpus else {**h200(), "gpus": [], "nvidia": None}
    given = {"kimi_model": "kimi-k2-lab", "kimi_weights_source": "file:///srv/w", **settings}
    return make_plan(facts, parse_settings(given, host="h1", base=ROOT), load_catalogue())


def installed(**settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = plan(**settings)["installation"]
    return found


def test_cpu_builds_of_torch_are_asked_for_where_the_inventory_names_no_place() -> None:
    assert installed()["ask_cpu_torch_index"] is True
    assert installed(kimi_torch_index_url=TORCH)["ask_cpu_torch_index"] is False
    assert installed(kimi_pip_find_links=INDEX)["ask_cpu_torch_index"] is False
    assert installed(gpus=True)["ask_cpu_torch_index"] is False


def test_indexes_are_asked_in_the_order_of_the_inventory_and_torch_s_last() -> None:
    made = installed(kimi_pip_extra_index_urls=[INDEX], kimi_torch_index_url=TORCH)
    assert made["indexes"] == [INDEX, TORCH]


def test_both_installers_read_the_site_s_index_and_certificates(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    made = installed(kimi_pip_index_url=INDEX, kimi_ca_bundle=str(bundle))
    pip, uv = made["pip_environment"], made["uv_environment"]
    assert pip["PIP_INDEX_URL"] == uv["UV_DEFAULT_INDEX"] == INDEX
    assert pip["PIP_CERT"] == uv["SSL_CERT_FILE"] == made["ca_bundle"]


def test_links_of_the_control_machine_are_copied_and_not_read_there(tmp_path: Path) -> None:
    assert "UV_FIND_LINKS" not in installed(kimi_pip_find_links=str(tmp_path))["uv_environment"]
    assert installed(kimi_pip_find_links=INDEX)["uv_environment"]["UV_FIND_LINKS"] == INDEX


def test_the_metadata_lies_where_the_environment_s_python_reads_it() -> None:
    made = plan()
    folder = f"{made['engine']['env_dir']}/lib/python{made['engine']['python_version']}/"
    assert made["installation"]["metadata"]["path"].startswith(folder)
    assert plan(gpus=True)["installation"]["metadata"] is None


def test_the_hub_s_client_is_installed_where_weights_come_from_the_hub() -> None:
    assert installed()["hub_client"] is None
    client = installed(kimi_weights_source=f"hf://owner/name@{'a' * 40}")["hub_client"]
    assert client["python"].startswith(client["env_dir"])


@pytest.mark.parametrize("how", ["always", "never"])
def test_units_that_fill_memory_are_planned_or_absent_and_never_both(how: str) -> None:
    disk = plan(kimi_ram_disk=how)["ram_disk"]
    assert disk["service"] in disk["units"]
    assert not set(disk["units"]) & set(disk["absent_units"])
    assert {*disk["units"], *disk["absent_units"]} == {
        "kimi-stage.service",
        "kimi-warm.service",
        "srv-kimi-ram.mount",
    }
