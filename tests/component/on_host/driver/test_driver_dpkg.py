"""What is asked of dpkg and apt before a driver is installed."""

from __future__ import annotations

import io
import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from jinja2 import Template

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.__main__ import main
from kimi_prov.on_host.driver import apt, steps
from kimi_prov.on_host.system import kernels, machine
from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Commands = Callable[..., Path]
    Capture = pytest.CaptureFixture[str]


def test_a_key_that_cannot_be_fetched_is_said_before_anything_is_written(tmp_path: Path) -> None:
    asked = {
        "check": False,
        "repository": {
            "url": "http://127.0.0.1:1",
            "key_url": "http://127.0.0.1:1/key.asc",
            "fingerprint": "AB" * 20,
        },
        "ca_bundle": str(tmp_path / "none.pem"),
    }
    with pytest.raises(HostError, match="cannot be reached") as raised:
        steps.install_key(asked)
    assert "kimi_nvidia_repo_url" in str(raised.value.fix)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Stand-ins for commands of the system: name to shell script. Returns where calls are noted."""

    def write(**scripts: str) -> Path:
        for name, script in scripts.items():
            program = tmp_path / "bin" / name.replace("_", "-")
            program.parent.mkdir(exist_ok=True)
            program.write_text(
                f'#!/bin/sh\necho "{program.name} $*" >> {tmp_path}/calls\n{script}\n'
            )
            program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        return tmp_path / "calls"

    return write


def asked(
    verb: str, question: dict[str, object], patch: pytest.MonkeyPatch, capsys: Capture, *more: str
) -> dict[str, object]:
    """Ask as the action plugin does; the answer is one JSON object."""
    patch.setattr("sys.stdin", io.StringIO(json.dumps(question)))
    main(["driver", verb, *more])
    return dict(json.loads(capsys.readouterr().out))


def refused(*arguments: Any) -> HostError:
    """The error that comes instead of an answer."""
    error = HostError.from_answer(asked(*arguments))
    assert error is not None
    return error


def test_a_kernel_whose_headers_are_not_to_be_had(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    calls = commands(dpkg="", dpkg_query="", apt_get="", apt_cache="")
    release = os.uname()
    gone = os.uname_result((*release[:2], "6.1.0-99-gone", *release[3:]))
    monkeypatch.setattr(os, "uname", lambda: gone)
    error = refused("prepare", {"version": "580.159.04"}, monkeypatch, capsys)
    assert "no linux-headers-6.1.0-99-gone" in error.message
    assert "nothing was changed" in error.message
    assert "reboot" in str(error.fix)
    assert "install" not in calls.read_text()


@pytest.fixture
def two_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One runs, and a newer one waits for the next start; an older one is left over."""
    release = os.uname()
    runs = os.uname_result((*release[:2], "6.1.0-9-amd64", *release[3:]))
    monkeypatch.setattr(os, "uname", lambda: runs)
    there = ["6.1.0-10-amd64", "6.1.0-8-amd64", "6.1.0-9-amd64"]
    monkeypatch.setattr(kernels, "list_installed", lambda: there)
    monkeypatch.setattr(machine, "_PATH", f"{tmp_path}/bin:/usr/bin:/bin")


