"""Give this machine's GPUs to its nspawn hosts: devices, driver libraries and nvidia-smi.

All but the devices is read-only. The files are those of the container toolkit's description of this
machine, or, without one, those of the dynamic linker and the driver's folder.

Decides: the lab (which GPUs of this machine a lab host gets).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov import documents
from kimi_prov.errors import UserError
from kimi_prov.lab.shell import find_tool, run_tool
from kimi_prov.on_host.probe import nvidia_smi

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Devices of NVIDIA's driver and its node programs: cards, control, unified memory, MIG, fabric.
_DEVICES = (
    *("nvidia[0-9]*", "nvidiactl", "nvidia-modeset", "nvidia-uvm*", "nvidia-nvswitch*"),
    *("nvidia-nvlink*", "nvidia-caps/*", "nvidia-caps-imex-channels/*"),
)
_CARD = re.compile(r"/dev/nvidia\d+")
# Files of the Container Device Interface; the first that exists counts, as for the runtimes.
DESCRIPTIONS = tuple(
    f"{folder}/nvidia.{ending}"
    for folder in ("/etc/cdi", "/var/run/cdi")
    for ending in ("yaml", "yml", "json")
)
_DESCRIBE = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_MAX_BYTES = 4 << 20
_SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/lib32", "/lib", "/lib64", "/usr/local/lib")
# The host's folder for libraries that are among the system's own on this machine.
_LIBRARIES = "/opt/lab-gpus/lib"
# The file that is mounted over the driver's own in a host with a part of the cards.
_PARAMETERS = "/opt/lab-gpus/params"
_DRIVER_PARAMETERS = "/proc/driver/nvidia/params"
_SMI = "/usr/bin/nvidia-smi"
# Folders over which the host mounts its own: files cannot be laid there.
_MOUNTED_OVER = ("/run/", "/var/run/", "/tmp/", "/proc/", "/sys/", "/dev/")  # noqa: S108

_UNIT = """\
[Unit]
Description=Libraries of the GPUs that this lab host was given
DefaultDependencies=no
After=local-fs.target
Before=sysinit.target
[Service]
Type=oneshot
ExecStart=/sbin/ldconfig
{more}[Install]
WantedBy=sysinit.target
"""

# As NVIDIA's container runtime does it: for a process of root the driver's libraries create
# missing device files, unless this file forbids it.
_COVER = (
    f"ExecStart=/bin/sh -c '[ ! -e {_DRIVER_PARAMETERS} ] || "
    f"mount --bind {_PARAMETERS} {_DRIVER_PARAMETERS}'\n"
)


@dataclass(frozen=True)
class GpuAccess:
    """What a host gets: device nodes; read-only (path here, path there); folders of libraries.

    `program`: nvidia-smi's path there, if it is not on the usual PATH. `parameters`: the driver's
    parameters for a host with a part of the cards; None for a host with all.
    """

    devices: tuple[str, ...]
    binds: tuple[tuple[str, str], ...]
    folders: tuple[str, ...]
    program: str | None = None
    parameters: str | None = None

    @property
    def options(self) -> list[str]:
        """The options of systemd-nspawn that give the GPUs to the host."""
        return [
            # Needed by systemd in the host to limit its units to their devices and addresses.
            "--system-call-filter=bpf",
            # No program there may create the files of the other cards.
            *(["--drop-capability=CAP_MKNOD"] if self.parameters is not None else []),
            *(f"--bind={device}" for device in self.devices),
            *(
                f"--bind-ro={_escape_path(here)}:{_escape_path(there)}"
                for here, there in self.binds
            ),
        ]


def find_gpus(
    root: Path = Path("/"), *, libraries: str | None = None, cards: Sequence[int] = ()
) -> GpuAccess:
    """Find the GPUs of this machine.

    `root`: a tree that stands for this machine's; `libraries`: the output of `ldconfig -p`, which
    is run where it is None; `cards`: numbers of the wanted cards, as in their device files, all
    where empty. Raises UserError (exit 2) where a part is missing.
    """
    access = _find_all(root, libraries)
    if not cards:
        return access
    devices = {f"/dev/nvidia{card}" for card in cards}
    there = {device for device in access.devices if _CARD.fullmatch(device)}
    if missing := sorted(devices - there):
        raise UserError(
            f"lab_gpus: {sorted(cards)}, and this machine has no {', '.join(missing)}",
            fix=f"name cards of {', '.join(sorted(there))}, by their numbers",
        )
    return replace(
        access,
        devices=tuple(name for name in access.devices if name not in there - devices),
        parameters=_read_parameters(root),
    )


def _read_parameters(root: Path) -> str:
    """Return the driver's parameters with which its libraries create no device files."""
    own = root / _DRIVER_PARAMETERS.lstrip("/")
    rows = own.read_text().splitlines() if own.exists() else []
    kept = [row for row in rows if not row.startswith("ModifyDeviceFiles:")]
    return "\n".join(["ModifyDeviceFiles: 0", *kept]) + "\n"


