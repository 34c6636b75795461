"""What waits is read from apt's simulation; a restart is required where something waits for it.

The lines are those of apt on Debian 12 and Ubuntu 22.04.
"""

from __future__ import annotations

import pytest

from kimi_prov.on_host.driver import apt
from kimi_prov.on_host.update import steps, waiting
from kimi_prov.on_host.update.waiting import Effect, Package

DEBIAN = """\
NOTE: This is only a simulation!
Reading package lists...
The following packages have been kept back:
  libfoo
Inst base-files [12.4+deb12u5] (12.4+deb12u11 Debian:12.11/stable [amd64])
Conf base-files (12.4+deb12u11 Debian:12.11/stable [amd64])
Inst openssl [3.0.15-1~deb12u1] (3.0.16 Debian:12/s, Debian-Security:12/stable-security [amd64]) []
Inst libssl3:amd64 [3.0.15-1~deb12u1] (3.0.16-1~deb12u1 Debian-Security:12/stable-security [amd64])
Inst linux-image-6.1.0-37-amd64 (6.1.140-1 Debian-Security:12/stable-security [amd64])
Inst linux-image-amd64 [6.1.135-1] (6.1.140-1 Debian-Security:12/stable-security [amd64])
Inst linux-libc-dev [6.1.135-1] (6.1.140-1 Debian-Security:12/stable-security [amd64])
Inst intel-microcode [3.20240813.1~deb12u1] (3.20250211.1~deb12u1 Debian:12.11/stable [amd64])
Inst nvidia-driver-cuda [580.126.20-1] (580.159.04-1 NVIDIA CUDA:1.0 [amd64])
Inst tool [1] (2 packages.example.org [all])
Inst unsigned [1] (2 [all])
Remv libfoo [1]
"""
UBUNTU = """\
Inst openssl [3.0.2-0ubuntu1.15] (3.0.2-1 Ubuntu:22/jammy-updates, Ubuntu:22/jammy-security [amd64])
Inst snapd [2.58] (2.67 Ubuntu:22.04/jammy-updates [amd64])
Inst linux-image-generic [5.15.0.91.88] (5.15.0.141.137 Ubuntu:22.04/jammy-updates [amd64])
Inst linux-modules-5.15.0-141-generic (5.15.0-141.151 Ubuntu:22.04/jammy-security [amd64])
"""


def kinds(text: str) -> dict[str, str]:
    return {row.name: row.kind for row in waiting.parse(text)}


def test_what_waits_on_debian_is_told_by_origin_and_name() -> None:
    assert kinds(DEBIAN) == {
        "base-files": "other",
        "openssl": "security",
        "libssl3": "security",
        "linux-image-6.1.0-37-amd64": "kernel",
        "linux-image-amd64": "kernel",
        "linux-libc-dev": "security",
        "intel-microcode": "microcode",
        "nvidia-driver-cuda": "driver",
        "tool": "other",
        "unsigned": "other",
    }


def test_what_waits_on_ubuntu_is_told_by_the_suite() -> None:
    assert kinds(UBUNTU) == {
        "openssl": "security",
        "snapd": "other",
        "linux-image-generic": "kernel",
        "linux-modules-5.15.0-141-generic": "kernel",
    }


def test_versions_and_holds_come_along() -> None:
    rows = {row.name: row for row in waiting.parse(DEBIAN, ["libssl3"])}
    assert rows["libssl3"] == Package(
        "libssl3", "3.0.15-1~deb12u1", "3.0.16-1~deb12u1", "security", held=True
    )
    new = rows["linux-image-6.1.0-37-amd64"]
    assert (new.installed, new.candidate, new.held) == ("", "6.1.140-1", False)


