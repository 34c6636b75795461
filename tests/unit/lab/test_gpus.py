"""GPUs of this machine for a lab host, looked for in made trees of files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab import gpus, nspawn
from kimi_prov.lab.inventory import Lab, LabHost, dump_lab, parse_lab, restore_lab
from kimi_prov.lab.state import HostState

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "580.159.04"
LOADED = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {VERSION}  Release Build\n"
SYSTEM = "usr/lib/x86_64-linux-gnu"
OWN = "usr/local/nvidia"


def tree(root: Path, folder: str, *, cards: int = 2) -> Path:
    """A machine with cards whose driver's libraries lie in `folder`."""
    devices = [*(f"nvidia{n}" for n in range(cards)), "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"]
    for name in [*devices, "nvidia-caps/nvidia-cap1", "null", "nvram"]:
        put(root / "dev" / name)
    put(root / "proc/driver/nvidia/version", LOADED)
    for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler"):
        put(root / folder / f"{name}.so.{VERSION}")
        (root / folder / f"{name}.so.1").symlink_to(f"{name}.so.{VERSION}")
    put(root / folder / "libcuda.so.535.1")
    return root


def put(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def linker(*folders: str) -> str:
    lines = [
        f"\t{name}.so.1 (libc6,x86-64) => /{folder}/{name}.so.1"
        for folder in folders
        for name in ("libcuda", "libnvidia-ml")
    ]
    return "\n".join(["2 libs found in cache", *lines, "\tlibc.so.6 (libc6) => /usr/lib/libc.so.6"])


def described(root: Path, *mounts: tuple[str, str], where: str = "etc/cdi/nvidia.yaml") -> None:
    rows = [{"hostPath": here, "containerPath": there} for here, there in mounts]
    document = {"cdiVersion": "0.5.0", "containerEdits": {"mounts": rows}, "devices": []}
    put(root / where, yaml.safe_dump(document))


def test_libraries_among_the_systems_are_given_one_by_one_in_the_drivers_version(tmp_path: Path):
    root = tree(tmp_path, SYSTEM)
    put(root / "usr/bin/nvidia-smi")
    given = gpus.find_gpus(root, libraries=linker(SYSTEM))
    assert given.devices == (
        *("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
        *("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"),
    )
    names = ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
    files = [f"{name}.so.{VERSION}" for name in names]
    assert given.binds == (
        *((f"/{SYSTEM}/{file}", f"/opt/lab-gpus/lib/{file}") for file in files),
        ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi"),
    )
    assert (given.folders, given.program) == (("/opt/lab-gpus/lib",), None)


def test_a_driver_in_a_folder_of_its_own_is_given_with_it_and_its_program_is_linked(tmp_path: Path):
    root = tree(tmp_path, f"{OWN}/lib64")
    put(root / OWN / "bin/nvidia-smi")
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/nvidia-smi").symlink_to("/usr/local/nvidia/bin/nvidia-smi")
    given = gpus.find_gpus(root, libraries=linker(f"{OWN}/lib64"))
    assert given.binds == ((f"/{OWN}", f"/{OWN}"),)
    assert given.folders == (f"/{OWN}/lib64",)
    assert given.program == f"/{OWN}/bin/nvidia-smi"
    upper = tmp_path / "upper"
    gpus.add_library_paths(upper, given)
    gpus.add_library_paths(upper, given)
    assert (upper / "etc/ld.so.conf.d/000-lab-gpus.conf").read_text() == f"/{OWN}/lib64\n"
    assert str((upper / "usr/bin/nvidia-smi").readlink()) == given.program
    wanted = upper / "etc/systemd/system/sysinit.target.wants/lab-gpus.service"
    assert "ExecStart=/sbin/ldconfig" in wanted.read_text()


@pytest.mark.parametrize("where", ["etc/cdi/nvidia.yaml", "var/run/cdi/nvidia.json"])
def test_the_toolkits_description_counts_before_the_linker(tmp_path: Path, where: str):
    root = tree(tmp_path, "usr/lib64")
    put(root / "usr/bin/nvidia-smi")
    cuda = f"/usr/lib64/libcuda.so.{VERSION}"
    there = f"/{SYSTEM}/libcuda.so.{VERSION}"
    smi = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi")
    socket = "/run/nvidia-persistenced/socket"
    put(root / socket.lstrip("/"))
    described(root, (cuda, there), smi, (socket, socket), ("/gone", "/gone"), where=where)
    given = gpus.find_gpus(root, libraries="")
    assert given.binds == (smi, (cuda, there))
    assert given.folders == (f"/{SYSTEM}",)


@pytest.mark.parametrize(
    ("change", "said", "fix"),
    [
        ("cards", "no NVIDIA GPU for a lab host: there is no /dev/nvidia0", "nvidia-smi"),
        ("libraries", f"the linker knows no libcuda.so of the driver that runs, {VERSION}", "ctk"),
        ("version", "/proc/driver/nvidia/version does not say which driver runs", "nvidia-ctk"),
        ("program", "nvidia-smi is missing", "utilities"),
        ("description", "/etc/cdi/nvidia.yaml names no libcuda.so and no nvidia-smi", "nvidia-ctk"),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(tmp_path: Path, change: str, said: str, fix: str):
    root = tree(tmp_path, SYSTEM, cards=0 if change == "cards" else 2)
    if change != "program":
        put(root / "usr/bin/nvidia-smi")
    if change == "version":
        put(root / "proc/driver/nvidia/version", "none")
    if change == "description":
        described(root)
    with pytest.raises(UserError) as refused:
        gpus.find_gpus(root, libraries="" if change == "libraries" else linker(SYSTEM))
    assert refused.value.exit_code == ExitCode.BAD_INPUT
    assert said in refused.value.message
    assert fix in (refused.value.fix or "")


def test_a_description_that_is_no_yaml_is_refused_with_its_name(tmp_path: Path):
    root = tree(tmp_path, SYSTEM)
    put(root / "etc/cdi/nvidia.yaml", "a: [")
    with pytest.raises(UserError, match=r"nvidia\.yaml"):
        gpus.find_gpus(root, libraries=linker(SYSTEM))


def test_a_host_with_gpus_gets_them_on_its_command_line(tmp_path: Path):
    root = tree(tmp_path / "root", SYSTEM)
    put(root / "usr/bin/nvidia-smi")
    given = gpus.find_gpus(root, libraries=linker(SYSTEM))
    node = {"lab_kind": "nspawn", "lab_address": "10.93.7.11"}
    hostvars = {
        "gpu1": {**node, "lab_gpus": "all"},
        "part": {**node, "lab_address": "10.93.7.13", "lab_gpus": [1, 0]},
        "plain": {**node, "lab_address": "10.93.7.12"},
    }
    lab = parse_lab(tmp_path / "inv", {"_meta": {"hostvars": hostvars}})
    gpu, part, plain = lab.hosts
    assert (gpu.gpus, part.gpus, plain.gpus) == (True, True, False)
    assert (gpu.cards, part.cards, plain.cards) == ((), (1, 0), ())
    state = HostState(tmp_path)
    assert nspawn.make_command(lab, plain, tmp_path, state)[-1] == "plain"
    words = nspawn.make_command(lab, gpu, tmp_path, state, given)
    assert words[words.index("gpu1") + 1 :] == given.options
    assert "--bind=/dev/nvidia0" in words
    assert "--bind-ro=/usr/bin/nvidia-smi:/usr/bin/nvidia-smi" in words
    assert not [word for word in given.options if word.startswith("--bind=/usr")]
    assert restore_lab(dump_lab(lab)) == lab


def test_a_host_gets_the_cards_that_it_names_and_no_way_to_the_others(tmp_path: Path):
    root = tree(tmp_path / "root", SYSTEM, cards=3)
    put(root / "usr/bin/nvidia-smi")
    put(root / "proc/driver/nvidia/params", "Mobile: 4\nModifyDeviceFiles: 1\n")
    given = gpus.find_gpus(root, libraries=linker(SYSTEM), cards=(1,))
    everything = gpus.find_gpus(root, libraries=linker(SYSTEM))
    assert set(everything.devices) - set(given.devices) == {"/dev/nvidia0", "/dev/nvidia2"}
    assert given.binds == everything.binds
    assert "--drop-capability=CAP_MKNOD" in given.options
    assert "--drop-capability=CAP_MKNOD" not in everything.options
    part, whole = tmp_path / "part", tmp_path / "whole"
    gpus.add_library_paths(part, given)
    gpus.add_library_paths(whole, everything)
    assert (part / "opt/lab-gpus/params").read_text() == "ModifyDeviceFiles: 0\nMobile: 4\n"
    service = "etc/systemd/system/lab-gpus.service"
    assert "mount --bind /opt/lab-gpus/params /proc/driver" in (part / service).read_text()
    assert "mount" not in (whole / service).read_text()


def test_a_card_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path):
    root = tree(tmp_path, SYSTEM)
    put(root / "usr/bin/nvidia-smi")
    with pytest.raises(UserError, match=r"lab_gpus: \[1, 5\].* no /dev/nvidia5") as refused:
        gpus.find_gpus(root, libraries=linker(SYSTEM), cards=(5, 1))
    assert "/dev/nvidia0, /dev/nvidia1" in (refused.value.fix or "")


@pytest.mark.parametrize("value", ["some", True, [], [-1], [True], ["0"], {}, 0])
def test_what_names_no_cards_is_refused(tmp_path: Path, value: object):
    node = {"lab_kind": "nspawn", "lab_address": "10.93.7.11", "lab_gpus": value}
    with pytest.raises(UserError, match=r"all, or numbers of cards such as \[0\]"):
        parse_lab(tmp_path / "inv", {"_meta": {"hostvars": {"gpu1": node}}})


def test_the_record_of_a_lab_from_before_has_no_gpus_packages_and_folders(tmp_path: Path):
    lab = parse_lab(
        tmp_path,
        {"_meta": {"hostvars": {"a": {"lab_kind": "nspawn", "lab_address": "10.93.7.11"}}}},
    )
    document = json.loads(dump_lab(lab))
    for later in ("gpus", "cards", "packages", "shared"):
        del document["hosts"][0][later]
    restored = restore_lab(json.dumps(document))
    assert isinstance(restored, Lab)
    assert restored.hosts == (LabHost("a", "nspawn", "debian-12", "10.93.7.11", 22, 4096),)
