"""A repository of small real packages under NVIDIA's names, and a machine that seems to have GPUs.

What stands in for hardware: a recorded `nvidia-smi -q -x`, the bus and /proc/driver, laid over
the machine's own at each boot by `lab-nvidia.service`. The product reads them as it would the
real ones; apt, dpkg, modinfo, systemd and the restart are real.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import http.server
import platform
import re
import shutil
import struct
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from machines import Lab, make_lab, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from machines import Host

RECORDING = Path(__file__).resolve().parents[1] / "data" / "recordings" / "h200-x8"
OLD, NEW, NEWER, BROKEN = "570.133.20", "580.159.04", "590.44.01", "580.999.99"
# What Debian 12 itself has, with what its packager adds to the version.
DEBIAN, REVISION = "535.247.01", "1~deb12u1"
HEADERS = f"linux-headers-{platform.release()}"
# What needs the new driver is Kimi's INT4; what could be served here is the tiny model.
WISHES = {
    "kimi_model": "kimi-k2.5",
    "kimi_weights_source": None,
    "kimi_engine_stand_in": "file:///opt/models/kimi-k2-lab",
    "nvidia_driver_reboot_ok": True,
}
SWITCH = "0000:90:00.0 0x10de 0x22a3 0x068000 -1"

_SMI = r"""#!/bin/sh
# A stand-in: answers as a recorded one did, in the version of this package.
own=@VERSION@
told=/proc/driver/nvidia/version
runs=$(sed -n 's/^NVRM version: .*x86_64  \([0-9.]*\)  .*/\1/p' $told 2>/dev/null)
if [ -z "$runs" ]; then
  echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
  exit 9
fi
if [ "$runs" != "$own" ]; then
  echo "Failed to initialize NVML: Driver/library version mismatch"
  exit 18
fi
case "$*" in
"-q -x") gzip -dc /usr/share/lab-nvidia/query.xml.gz |
  sed "s/@RECORDED@/$own/; s/\(<cuda_version>\)[^<]*/\1@CUDA@/" ;;
"topo -m") cat /usr/share/lab-nvidia/topology.txt ;;
esac
"""
# What dkms does: a module for the kernel that runs, and none, in silence, where its headers are not
# there yet. Only the module's description is real.
_DKMS = r"""#!/bin/sh
set -e
[ -d "/lib/modules/$(uname -r)/build" ] || exit 0
folder=/lib/modules/$(uname -r)/updates/dkms
mkdir -p "$folder"
cp /usr/share/lab-nvidia/nvidia.ko "$folder/nvidia.ko"
depmod
"""
_UNDKMS = "#!/bin/sh\nrm -f /lib/modules/$(uname -r)/updates/dkms/nvidia.ko\ndepmod || true\n"
_DAEMON = """[Unit]
Description=stand-in for @NAME@
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""
_BOOT = r"""#!/bin/sh
# The bus of a recorded machine with a switch added, and the module that its packages brought.
set -e
mount -t tmpfs lab-bus /sys/bus/pci/devices
while read -r address vendor device class node; do
  mkdir "/sys/bus/pci/devices/$address"
  echo "$vendor" > "/sys/bus/pci/devices/$address/vendor"
  echo "$device" > "/sys/bus/pci/devices/$address/device"
  echo "$class" > "/sys/bus/pci/devices/$address/class"
done < /etc/lab-nvidia/pci.txt
module=$(modinfo -F version nvidia 2>/dev/null) || exit 0
case "$module" in *.999.*) echo "nvidia: the module does not load" >&2; exit 0 ;; esac
mount -t tmpfs lab-module /proc/driver
mkdir -p /proc/driver/nvidia /proc/driver/nvidia-nvswitch/devices/0000:90:00.0
echo "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  $module  Release Build  (lab)" \
  > /proc/driver/nvidia/version
"""
_BOOT_UNIT = """[Unit]
Description=stand-in for GPUs and their kernel module
DefaultDependencies=no
After=local-fs.target systemd-udev-trigger.service
Before=basic.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh /etc/lab-nvidia/boot
[Install]
WantedBy=basic.target
"""


