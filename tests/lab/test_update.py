"""Updates installed on machines that run, with stand-in packages of an archive of ours.

A restart of the container counts as a restart; there is no kernel of its own to come back with.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import pytest
from machines import kimi_prov, make_lab, run
from nvidia import Package

from kimi_prov.contract import paths

if TYPE_CHECKING:
    import io
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host, Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.102"
STARTED = "cut -d' ' -f22 /proc/1/stat"
# Of the first machine alone the last version cannot be installed.
_FAILS = "#!/bin/sh\n[ \"$(hostname)\" != first ] || { echo 'no room' >&2; exit 1; }\n"


class Archive:
    """A flat archive under the label of Debian's security fixes, at `url`."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder / "archive"
        self.folder.mkdir()
        self.work = folder / "work"
        handler = functools.partial(_Quiet, directory=str(self.folder))
        self.server = http.server.ThreadingHTTPServer((address, 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://{address}:{self.server.server_port}"

    def offer(self, *packages: Package, label: str = "Debian-Security") -> None:
        """Add packages to what is there."""
        for package in packages:
            package.build(self.folder, self.work)
        index = run("dpkg-scanpackages", "--multiversion", ".", cwd=self.folder)
        assert index.returncode == 0, index.stderr
        (self.folder / "Packages").write_text(index.stdout)
        digest = hashlib.sha256(index.stdout.encode()).hexdigest()
        (self.folder / "Release").write_text(
            f"Origin: lab\nLabel: {label}\nSuite: stable-security\nArchitectures: amd64\n"
            f"SHA256:\n {digest} {len(index.stdout.encode())} Packages\n"
        )

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def send_head(self) -> io.BytesIO | BinaryIO | None:
        """Give what is there now: two versions may have been offered within a second."""
        del self.headers["If-Modified-Since"]
        return super().send_head()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def version(number: int, **scripts: str) -> list[Package]:
    """What is offered in a version: a library, a kernel and microcode."""
    names = ("liblab", "linux-image-lab", "intel-microcode")
    return [
        Package(name, f"{number}.0", scripts=scripts if name == "liblab" else {}) for name in names
    ]


@contextmanager
def only(host: Host, archive: Archive) -> Iterator[None]:
    """Let apt see this archive alone, so that the world's own updates stay out of it."""
    host.ssh(
        "mkdir -p /opt/apt && mv /etc/apt/sources.list* /opt/apt/ && mkdir /etc/apt/sources.list.d "
        f"&& echo 'deb [trusted=yes] {archive.url} /' > /etc/apt/sources.list.d/lab.list "
        "&& apt-get -qq update && apt-get -qq -y install liblab linux-image-lab intel-microcode"
    )
    try:
        yield
    finally:
        host.ssh("rm -r /etc/apt/sources.list*; mv /opt/apt/* /etc/apt/ && apt-get -qq update")


@pytest.fixture(scope="module")
def update_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Archive]]:
    """Two machines on which nothing is served, with the first version of everything."""
    folder = tmp_path_factory.mktemp("update")
    made = make_lab(folder / "inv", NETWORK, nodes=["first", "second"])
    made.up()
    with closing(Archive(folder, f"{NETWORK}.1")) as archive:
        archive.offer(*version(1))
        first, second = made.hosts.values()
        with only(first, archive), only(second, archive):
            # As if they had been there before the machine was started.
            for host in (first, second):
                host.ssh("touch -d '1 week ago' /var/lib/dpkg/info/intel-microcode.list")
            yield made, archive
    made.down()


def installed(host: Host) -> dict[str, str]:
    names = "liblab linux-image-lab intel-microcode"
    text = host.ssh("dpkg-query -W -f '${Package} ${Version}\\n' " + names)
    return {name: version.partition(".")[0] for name, version in map(str.split, text.splitlines())}


