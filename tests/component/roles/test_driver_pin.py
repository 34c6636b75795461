"""What apt itself makes of the pin: from NVIDIA's repository comes the driver, and nothing else."""

from __future__ import annotations

import functools
import http.server
import threading
from typing import TYPE_CHECKING

import pytest
from jinja2 import Template
from own_apt import OwnApt

from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NVIDIA = {
    "nvidia-driver-cuda": ["570.133.20-1", "580.159.04-1", "590.44.01-1"],
    "libcuda1": ["570.133.20-1", "580.159.04-1", "590.44.01-1"],
    "libnvidia-egl-wayland1": ["1.1.20-1"],
    "openssl": ["99.0-1"],
    "systemd": ["999.0-1"],
    "cuda-toolkit-13": ["13.0.1-1", "13.0.2-1"],
}
DISTRIBUTION = {
    "nvidia-driver-cuda": ["535.247.01-1~deb12u1"],
    "libcuda1": ["535.247.01-1~deb12u1"],
    "libnvidia-egl-wayland1": ["1.1.10-1"],
    "openssl": ["3.0.17-1"],
    "systemd": ["252.39-1"],
}


def index(packages: dict[str, list[str]]) -> str:
    """A repository's list of packages; none of them is ever fetched."""
    return "".join(
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nFilename: ./none.deb\n"
        f"Size: 1\nSHA256: {'0' * 64}\nDescription: {name}\n\n"
        for name, versions in packages.items()
        for version in versions
    )


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Serve both; apt tells them apart by the name of the host."""
    folder = tmp_path_factory.mktemp("served")
    for name, packages in (("nvidia", NVIDIA), ("debian", DISTRIBUTION)):
        (folder / name).mkdir()
        (folder / name / "Packages").write_text(index(packages))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def apt(tmp_path: Path, port: int) -> OwnApt:
    """apt with both repositories and the pin as the role writes it."""
    made = OwnApt(
        tmp_path,
        f"deb [trusted=yes] http://127.0.0.1:{port}/nvidia ./\n"
        f"deb [trusted=yes] http://localhost:{port}/debian ./\n",
    )
    template = (
        resources.find_root() / "roles" / "nvidia_driver" / "templates" / "kimi-nvidia.pref.j2"
    )
    plan = {"driver": {"version": "580.159.04", "repository": {"host": "127.0.0.1"}}}
    made.prefer(Template(template.read_text(encoding="utf-8")).render(kimi_plan=plan) + "\n")
    updated = made.run("apt-get", "update")
    assert updated.returncode == 0, updated.stderr
    return made


def candidate(apt: OwnApt, package: str) -> str:
    """The version that apt would install."""
    lines = apt.run("apt-cache", "policy", package).stdout.splitlines()
    return next(line.split()[1] for line in lines if line.startswith("  Candidate:"))


@pytest.mark.parametrize("package", ["openssl", "systemd"])
def test_a_package_of_the_distribution_is_not_superseded(apt: OwnApt, package: str) -> None:
    [own] = DISTRIBUTION[package]
    assert candidate(apt, package) == own
    apt.install(**{package: own})
    assert candidate(apt, package) == own


@pytest.mark.parametrize("package", ["nvidia-driver-cuda", "libcuda1"])
def test_the_driver_comes_from_there_in_the_planned_version(apt: OwnApt, package: str) -> None:
    assert candidate(apt, package) == "580.159.04-1"
    apt.install(**{package.replace("-", "_"): "590.44.01-1"})
    assert candidate(apt, package) == "580.159.04-1"


def test_what_the_driver_needs_beside_may_be_newer_there(apt: OwnApt) -> None:
    assert candidate(apt, "libnvidia-egl-wayland1") == "1.1.20-1"


def test_what_is_nowhere_else_can_be_had_and_updated(apt: OwnApt) -> None:
    assert candidate(apt, "cuda-toolkit-13") == "13.0.2-1"
    apt.install(cuda_toolkit_13="13.0.1-1")
    assert candidate(apt, "cuda-toolkit-13") == "13.0.2-1"