def _find_all(root: Path, libraries: str | None) -> GpuAccess:
    devices = _list_devices(root)
    cards = [device for device in devices if _CARD.fullmatch(device)]
    if not cards or "/dev/nvidiactl" not in devices:
        raise UserError(
            "lab_gpus is set, but this machine has no NVIDIA GPU for a lab host: there is "
            "no " + ("/dev/nvidiactl" if cards else "/dev/nvidia0"),
            fix="look what `nvidia-smi` says on this machine (it makes the device files where the "
            "driver runs), or remove lab_gpus from the inventory",
        )
    described = _read_description(root)
    if described is not None:
        return GpuAccess(devices, *_list_from_description(root, *described))
    if libraries is None:
        libraries = run_tool(["ldconfig", "-p"], what="listing the libraries").stdout
    return _find_by_linker(root, devices, libraries)


def add_library_paths(upper: Path, access: GpuAccess) -> None:
    """Write the files by which a host finds the libraries; the host must not run meanwhile."""
    conf = upper / "etc/ld.so.conf.d/000-lab-gpus.conf"
    unit = upper / "etc/systemd/system/lab-gpus.service"
    link = upper / "etc/systemd/system/sysinit.target.wants/lab-gpus.service"
    for folder in (conf.parent, unit.parent, link.parent, upper / "usr/bin"):
        folder.mkdir(parents=True, exist_ok=True)
    conf.write_text("".join(f"{folder}\n" for folder in access.folders))
    unit.write_text(_UNIT.format(more="" if access.parameters is None else _COVER))
    if access.parameters is not None:
        parameters = upper / _PARAMETERS.lstrip("/")
        parameters.parent.mkdir(parents=True, exist_ok=True)
        parameters.write_text(access.parameters)
    _link(link, "../lab-gpus.service")
    if access.program is not None:
        _link(upper / _SMI.lstrip("/"), access.program)


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _escape_path(path: str) -> str:
    """Escape a path for an option whose separator is the colon."""
    return path.replace("\\", "\\\\").replace(":", "\\:")


def _list_devices(root: Path) -> tuple[str, ...]:
    devices = {
        f"/{path.relative_to(root)}"
        for pattern in _DEVICES
        for path in (root / "dev").glob(pattern)
        if not path.is_dir()
    }
    return tuple(sorted(devices))


def _read_description(root: Path) -> tuple[str, dict[str, Any]] | None:
    """Return the toolkit's description of this machine, with its path; None where there is none."""
    for name in DESCRIPTIONS:
        path = root / name.lstrip("/")
        if path.is_file():
            document = documents.read_document(
                path, what="a description of GPUs", limit=_MAX_BYTES, fix=_DESCRIBE
            ).yaml(_DESCRIBE)
            return name, document if isinstance(document, dict) else {}
    return None