def module(version: str) -> bytes:
    """The smallest object file that modinfo and depmod read: its description and nothing else."""
    told = f"name=nvidia\0version={version}\0license=Dual MIT/GPL\0".encode()
    names = b"\0.modinfo\0.shstrtab\0"
    head = 64
    table = head + len(told) + len(names)
    sections = [
        struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, head, len(told), 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, head + len(told), len(names), 0, 0, 1, 0),
    ]
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    elf = struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    return ident + elf + told + names + b"".join(sections)


@dataclass
class Package:
    """What goes into one .deb; paths without a leading slash."""

    name: str
    version: str
    files: dict[str, str | bytes] = field(default_factory=dict)
    depends: str = ""
    conflicts: str = ""
    revision: str = "1"
    scripts: dict[str, str] = field(default_factory=dict)

    def build(self, out: Path, work: Path) -> None:
        """Write it with dpkg-deb."""
        root = work / f"{self.name}_{self.version}"
        for name, content in self.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            path.chmod(0o755 if "/bin/" in name else 0o644)
        control = root / "DEBIAN"
        control.mkdir(parents=True, exist_ok=True)
        exact = f"{self.version}-{self.revision}"
        lines = [f"Package: {self.name}", f"Version: {exact}", "Architecture: amd64"]
        lines += ["Maintainer: the lab <lab@example.com>", "Section: non-free"]
        lines += [f"Depends: {self.depends}"] if self.depends else []
        lines += [f"Conflicts: {self.conflicts}"] if self.conflicts else []
        lines += [f"Description: stand-in for {self.name}"]
        (control / "control").write_text("\n".join(lines) + "\n")
        for name, text in self.scripts.items():
            (control / name).write_text(text)
            (control / name).chmod(0o755)
        command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(root), str(out)]
        subprocess.run(command, check=True, capture_output=True)


def _smi(version: str, cuda: str) -> dict[str, str | bytes]:
    """Files of an nvidia-smi that answers as the recorded one did, in this version."""
    query = (RECORDING / "nvidia-smi-q.xml").read_text()
    recorded = re.search(r"<driver_version>([\d.]+)<", query)
    assert recorded
    program = _SMI.replace("@VERSION@", version).replace("@RECORDED@", recorded[1])
    return {
        "usr/bin/nvidia-smi": program.replace("@CUDA@", cuda),
        "usr/share/lab-nvidia/query.xml.gz": gzip.compress(query.encode()),
        "usr/share/lab-nvidia/topology.txt": (RECORDING / "nvidia-smi-topo-m.txt").read_bytes(),
    }


def _module(name: str, version: str, conflicts: str, **more: str) -> Package:
    return Package(
        name,
        version,
        {"usr/share/lab-nvidia/nvidia.ko": module(version)},
        conflicts=conflicts,
        scripts={"postinst": _DKMS, "prerm": _UNDKMS},
        **more,  # type: ignore[arg-type]
    )


def debian() -> list[Package]:
    """The driver as Debian's own archive has it, cut down: names and dependencies are its own."""

    def package(name: str, *needs: str, **more: object) -> Package:
        depends = ", ".join(needs)
        return Package(name, DEBIAN, depends=depends, revision=REVISION, **more)  # type: ignore[arg-type]

    same = f"(= {DEBIAN}-{REVISION})"
    return [
        package("nvidia-driver", *(f"{n} {same}" for n in ("nvidia-driver-libs", "nvidia-smi"))),
        package("nvidia-driver-libs", f"libcuda1 {same}", f"nvidia-alternative {same}"),
        package("nvidia-alternative"),
        package("nvidia-smi", f"libnvidia-ml1 {same}", files=_smi(DEBIAN, "12.2")),
        package("libnvidia-ml1"),
        package("libcuda1"),
        _module(
            "nvidia-kernel-dkms",
            DEBIAN,
            "nvidia-kernel-open-dkms",
            depends="nvidia-kernel-common",
            revision=REVISION,
        ),
        # Beside the driver, with a version of its own.
        Package("nvidia-kernel-common", "20220217+3~deb12u1"),
    ]


