"""The GPU inventories applied where there is no GPU: recorded cards, a declared stand-in.

The host's nvidia-smi answers from a recording of 8x H200, or one made from it; vLLM's CPU build
serves the tiny model, and what would run on the real machine stands beside it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from machines import CHECKOUT, Host, kimi_prov, make_lab, newest_run

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import recording
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

H200 = CHECKOUT / "tests" / "data" / "recordings" / "h200-x8"
SOURCE = "file:///opt/models/kimi-k2-lab"
# What makes H100 cards, and the driver that reference 004 upgraded to, of recorded H200 ones.
H100 = {
    "NVIDIA H200": "NVIDIA H100 80GB HBM3",
    "143771 MiB": "81559 MiB",
    "580.159.04": "580.126.09",
}


@dataclass
class Twin:
    """A lab host that was brought to a GPU inventory, and what apply said."""

    host: Host
    recording: Path
    wishes: dict[str, Any]
    said: str


def made_recording(folder: Path) -> Path:
    """Copy the recording with other cards; its name says that nobody recorded it."""
    made = folder / "made-h100-x8"
    shutil.copytree(H200, made)
    for file in made.iterdir():
        text = file.read_text()
        for old, new in H100.items():
            text = text.replace(old, new)
        file.write_text(text)
    return made


@pytest.fixture(scope="module")
def twin_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Twin]]:
    labs = []

    def make(inventory: str, network: str, *, h100: bool, **more: object) -> Twin:
        folder = tmp_path_factory.mktemp("gpu")
        recorded = made_recording(folder) if h100 else H200
        shipped = CHECKOUT / "inventories" / inventory / "group_vars" / "kimi.yml"
        wishes = {**yaml.safe_load(shipped.read_text()), **more}
        wishes["kimi_engine_stand_in"] = SOURCE
        wishes["kimi_allowed_networks"] = [f"{network}.1/32"]
        files = [{"src": f"nvidia-smi:{recorded}", "dest": "/usr/bin/nvidia-smi"}]
        given = {**wishes, "kimi_weights_source": wishes.get("kimi_weights_source")}
        lab = make_lab(folder / "inv", network, nodes=["twin"], files=files, **given)
        labs.append(lab)
        lab.up()
        host = lab.hosts["twin"]
        done = host.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        return Twin(host, recorded, wishes, done.stdout)

    yield make
    for lab in labs:
        lab.down()


def judge(twin: Twin) -> None:
    """What holds for each of the three."""
    host = twin.host
    facts = recording.read_recording(twin.recording)
    wishes = {k: v for k, v in twin.wishes.items() if k != "kimi_engine_stand_in"}
    real = make_plan(
        facts, parse_settings(wishes, host="twin", base=host.inventory), load_catalogue()
    )
    beside = json.loads(host.ssh("cat /etc/kimi/stood-in-for.json"))
    version = real["engine"]["version"]
    assert beside["engine"]["version"] == version
    assert beside["instances"][0]["argv"] == real["instances"][0]["argv"]
    assert beside["instances"][0]["gpus"] == list(range(8))
    sentence = f"stands in for vllm {version} (cuda) with {real['model']['name']}"
    outputs = {"apply": twin.said}
    for command in ("plan", "verify", "status"):
        done = kimi_prov(command, host.inventory)
        assert done.returncode == 0, done.stdout + done.stderr
        outputs[command] = done.stdout
    for command, text in outputs.items():
        words = " ".join(text.split())
        assert sentence in words, f"{command}: {text}"
        assert "kimi_engine_stand_in" in words, command
    recorded = f"nvidia-smi answers from the recording {twin.recording.name}"
    for command in ("apply", "verify", "status"):
        assert recorded in " ".join(outputs[command].split()), command


def judge_again(twin: Twin) -> None:
    """A second apply finds nothing to do."""
    host = twin.host
    again = host.apply()
    assert again.returncode == 0, again.stdout + again.stderr
    result = json.loads((newest_run(host.inventory) / "result.json").read_text())
    assert result["hosts"]["twin"]["changed"] == 0


def test_h100x8_is_applied_with_a_declared_stand_in(twin_of: Callable[..., Twin]) -> None:
    judge(twin_of("h100x8", "10.93.66", h100=True))


def test_dgx_h200_is_applied_with_a_declared_stand_in(twin_of: Callable[..., Twin]) -> None:
    twin = twin_of("dgx-h200", "10.93.67", h100=False)
    judge(twin)
    judge_again(twin)


def test_gcp_h100_spot_is_applied_with_a_declared_stand_in(twin_of: Callable[..., Twin]) -> None:
    """With the driver as it is after its upgrade: changing one is the driver role's own test."""
    judge(twin_of("gcp-h100-spot", "10.93.68", h100=True))
