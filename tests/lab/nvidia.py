"""A repository of small real packages under NVIDIA's names, and a machine that seems to have GPUs.

What stands in for hardware: a recorded `nvidia-smi -q -x`, the bus and /proc/driver, laid over
the machine's own at each boot by `lab-nvidia.service`. The product reads them as it would the
real ones; apt, dpkg, modinfo, systemd and the restart are real.
"""

from __future__ import annotations

import functools
import gzip
import http.server
import re
import shutil
import struct
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from machines import run

if TYPE_CHECKING:
    from machines import Host

RECORDING = Path(__file__).resolve().parents[1] / "data" / "recordings" / "h200-x8"
OLD, NEW, NEWER, BROKEN = "570.133.20", "580.159.04", "590.44.01", "580.999.99"
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
# What dkms does: a module for the kernel that runs. Only its description is real.
_DKMS = r"""#!/bin/sh
set -e
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
        lines = [f"Package: {self.name}", f"Version: {self.version}-1", "Architecture: amd64"]
        lines += ["Maintainer: the lab <lab@example.com>", "Section: non-free"]
        lines += [f"Depends: {self.depends}"] if self.depends else []
        lines += [f"Conflicts: {self.conflicts}"] if self.conflicts else []
        lines += [f"Description: stand-in for NVIDIA's {self.name}"]
        (control / "control").write_text("\n".join(lines) + "\n")
        for name, text in self.scripts.items():
            (control / name).write_text(text)
            (control / name).chmod(0o755)
        command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(root), str(out)]
        subprocess.run(command, check=True, capture_output=True)


def packages(version: str) -> list[Package]:
    """The driver of one version as NVIDIA's repository for Debian has it, with its fabric manager.

    The names of the last two carry the branch in 570 and not from 580 on.
    """
    query = (RECORDING / "nvidia-smi-q.xml").read_text()
    recorded = re.search(r"<driver_version>([\d.]+)<", query)
    assert recorded
    smi = _SMI.replace("@VERSION@", version).replace("@RECORDED@", recorded[1])
    smi = smi.replace("@CUDA@", "12.8" if version == OLD else "13.0")
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
            {
                "usr/bin/nvidia-smi": smi,
                "usr/share/lab-nvidia/query.xml.gz": gzip.compress(query.encode()),
                "usr/share/lab-nvidia/topology.txt": (
                    RECORDING / "nvidia-smi-topo-m.txt"
                ).read_bytes(),
            },
            # As NVIDIA's own do: not an upper bound, so that nothing but a pin keeps a branch.
            depends=f"libcuda1 (= {version}-1), nvidia-persistenced (>= {version[:3]})",
        ),
        Package(
            "nvidia-kernel-open-dkms",
            version,
            {"usr/share/lab-nvidia/nvidia.ko": module(version)},
            conflicts="nvidia-kernel-dkms",
            scripts={"postinst": _DKMS, "prerm": _UNDKMS},
        ),
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
    """A flat, signed repository that a thread serves at `url`."""

    folder: Path
    url: str
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
    served = folder / "repo"
    served.mkdir(parents=True)
    for version in (OLD, NEW, NEWER, BROKEN):
        for package in packages(version):
            package.build(served, folder / "work")
    shutil.rmtree(folder / "work")
    home = folder / "gpg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback"]
    made = [*gpg, "--passphrase", "", "--quick-gen-key", "lab driver", "rsa2048", "sign", "never"]
    subprocess.run(made, check=True, capture_output=True)
    listed = run(*gpg, "--with-colons", "--list-keys").stdout
    fingerprint = next(line.split(":")[9] for line in listed.splitlines() if line[:3] == "fpr")
    index = run("dpkg-scanpackages", "--multiversion", ".", cwd=served)
    assert index.returncode == 0, index.stderr
    (served / "Packages").write_text(index.stdout)
    digest = run("sha256sum", "Packages", cwd=served).stdout.split()[0]
    size = (served / "Packages").stat().st_size
    (served / "Release").write_text(
        f"Origin: lab\nLabel: lab\nArchitectures: amd64\nSHA256:\n {digest} {size} Packages\n"
    )
    for options, name in (
        (["--clearsign"], "InRelease"),
        (["--armor", "--detach-sign"], "Release.gpg"),
    ):
        target = served / name
        subprocess.run([*gpg, *options, "-o", str(target), str(served / "Release")], check=True)
    subprocess.run([*gpg, "--armor", "-o", str(served / "3bf863cc.pub"), "--export"], check=True)
    handler = functools.partial(_Quiet, directory=str(served))
    server = http.server.ThreadingHTTPServer((address, 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    run("gpgconf", "--homedir", str(home), "--kill", "all")
    url = f"http://{seen_as or address}:{server.server_port}"
    return Repository(served, url, fingerprint, server)


def gpus(host: Host, *, switch: bool = True) -> None:
    """Lay the bus of the recorded machine over the host's own, now and at every boot."""
    bus = (RECORDING / "pci.txt").read_text() + (f"{SWITCH}\n" if switch else "")
    for name, text in (
        ("/etc/lab-nvidia/pci.txt", bus),
        ("/etc/lab-nvidia/boot", _BOOT),
        ("/etc/systemd/system/lab-nvidia.service", _BOOT_UNIT),
    ):
        host.ssh(f"mkdir -p $(dirname {name}) && cat > {name} <<'EOF'\n{text}\nEOF")
    host.ssh("sed -i '/^$/d' /etc/lab-nvidia/pci.txt; systemctl daemon-reload")
    # The headers of the kernel, which a stand-in for DKMS has no use for.
    host.ssh("mkdir -p /lib/modules/$(uname -r)/build")
    host.ssh("systemctl enable --now lab-nvidia.service")


def install(host: Host, repo: Repository, version: str) -> None:
    """Install a version by hand, as whoever set the machine up would have."""
    tail = "-570" if version == OLD else ""
    names = ["nvidia-driver-cuda", "libcuda1", "nvidia-kernel-open-dkms", "nvidia-persistenced"]
    names += [f"nvidia-fabricmanager{tail}", f"libnvidia-nscq{tail}"]
    exact = " ".join(f"{name}={version}-1" for name in names)
    source = f"deb [trusted=yes] {repo.url} /"
    host.ssh(
        f"echo '{source}' > /etc/apt/sources.list.d/theirs.list && apt-get -qq update "
        f"&& DEBIAN_FRONTEND=noninteractive apt-get -qq -y --allow-downgrades install {exact} "
        "&& rm /etc/apt/sources.list.d/theirs.list && umount /proc/driver 2>/dev/null; "
        "umount /sys/bus/pci/devices; systemctl restart lab-nvidia.service",
        timeout=300,
    )