def packages(version: str) -> list[Package]:
    """The driver of one version as NVIDIA's repository for Debian has it, with its fabric manager.

    The names of the last two carry the branch in 570 and not from 580 on.
    """
    tail = "-570" if version == OLD else ""

    def daemon(name: str) -> dict[str, str | bytes]:
        return {f"lib/systemd/system/{name}.service": _DAEMON.replace("@NAME@", name)}

    def enable(name: str) -> dict[str, str]:
        return {"postinst": f"#!/bin/sh\nsystemctl enable {name}.service\n"}

    return [
        Package("libcuda1", version, {f"usr/lib/x86_64-linux-gnu/libcuda.so.{version}": "lab"}),
        Package(
            "nvidia-driver-cuda",
            version,
            _smi(version, "12.8" if version == OLD else "13.0"),
            # As NVIDIA's own do: not an upper bound, so that nothing but a pin keeps a branch.
            depends=f"libcuda1 (= {version}-1), nvidia-persistenced (>= {version[:3]})",
        ),
        _module("nvidia-kernel-open-dkms", version, "nvidia-kernel-dkms"),
        Package(
            "nvidia-persistenced",
            version,
            daemon("nvidia-persistenced"),
            scripts=enable("nvidia-persistenced"),
        ),
        Package(f"nvidia-fabricmanager{tail}", version, daemon("nvidia-fabricmanager")),
        Package(f"libnvidia-nscq{tail}", version),
    ]


