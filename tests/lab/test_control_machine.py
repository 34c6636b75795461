"""A bare Debian 13 host becomes a control machine, in each way that the install page names.

Installed is the wheel; what it needs comes from the index that this machine uses. Debian 13's own
Python is 3.13; others are tried by tests/matrix/run.py where this machine has them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hatchling.builders.wheel import WheelBuilder
from machines import CHECKOUT, make_lab

from kimi_prov.lab import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]
INSTALLS_S = 1800.0
BUNDLE = "/etc/ssl/site.pem"


def index_settings(product: dict[str, object]) -> dict[str, str]:
    """Environment of pip and uv that leads them to the index of this machine."""
    found = {}
    if index := product.get("kimi_pip_index_url"):
        found |= dict.fromkeys(("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), str(index))
    if extra := product.get("kimi_pip_extra_index_urls"):
        assert isinstance(extra, list)
        found |= dict.fromkeys(("PIP_EXTRA_INDEX_URL", "UV_INDEX"), " ".join(extra))
    if "kimi_ca_bundle" in product:
        found |= dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT"), BUNDLE)
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return Path(next(iter(WheelBuilder(str(CHECKOUT)).build(directory=str(folder)))))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Iterator[Host]:
    """A host with the wheel, what tries it, and what an administrator takes from Debian."""
    product = settings.detect_variables()
    files = [
        {"src": str(wheel), "dest": f"/opt/{wheel.name}"},
        {"src": str(CHECKOUT / "tests" / "matrix" / "smoke.py"), "dest": "/opt/smoke.py"},
    ]
    if "kimi_ca_bundle" in product:
        files.append({"src": str(product["kimi_ca_bundle"]), "dest": BUNDLE})
    folder = tmp_path_factory.mktemp("control") / "inv"
    debian_13 = {"lab_image": "debian-13"}
    lab = make_lab(folder, "10.93.83", ["control"], files=files, settings=debian_13)
    with lab.running():
        host = lab.hosts["control"]
        lines = "".join(f"{name}={value}\n" for name, value in index_settings(product).items())
        host.ssh(f"cat >>/etc/environment <<'EOF'\n{lines}EOF")
        host.ssh(
            "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y"
            " --no-install-recommends python3-venv pipx >/dev/null",
            timeout=INSTALLS_S,
        )
        host.ssh("su - operator -c 'pipx install -q uv'", timeout=INSTALLS_S)
        yield host


def tried(host: Host, command: str, user: str = "root") -> dict[str, str]:
    """What smoke.py says of an installed command."""
    said = host.ssh(f"su - {user} -c 'python3 /opt/smoke.py {command}'", timeout=INSTALLS_S)
    return dict(json.loads(said))


@pytest.mark.parametrize(
    ("user", "install", "command"),
    [
        pytest.param(
            "root",
            "python3 -m venv /opt/kimi-prov && /opt/kimi-prov/bin/pip install -q WHEEL",
            "/opt/kimi-prov/bin/kimi-prov",
            id="virtual-environment",
        ),
        pytest.param(
            "root", "pipx install -q WHEEL", "/root/.local/bin/kimi-prov", id="pipx-install"
        ),
        # Whoever may use sudo controls the machine just as well.
        pytest.param(
            "operator",
            "~/.local/bin/uv tool install -q WHEEL",
            "/home/operator/.local/bin/kimi-prov",
            id="uv-tool-install",
        ),
    ],
)
def test_installed_in_this_way_it_plans(
    bare: Host, wheel: Path, user: str, install: str, command: str
) -> None:
    words = install.replace("WHEEL", f"/opt/{wheel.name}")
    bare.ssh(f"su - {user} -c '{words}'", timeout=INSTALLS_S)
    assert tried(bare, command, user)["python"].startswith("3.13.")


@pytest.mark.parametrize("series", ["2.19", "2.20", "2.21"])
def test_it_plans_with_this_ansible_core(bare: Host, wheel: Path, series: str) -> None:
    uv, folder = "/home/operator/.local/bin/uv", f"/opt/ansible-core-{series}"
    bare.ssh(f"{uv} venv -q --python /usr/bin/python3 {folder}")
    bare.ssh(
        f"{uv} pip install -q --python {folder}/bin/python /opt/{wheel.name}"
        f" ansible-core=={series}.*",
        timeout=INSTALLS_S,
    )
    said = tried(bare, f"{folder}/bin/kimi-prov")
    assert said["python"].startswith("3.13.")
    assert said["ansible-core"].startswith(f"{series}.")