@pytest.mark.usefixtures("two_kernels")
def test_the_kernel_of_the_next_start_gets_its_headers_too(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    calls = commands(
        dpkg="", dpkg_query="", apt_get="",
        apt_cache='case $2 in *-9-amd64) echo "$2 | 6.1.9 | http://mirror main";; esac',
    )  # fmt: skip
    error = refused("prepare", {"version": "580.159.04"}, monkeypatch, capsys)
    assert "no linux-headers-6.1.0-10-amd64" in error.message
    assert "install" not in calls.read_text()


# What modinfo finds for the kernel of the next start.
_MODINFO = """case "$2 $3" in
    *-9-amd64*) echo 'version: 580.159.04' ;;
    *-10-amd64*) [ -e {0}/built ] && cat {0}/built ;;
esac
"""


@pytest.mark.usefixtures("two_kernels")
@pytest.mark.parametrize(
    ("dkms", "said"),
    [
        ("echo 'version: 580.159.04' > {0}/built", None),
        ("exit 1", "was not built for kernel 6.1.0-10-amd64 (modinfo nvidia: none)"),
        ("echo 'version: 570.1.1' > {0}/built", "(modinfo nvidia: 570.1.1)"),
    ],
    ids=["built then", "not built", "another version"],
)
def test_a_kernel_that_waits_for_its_start_has_the_module_or_there_is_none(
    commands: Commands, tmp_path: Path, dkms: str, said: str | None
) -> None:
    calls = commands(modinfo=_MODINFO.format(tmp_path), dkms=dkms.format(tmp_path))
    if said is None:
        steps.require_modules("580.159.04")
    else:
        with pytest.raises(HostError, match=re.escape(said)) as raised:
            steps.require_modules("580.159.04")
        assert "linux-headers-6.1.0-10-amd64" in str(raised.value.fix)
    asked = [line for line in calls.read_text().splitlines() if line.startswith("dkms")]
    assert asked == ["dkms autoinstall -k 6.1.0-10-amd64"]


def test_daemons_that_run_are_not_restarted(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A fabric that is trained anew ends what runs on the GPUs."""
    shown = "Id=%s\\nLoadState=loaded\\nActiveState=%s\\n\\n"
    calls = commands(
        dpkg_query="",
        apt_mark="",
        systemctl=f"""case $1 in
            show) printf '{shown}' nvidia-persistenced.service inactive \\
                nvidia-fabricmanager.service active ;;
            is-enabled) echo disabled ;;
        esac""",
    )
    told = asked("hold", {"fabric_manager": True}, monkeypatch, capsys)
    assert told["done"] == [
        "enable nvidia-persistenced.service",
        "start nvidia-persistenced.service",
        "enable nvidia-fabricmanager.service",
    ]
    assert "restart" not in calls.read_text()


def rendered_pin(version: str) -> str:
    """Give the pin as the role writes it."""
    roles = resources.find_root() / "roles"
    template = roles / "nvidia_driver" / "templates" / "kimi-nvidia.pref.j2"
    plan = {"driver": {"version": version, "repository": {"host": "nvidia.example.com"}}}
    return Template(template.read_text(encoding="utf-8")).render(kimi_plan=plan) + "\n"


@pytest.mark.parametrize(
    ("installed", "stale"),
    [
        ("nvidia-driver-cuda 570.133.20-1", True),
        ("nvidia-driver-cuda 580.159.04-1", False),
        # Cut in the middle of the installation: the next run goes on to this version.
        ("libcuda1 570.133.20-1\ninstalled nvidia-driver-cuda 580.159.04-1", False),
        ("bash 5.2.15-2", True),
    ],
)
def test_a_pin_that_a_killed_run_left_is_removed(
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    tmp_path: Path,
    installed: str,
    *,
    stale: bool,
) -> None:
    pin = tmp_path / "kimi-nvidia.pref"
    pin.write_text(rendered_pin("580.159.04"))
    monkeypatch.setattr(steps, "PIN", str(pin))
    source = tmp_path / "kimi-nvidia.sources"
    source.write_text("Types: deb\n")
    monkeypatch.setattr(apt, "SOURCE", str(source))
    monkeypatch.setattr(paths, "DRIVER_STATE", str(tmp_path / "driver.json"))
    names = " ".join(line.split()[-2] for line in installed.splitlines())
    commands(
        dpkg_query=f"echo 'installed {installed}'", apt_mark=f"echo {names} | tr ' ' '\\n'",
        systemctl="",
    )  # fmt: skip
    question: dict[str, object] = {"fabric_manager": False}
    expected = {"changed": stale, "done": [f"remove {pin}"] if stale else []}
    assert asked("hold", question, monkeypatch, capsys, "--check") == expected
    assert pin.exists()
    assert asked("hold", question, monkeypatch, capsys) == expected
    assert pin.exists() is not stale
    assert source.exists() is not stale
    told = asked("hold", question, monkeypatch, capsys)
    assert told["changed"] is False