@dataclass
class Repository:
    """A flat, signed repository, served at `url`; Debian's, not signed, is at `archive`."""

    folder: Path
    url: str
    archive: str
    fingerprint: str
    server: http.server.ThreadingHTTPServer

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def repository(folder: Path, address: str, seen_as: str | None = None) -> Repository:
    """Build all packages, sign the index with a key made for it, and serve them at `address`.

    `seen_as`: the address that the machines know it by, where that is another.
    """
    served, archive = folder / "served" / "cuda", folder / "served" / "debian"
    headers = {f"lib/modules/{platform.release()}/build/Makefile": "# the lab's\n"}
    nvidias = [package for version in (OLD, NEW, NEWER, BROKEN) for package in packages(version)]
    # A site's mirror may be all that apt reads besides: what the kernel needs lies here too.
    nvidias.append(Package(HEADERS, "6.1", headers))
    for place, content in ((served, nvidias), (archive, debian())):
        place.mkdir(parents=True)
        for package in content:
            package.build(place, folder / "work")
        index = run("dpkg-scanpackages", "--multiversion", ".", cwd=place)
        assert index.returncode == 0, index.stderr
        (place / "Packages").write_text(index.stdout)
        digest = hashlib.sha256(index.stdout.encode()).hexdigest()
        (place / "Release").write_text(
            "Origin: lab\nLabel: lab\nArchitectures: amd64\nSHA256:\n"
            f" {digest} {len(index.stdout.encode())} Packages\n"
        )
    shutil.rmtree(folder / "work")
    home = folder / "gpg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback"]
    made = [*gpg, "--passphrase", "", "--quick-gen-key", "lab driver", "rsa2048", "sign", "never"]
    subprocess.run(made, check=True, capture_output=True)
    listed = run(*gpg, "--with-colons", "--list-keys").stdout
    fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line[:3] == "fpr")
    for options, name in (
        (["--clearsign"], "InRelease"),
        (["--armor", "--detach-sign"], "Release.gpg"),
    ):
        target = served / name
        subprocess.run([*gpg, *options, "-o", str(target), str(served / "Release")], check=True)
    subprocess.run([*gpg, "--armor", "-o", str(served / "3bf863cc.pub"), "--export"], check=True)
    handler = functools.partial(_Quiet, directory=str(served.parent))
    server = http.server.ThreadingHTTPServer((address, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run("gpgconf", "--homedir", str(home), "--kill", "all")
    root = f"http://{seen_as or address}:{server.server_port}"
    return Repository(served, f"{root}/cuda", f"{root}/debian", fingerprint, server)


def gpus(host: Host, *, switch: bool = True, headers: bool = True) -> None:
    """Lay the bus of the recorded machine over the host's own, now and at every boot."""
    bus = (RECORDING / "pci.txt").read_text() + (f"{SWITCH}\n" if switch else "")
    for name, text in (
        ("/etc/lab-nvidia/pci.txt", bus),
        ("/etc/lab-nvidia/boot", _BOOT),
        ("/etc/systemd/system/lab-nvidia.service", _BOOT_UNIT),
    ):
        host.ssh(f"mkdir -p $(dirname {name}) && cat > {name} <<'EOF'\n{text}\nEOF")
    host.ssh("sed -i '/^$/d' /etc/lab-nvidia/pci.txt; systemctl daemon-reload")
    if headers:
        host.ssh("mkdir -p /lib/modules/$(uname -r)/build")
    host.ssh("systemctl enable --now lab-nvidia.service")


def install(host: Host, repo: Repository, version: str) -> None:
    """Install a version by hand, as whoever set the machine up would have."""
    tail = "-570" if version == OLD else ""
    names = ["nvidia-driver-cuda", "libcuda1", "nvidia-kernel-open-dkms", "nvidia-persistenced"]
    names += [f"nvidia-fabricmanager{tail}", f"libnvidia-nscq{tail}"]
    _install(host, repo.url, *(f"{name}={version}-1" for name in names))


def install_debian(host: Host, repo: Repository) -> None:
    """Install the distribution's own driver; its module needs a place to be built in meanwhile."""
    build = "/lib/modules/$(uname -r)/build"
    host.ssh(f"mkdir -p {build}")
    _install(host, repo.archive, "nvidia-driver", "nvidia-kernel-dkms")
    host.ssh(f"rmdir {build}")


def _install(host: Host, url: str, *words: str) -> None:
    host.ssh(
        f"echo 'deb [trusted=yes] {url} /' > /etc/apt/sources.list.d/theirs.list "
        "&& apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y "
        f"--allow-downgrades --no-install-recommends install {' '.join(words)} "
        "&& rm /etc/apt/sources.list.d/theirs.list && umount /proc/driver 2>/dev/null; "
        "umount /sys/bus/pci/devices; systemctl restart lab-nvidia.service",
        timeout=1800,
    )


@contextlib.contextmanager
def machines(
    folder: Path,
    network: str,
    drivers: Mapping[str, str],
    *,
    control: tuple[str, str] | None = None,
    settings: Mapping[str, object] | None = None,
    **wishes: object,
) -> Iterator[tuple[Lab, Repository]]:
    """Bring up machines with eight GPUs each and old drivers, and a repository that has new ones.

    `drivers`: the version that each machine has, OLD (NVIDIA's own) or DEBIAN. `control`: where
    the repository is served, and the address that the machines know it by, where that is not the
    gateway of their network. `settings`: as make_lab's.
    """
    given = {**WISHES, **wishes}
    made = make_lab(folder / "inv", network, drivers, settings=settings, **given)
    with contextlib.ExitStack() as stack:
        stack.callback(made.down)
        made.up()
        repo = repository(folder / "nvidia", *(control or (f"{network}.1",)))
        stack.callback(repo.close)
        file = made.inventory / "group_vars" / "kimi.yml"
        variables = {
            **yaml.safe_load(file.read_text()),
            "kimi_nvidia_repo_url": repo.url,
            "kimi_nvidia_repo_key_fingerprint": repo.fingerprint,
        }
        file.write_text(yaml.safe_dump(variables))
        for host in made.hosts.values():
            version = drivers[host.name]
            gpus(host, headers=version != DEBIAN)
            if version == DEBIAN:
                install_debian(host, repo)
            else:
                install(host, repo, version)
            assert running(host) == version
        yield made, repo


def installed(host: Host) -> dict[str, str]:
    """Packages of the driver that are installed, with their exact versions."""
    text = host.ssh(
        "dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\\n' '*nvidia*' libcuda1"
    )
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2][1] == "i"}


def versions(host: Host) -> set[str]:
    """Versions that those packages have, each once."""
    return {version.rpartition("-")[0] for version in installed(host).values()}


def running(host: Host) -> str:
    """Version of the driver that runs, as nvidia-smi says it."""
    return host.ssh("nvidia-smi -q -x | sed -n 's/.*<driver_version>\\(.*\\)<.*/\\1/p'").strip()