def _list_from_description(
    root: Path, name: str, document: dict[str, Any]
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the files that a description names, and the folders of the libraries among them."""
    binds = {
        there: here
        for here, there in _list_mounts(document)
        if not there.startswith(_MOUNTED_OVER) and (root / here.lstrip("/")).exists()
    }
    folders = {there.rpartition("/")[0] for there in binds if re.search(r"\.so(\.|$)", there)}
    missing = [
        what
        for what, there in (
            ("libcuda.so", any("/libcuda.so" in path for path in binds)),
            ("nvidia-smi", any(path.endswith("/nvidia-smi") for path in binds)),
        )
        if not there
    ]
    if missing:
        raise UserError(
            f"{name} names no {' and no '.join(missing)} that is there",
            fix=f"write it again: {_DESCRIBE}",
        )
    return tuple((here, there) for there, here in sorted(binds.items())), tuple(sorted(folders))


def _list_mounts(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Give each mount of the description, of all devices and of each."""
    parts = [document, *(row for row in _read_rows(document, "devices"))]
    for part in parts:
        edits = part.get("containerEdits")
        for mount in _read_rows(edits, "mounts") if isinstance(edits, dict) else ():
            here, there = mount.get("hostPath"), mount.get("containerPath")
            if all(isinstance(p, str) and p.startswith("/") for p in (here, there)):
                yield str(here), str(there)


def _read_rows(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = document.get(key)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _find_by_linker(root: Path, devices: tuple[str, ...], libraries: str) -> GpuAccess:
    """Find the libraries of the driver that runs by their version; a folder of its own is whole."""
    version = _read_version(root)
    named = [
        line.rpartition(" => ")[2].strip() for line in libraries.splitlines() if " => " in line
    ]
    files = {
        real for path in named if (real := _resolve_path(root, path)).endswith(f".so.{version}")
    }
    # The linker lists only some libraries; the driver opens further ones beside them.
    folders = sorted({file.rpartition("/")[0] for file in files})
    for folder in folders:
        beside = (root / folder.lstrip("/")).glob(f"*.so.{version}")
        files |= {f"{folder}/{path.name}" for path in beside}
    if not any("/libcuda.so." in file for file in files):
        raise UserError(
            f"the linker knows no libcuda.so of the driver that runs, {version}",
            fix=f"run ldconfig, or have the container toolkit describe the machine: {_DESCRIBE}",
        )
    own = sorted({prefix for folder in folders if (prefix := _find_own_folder(folder)) is not None})
    binds = [(prefix, prefix) for prefix in own]
    kept = [folder for folder in folders if _is_below(folder, own)]
    loose = sorted(file for file in files if not _is_below(file, own))
    if loose:
        binds += [(file, f"{_LIBRARIES}/{file.rpartition('/')[2]}") for file in loose]
        kept.append(_LIBRARIES)
    program = _find_program(root)
    if _is_below(program, own):
        return GpuAccess(devices, tuple(binds), tuple(kept), program)
    return GpuAccess(devices, (*binds, (program, _SMI)), tuple(kept))


def _read_version(root: Path) -> str:
    file = root / "proc/driver/nvidia/version"
    version = nvidia_smi.parse_module(file.read_text() if file.exists() else None)["version"]
    if version is None:
        raise UserError(
            "/proc/driver/nvidia/version does not say which driver runs",
            fix=f"have the container toolkit describe the machine: {_DESCRIBE}",
        )
    return str(version)


def _find_program(root: Path) -> str:
    """Return nvidia-smi's own path, links followed."""
    seen = find_tool("nvidia-smi") if root == Path("/") else _SMI
    real = _resolve_path(root, seen or _SMI)
    if not (root / real.lstrip("/")).exists():
        raise UserError(
            "nvidia-smi is missing, by which a host lists its GPUs",
            fix="install the driver's utilities of the version that runs",
        )
    return real


def _resolve_path(root: Path, path: str) -> str:
    """Follow the links of a path inside of `root`."""
    here = root / path.lstrip("/")
    for _ in range(16):
        if not here.is_symlink():
            break
        target = here.readlink()
        here = root / str(target).lstrip("/") if target.is_absolute() else here.parent / target
    resolved = here.parent.resolve() / here.name
    base = root.resolve()
    return f"/{resolved.relative_to(base)}" if resolved.is_relative_to(base) else path


def _find_own_folder(folder: str) -> str | None:
    """Return the folder if only the driver uses it, None for a folder of the system."""
    if any(
        folder == system_folder or folder.startswith(f"{system_folder}/")
        for system_folder in _SYSTEM
    ):
        return None
    prefix, _, last = folder.rpartition("/")
    return prefix if last in {"lib", "lib64"} and prefix.count("/") > 1 else folder


def _is_below(path: str, prefixes: Sequence[str]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)
