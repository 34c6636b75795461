"""The shipped inventories that no other test applies: a user's copy of each, with lab addresses.

What is too large for a lab host has a declared stand-in. `h100x8`, `dgx-h200` and `gcp-h100-spot`
are applied by test_gpu_twin.py, `lab-qemu` by test_emulated.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder
from machines import CHECKOUT, HANGS_S, Host, Lab, kimi_prov, make_lab, newest_run

from kimi_prov.lab import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.86"
H200 = CHECKOUT / "tests" / "data" / "recordings" / "h200-x1"
# What makes an H100 NVL of the recorded card. One: nobody recorded a machine with two.
H100_NVL = {"NVIDIA H200": "NVIDIA H100 NVL", "143771 MiB": "95830 MiB"}
TINY = "/opt/models/kimi-k2-lab"


@pytest.fixture
def copy_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Lab]]:
    """Copies a profile by `init`, gives its hosts the lab's addresses and takes them away again."""
    made = []

    def copy(profile: str, files: tuple[tuple[str, str], ...] = (), **more: object) -> Lab:
        inventory = tmp_path_factory.mktemp("shipped") / "inv"
        done = kimi_prov("init", inventory, "--profile", profile)
        assert done.returncode == 0, done.stderr
        hosts = yaml.safe_load((inventory / "hosts.yml").read_text())
        groups = hosts["all"]["children"] if "all" in hosts else hosts
        addresses = {}
        for group in groups.values():
            for name, row in group["hosts"].items():
                addresses[name] = f"{NETWORK}.{11 + len(addresses)}"
                lab_only = {k: v for k, v in row.items() if k.startswith("lab_memory")}
                group["hosts"][name] = {"lab_address": addresses[name], **lab_only}
        variables = {
            "lab_network": f"{NETWORK}.0/24",
            "lab_kind": "nspawn",
            "lab_image": "debian-12",
        }
        document = {"all": {"vars": variables, "children": groups}}
        (inventory / "hosts.yml").write_text(yaml.safe_dump(document))
        wishes = inventory / "group_vars" / "kimi.yml"
        said = yaml.safe_load(wishes.read_text())
        if files:
            said["lab_files"] = [{"src": src, "dest": dest} for src, dest in files]
        wishes.write_text(yaml.safe_dump({**said, **more}))
        lab = Lab(inventory, {n: Host(n, a, inventory) for n, a in addresses.items()})
        made.append(lab)
        lab.up()
        return lab

    yield copy
    for lab in made:
        lab.down()