def test_what_is_installed_and_what_is_left_with_the_reason() -> None:
    found = waiting.parse(DEBIAN, ["libssl3"])
    chosen, left = steps.choose(found, defer=False)
    assert {row.name for row in chosen} == {
        "openssl",
        "linux-image-6.1.0-37-amd64",
        "linux-image-amd64",
        "linux-libc-dev",
        "intel-microcode",
    }
    why = {row["name"]: row["why"] for row in left}
    assert set(why) == {"libssl3", "nvidia-driver-cuda"}
    assert "apt-mark unhold libssl3" in why["libssl3"]
    assert "kimi_nvidia_driver_version: 580.159.04" in why["nvidia-driver-cuda"]
    chosen, left = steps.choose(found, defer=True)
    assert {row.name for row in chosen} == {"openssl", "linux-libc-dev"}
    assert {row["name"] for row in left} > {"linux-image-amd64", "intel-microcode"}


QUIET = Effect(
    kernel="6.1.0-35-amd64",
    kernels=["6.1.0-9-amd64", "6.1.0-35-amd64"],
    build="6.1.135-1",
    build_installed="6.1.135-1",
    driver="580.126.20",
    driver_installed="580.126.20",
    microcode=[],
    requested_by=None,
)
UNKNOWN = Effect("6.1.0-35-amd64", [], "", "", "", "", [], None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        (
            {"kernels": ["6.1.0-35-amd64", "6.1.0-37-amd64"]},
            ["kernel 6.1.0-35-amd64 runs, 6.1.0-37-amd64 is installed"],
        ),
        # An older one beside it, and one whose number has more digits.
        ({"kernels": ["6.1.0-35-amd64", "6.1.0-4-amd64"]}, []),
        (
            {"kernel": "6.1.0-9-amd64", "kernels": ["6.1.0-9-amd64", "6.1.0-10-amd64"]},
            ["kernel 6.1.0-9-amd64 runs, 6.1.0-10-amd64 is installed"],
        ),
        # Of the same name, built anew.
        (
            {"build_installed": "6.1.137-1"},
            ["kernel 6.1.135-1 runs, 6.1.137-1 is installed"],
        ),
        (
            {"driver_installed": "580.159.04"},
            ["NVIDIA's driver 580.126.20 runs, 580.159.04 is installed"],
        ),
        (
            {"microcode": ["intel-microcode"]},
            ["intel-microcode was installed after the start"],
        ),
        ({"requested_by": ["dbus"]}, ["dbus asked for it (/run/reboot-required)"]),
        ({"requested_by": []}, ["a package asked for it (/run/reboot-required)"]),
        # The cause is known already.
        (
            {"microcode": ["intel-microcode"], "requested_by": ["intel-microcode"]},
            ["intel-microcode was installed after the start"],
        ),
    ],
)
def test_why_a_restart_is_required(change: dict[str, object], said: list[str]) -> None:
    assert waiting.list_restart_reasons(QUIET._replace(**change)) == said  # type: ignore[arg-type]


def test_what_is_not_known_is_no_reason() -> None:
    assert waiting.list_restart_reasons(UNKNOWN) == []


@pytest.mark.parametrize(
    ("mapped", "stale"),
    [
        ("/usr/sbin/keepalived (deleted)", True),
        ("/usr/lib/x86_64-linux-gnu/libnl-3.so.200.26.0 (deleted)", True),
        ("/usr/sbin/keepalived", False),
        ("/memfd:cuda (deleted)", False),
    ],
)
def test_a_program_that_was_replaced_is_told_from_memory_without_a_file(
    monkeypatch: pytest.MonkeyPatch, mapped: str, stale: bool
) -> None:
    line = f"55d0 r-xp 00001000 08:01 123    {mapped}\n"
    monkeypatch.setattr(waiting, "read_text", lambda path: line)
    assert waiting.is_running_replaced("1") is stale


def test_a_package_that_cannot_be_installed_is_named_before_apts_own_line() -> None:
    said = apt.find_reason(
        "Unpacking liblab (3.0-1) over (2.0-1) ...\n"
        "dpkg: error processing archive /var/cache/apt/liblab_3.0-1_amd64.deb (--unpack):\n"
        " new liblab package pre-installation script subprocess returned error exit status 1\n"
        "W: nothing of account\n"
        "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"
    )
    assert said.startswith("dpkg: error processing archive /var/cache/apt/liblab_3.0-1")
    assert "pre-installation script subprocess returned error exit status 1; Sub-process" in said
    assert "account" not in said