def update(lab: Lab, *words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    done = kimi_prov("update", lab.inventory, *words, "--format", "json")
    return done, json.loads(done.stdout)["hosts"] if done.stdout else {}


def untouched(lab: Lab, number: str) -> bool:
    """Whether both machines have this version of everything, and nobody holds a lock."""
    return all(
        set(installed(host).values()) == {number}
        and host.ssh(f"ls {paths.APPLY_LOCK}", check=False) == ""
        for host in lab.hosts.values()
    )


def test_without_consent_nothing_is_installed_where_a_restart_is_due(
    update_lab: tuple[Lab, Archive],
) -> None:
    lab, archive = update_lab
    archive.offer(*version(2))
    done, told = update(lab)
    assert done.returncode == 3, done.stderr
    assert "update_reboot_ok: true for first" in done.stderr
    assert "update_reboot_ok: true for second" in done.stderr
    assert "linux-image-lab 2.0-1" in done.stderr
    assert [host["ok"] for host in told.values()] == [False, False]
    assert untouched(lab, "1")


def test_what_takes_no_restart_is_installed_without_one(update_lab: tuple[Lab, Archive]) -> None:
    lab, _ = update_lab
    started = [host.ssh(STARTED) for host in lab.hosts.values()]
    lab.hosts["second"].ssh("apt-mark hold liblab")
    done, told = update(lab, "--defer-restart")
    assert done.returncode == 0, done.stdout + done.stderr
    assert installed(lab.hosts["first"])["liblab"] == "2"
    assert told["first"]["installed"] == [
        {"name": "liblab", "from": "1.0-1", "to": "2.0-1", "kind": "security"}
    ]
    assert {row["name"] for row in told["first"]["left"]} == {"linux-image-lab", "intel-microcode"}
    # A hold is a person's decision.
    assert installed(lab.hosts["second"])["liblab"] == "1"
    why = {row["name"]: row["why"] for row in told["second"]["left"]}
    assert "apt-mark unhold liblab" in why["liblab"]
    lab.hosts["second"].ssh("apt-mark unhold liblab")
    assert [host.ssh(STARTED) for host in lab.hosts.values()] == started
    again, told = update(lab, "--defer-restart", "--limit", "first")
    assert (again.returncode, told["first"]["detail"]) == (0, "nothing to do")


def test_machines_restart_by_consent_one_after_the_other(update_lab: tuple[Lab, Archive]) -> None:
    lab, _ = update_lab
    started = [host.ssh(STARTED) for host in lab.hosts.values()]
    done, told = update(lab, "--reboot-ok")
    assert done.returncode == 0, done.stdout + done.stderr
    assert untouched(lab, "2")
    for host, before in zip(lab.hosts.values(), started, strict=True):
        assert host.ssh(STARTED) != before
        document = told[host.name]
        assert (document["restarted"], document["restart_reasons"]) == (True, [])
        # Nothing is served here.
        assert document["verified"] is False
    ticks, zero = STARTED, "sed -n 's/^btime //p' /proc/stat"
    booted = int(lab.hosts["first"].ssh(f"echo $(( $({zero}) + $({ticks}) / 100 ))"))
    began = lab.hosts["second"].ssh("grep -F 'linux-image-lab' /var/log/dpkg.log | tail -n 1")
    assert booted < int(lab.hosts["second"].ssh(f"date +%s -d '{' '.join(began.split()[:2])}'"))


def test_the_first_machine_that_fails_ends_it(update_lab: tuple[Lab, Archive]) -> None:
    lab, archive = update_lab
    archive.offer(*version(3, preinst=_FAILS))
    done, told = update(lab, "--reboot-ok")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "liblab" in told["first"]["detail"]
    assert set(told) == {"first", "second"}
    assert told["second"]["detail"] == "not changed: first failed before its batch"
    assert set(installed(lab.hosts["second"]).values()) == {"2"}
    for host in lab.hosts.values():
        assert host.ssh(f"ls {paths.APPLY_LOCK}", check=False) == ""