def applied(lab: Lab) -> Host:
    """Apply, verify, and find nothing to do a second time; the one host that serves."""
    done = kimi_prov("apply", lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    host = next(iter(lab.hosts.values()))
    seen = kimi_prov("verify", lab.inventory)
    assert seen.returncode == 0, seen.stdout + seen.stderr
    again = kimi_prov("apply", lab.inventory)
    assert again.returncode == 0, again.stdout + again.stderr
    result = json.loads((newest_run(lab.inventory) / "result.json").read_text())
    assert result["hosts"][host.name]["changed"] == 0
    return host


def stood_in_for(host: Host) -> dict[str, Any]:
    said = kimi_prov("status", host.inventory)
    assert "kimi_engine_stand_in" in " ".join(said.stdout.split())
    return dict(json.loads(host.ssh("cat /etc/kimi/stood-in-for.json")))


def test_xeon_amx_is_applied_with_a_declared_stand_in(copy_of: Callable[..., Lab]) -> None:
    lab = copy_of(
        "xeon-amx",
        (("model:kimi-k2-lab", TINY),),
        kimi_engine_stand_in=f"file://{TINY}",
        kimi_allowed_networks=[f"{NETWORK}.1/32"],
    )
    real = stood_in_for(applied(lab))
    assert (real["engine"]["name"], real["engine"]["variant"]) == ("vllm", "cpu")
    assert real["model"]["name"] == "kimi-k2.5"
    # This computer has not a tenth of its memory; the plan says so of the real model alone.
    assert "memory.host" in real["blockers"]


def test_epyc_h100_hybrid_is_applied_with_a_declared_stand_in(
    copy_of: Callable[..., Lab], tmp_path: Path
) -> None:
    card = tmp_path / "made-h100-nvl-x1"
    shutil.copytree(H200, card)
    for file in card.iterdir():
        text = file.read_text()
        for old, new in H100_NVL.items():
            text = text.replace(old, new)
        file.write_text(text)
    lab = copy_of(
        "epyc-h100-hybrid",
        (("model:kimi-k2-lab", TINY), (f"nvidia-smi:{card}", "/usr/bin/nvidia-smi")),
        kimi_engine_stand_in=f"file://{TINY}",
        kimi_allowed_networks=[f"{NETWORK}.1/32"],
    )
    real = stood_in_for(applied(lab))
    assert (real["engine"]["name"], real["engine"]["version"]) == ("ktransformers", "0.7.2")
    [instance] = real["instances"]
    method = instance["argv"].index("--kt-method")
    assert instance["argv"][method + 1] == "RAWINT4"
    assert "memory.host" in real["blockers"]


@pytest.mark.parametrize(
    ("profile", "model"), [("lab", "kimi-k2-lab"), ("lab-amx", "kimi-k2-lab-int4")]
)
def test_the_labs_own_inventories_are_applied_as_they_are(
    copy_of: Callable[..., Lab], profile: str, model: str
) -> None:
    host = applied(copy_of(profile))
    plan = json.loads(host.ssh("cat /etc/kimi/plan.json"))
    assert plan["model"]["name"] == model
    assert plan["stand_in"] is None


def test_localhost_is_applied_by_the_machine_itself(tmp_path: Path) -> None:
    """Installed from the wheel on a host that provisions itself, by Ansible's local connection."""
    wheel = Path(next(iter(WheelBuilder(str(CHECKOUT)).build(directory=str(tmp_path)))))
    index = settings.detect_variables()
    files = [{"src": str(wheel), "dest": f"/opt/{wheel.name}"}]
    carried = {"kimi_ca_bundle": "/etc/ssl/site.pem", "kimi_pip_find_links": "/opt/links"}
    for name, path in carried.items():
        if name in index and Path(str(index[name])).exists():
            files.append({"src": str(index[name]), "dest": path})
            index[name] = path
    lab = make_lab(tmp_path / "inv", NETWORK, ["itself"], files=files)
    lab.up()
    try:
        host = lab.hosts["itself"]
        pip = {
            "PIP_INDEX_URL": index.get("kimi_pip_index_url"),
            "PIP_EXTRA_INDEX_URL": " ".join(index.get("kimi_pip_extra_index_urls", [])),
            "PIP_CERT": index.get("kimi_ca_bundle"),
        }
        given = " ".join(f"{name}='{value}'" for name, value in pip.items() if value)
        host.ssh(
            "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "
            "--no-install-recommends python3-venv >/dev/null && python3 -m venv /opt/control && "
            f"env {given} /opt/control/bin/pip install -q /opt/{wheel.name}",
            timeout=HANGS_S,
        )
        said = json.dumps({**index, "kimi_engine_stand_in": f"file://{TINY}"})
        command = "cd /root && /opt/control/bin/kimi-prov"
        host.ssh(f"{command} init here --profile localhost && mkdir here/host_vars")
        host.ssh(f"cat >/root/here/host_vars/localhost.yml <<'EOF'\n{said}\nEOF")
        host.ssh(f"{command} apply here", timeout=HANGS_S)
        host.ssh(f"{command} verify here", timeout=HANGS_S)
        assert "kimi-k2.5" in host.ssh("cat /etc/kimi/stood-in-for.json")
        again = host.ssh(f"{command} apply here 2>&1", timeout=HANGS_S)
        assert "changed=0" in again
    finally:
        lab.down()
