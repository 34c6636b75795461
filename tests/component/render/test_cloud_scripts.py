"""The scripts that a cloud's machine brings itself up by, run with stand-ins of the cloud."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from cloud_folders import KINDS, ROOT, VARIABLES, laid, render, same_wheel, stand_in

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["same_wheel"]
pytestmark = pytest.mark.usefixtures("same_wheel")


@pytest.fixture(scope="module", params=[(kind, cloud) for kind in KINDS for cloud in VARIABLES])
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, same_wheel: None
) -> Path:
    kind, cloud = request.param
    output = tmp_path_factory.mktemp("render") / f"{kind}-{cloud}"
    assert render(kind, output, VARIABLES[cloud]) == 0
    return output


def test_the_scripts_are_sound(folder: Path, tmp_path: Path) -> None:
    scripts = [path for path in folder.rglob("*") if path.is_file() and "#!" in _first(path)]
    if (folder / "user-data").exists():
        scripts += [_kept(tmp_path, row) for row in laid(folder) if "#!" in row["content"][:2]]
    assert scripts
    words = ("shellcheck", "--severity=info", *map(str, scripts))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _first(path: Path) -> str:
    return path.read_bytes()[:2].decode("utf-8", "replace")


def _kept(folder: Path, row: Mapping[str, Any]) -> Path:
    path = folder / Path(row["path"]).name
    path.write_text(row["content"])
    return path


class Booted:
    """A machine of Google below a folder, whose agent runs what it is given at every boot.

    systemctl and shutdown are stand-ins that write down how they are called.
    """

    def __init__(self, top: Path, given: Path) -> None:
        self.root, self._given, self._programs = top / "root", given, top / "bin"
        self._log = top / "log"
        self.root.mkdir(parents=True)
        for name in ("systemctl", "shutdown"):
            stand_in(self._programs, name, f'echo {name} "$@" >>"$LOG"')

    def boot(self) -> tuple[int, list[list[str]]]:
        """The exit status of the script, and what it called."""
        self._log.write_text("")
        path = f"{self._programs}:/usr/bin:/bin"
        environment = {"PATH": path, "LOG": str(self._log), "KIMI_ROOT": str(self.root)}
        script = self.root.parent / "startup-script"
        shutil.copy(self._given / "startup-script", script)
        script.chmod(0o755)
        done = subprocess.run([script], env=environment, check=False)
        return done.returncode, [line.split() for line in self._log.read_text().splitlines()]

    def cuts(self, verb: str) -> None:
        """From now on systemctl fails at what it is asked."""
        stand_in(self._programs, "systemctl", f'[ "$1" != {verb} ] || exit 1')

    def mends(self) -> None:
        stand_in(self._programs, "systemctl", 'echo systemctl "$@" >>"$LOG"')

    def by_cloud_init(self) -> None:
        """As its network stage leaves them: the units are started by a later one."""
        for row in laid(self._given):
            path = self.root / row["path"].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(row["content"])

    @property
    def files(self) -> dict[str, tuple[str, str]]:
        """Each file with its content and mode."""
        return {
            f"/{path.relative_to(self.root)}": (
                path.read_text(),
                f"{path.stat().st_mode & 0o777:04o}",
            )
            for path in self.root.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def google(tmp_path: Path) -> Booted:
    text = VARIABLES["gcp"] + "kimi_cloud_give_up: 90m\n"
    assert render("cloud-init", tmp_path / "out", text) == 0
    return Booted(tmp_path / "machine", tmp_path / "out")


def user_data(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / "user-data").read_text())
    return found


def test_an_image_without_cloud_init_comes_up_by_googles_agent(
    google: Booted, tmp_path: Path
) -> None:
    """Google's own Debian is one. What user-data would do is done, at the first boot alone."""
    assert google.boot() == (0, user_data(tmp_path / "out")["runcmd"])
    wanted = {row["path"]: (row["content"], row["permissions"]) for row in laid(tmp_path / "out")}
    assert google.files == wanted
    assert google.boot() == (0, [])
    assert google.files == wanted


def test_where_cloud_init_is_it_alone_brings_the_machine_up(google: Booted) -> None:
    google.by_cloud_init()
    before = google.files
    assert google.boot() == (0, [])
    assert google.files == before


@pytest.mark.parametrize("verb", ["daemon-reload", "enable", "start"])
def test_a_machine_that_nothing_was_started_on_ends_and_its_next_boot_goes_on(
    verb: str, google: Booted, tmp_path: Path
) -> None:
    google.cuts(verb)
    status, called = google.boot()
    assert status != 0
    assert called == [["shutdown", "-P", "+90"]]
    google.mends()
    assert google.boot() == (0, user_data(tmp_path / "out")["runcmd"])
    assert google.boot() == (0, [])


def test_the_disk_is_full(google: Booted) -> None:
    """Not even the files could be laid: the machine ends all the same."""
    (google.root / "etc").write_text("in the way")
    status, called = google.boot()
    assert (status != 0, called) == (True, [["shutdown", "-P", "+90"]])


def test_what_google_is_given_carries_any_file(tmp_path: Path) -> None:
    """A long one is packed, and one without a last newline keeps being one."""
    (tmp_path / "m.json").write_text(
        json.dumps(
            {"files": [{"path": f"m-{n}", "size": n, "sha256": f"{n:064x}"} for n in range(1, 97)]}
        )
    )
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    text = f"kimi_weights_manifest: {tmp_path}/m.json\nkimi_ca_bundle: {tmp_path}/ca.pem\n"
    assert render("cloud-init", tmp_path / "out", VARIABLES["gcp"] + text) == 0
    google = Booted(tmp_path / "machine", tmp_path / "out")
    assert google.boot()[0] == 0
    wanted = {row["path"]: row["content"] for row in laid(tmp_path / "out")}
    assert {path: content for path, (content, _mode) in google.files.items()} == wanted


class Laid:
    """The rendered install script on a machine below a folder, broken at its nth command."""

    def __init__(self, top: Path) -> None:
        self._top = top
        assert render("skypilot", top / "out", VARIABLES["gcp"]) == 0
        for name in ("install", "systemctl", "shutdown"):
            real = '/usr/bin/install "$@"' if name == "install" else ":"
            stand_in(
                top / "bin",
                name,
                f'echo "{name} $*" >>"$LOG"; [ "$(wc -l <"$LOG")" != "$BREAK" ] || exit 1; {real}',
            )

    def run(self, at: int) -> tuple[int, list[str]]:
        """Its status, and the commands that it came to."""
        log = self._top / "log"
        log.write_text("")
        path = f"{self._top}/bin:/usr/bin:/bin"
        values = {
            "PATH": path,
            "LOG": str(log),
            "BREAK": str(at),
            "KIMI_ROOT": str(self._top / "r"),
        }
        script = self._top / "out/machine/install"
        done = subprocess.run(["bash", script], env=values, check=False)
        return done.returncode, log.read_text().splitlines()


def test_whichever_step_of_setup_breaks_the_machine_ends(tmp_path: Path) -> None:
    laid = Laid(tmp_path)
    status, steps = laid.run(0)
    assert status == 0
    armed = steps.index("systemctl enable --now kimi-give-up.timer") + 1
    # Before it there is only what ends the machine.
    assert {line.rpartition("/")[2] for line in steps[: armed - 2]} == {
        "kimi_prov-0.1.0-py3-none-any.whl",
        *("kimi-release", "kimi-give-up.service", "kimi-give-up.timer"),
    }
    assert steps[-1] == "shutdown -c"
    tolerated = {"systemctl reset-failed kimi-up.service", "shutdown -c"}
    for at, step in enumerate(steps, 1):
        status, done = laid.run(at)
        if step in tolerated:
            assert status == 0, step
        else:
            assert (status != 0, done[-1]) == (True, "shutdown -P +15"), step


class Disks:
    """The rendered kimi-disks below a folder: what it calls of LVM is written down, not done."""

    # A link for each disk of the machine itself, and the network disk that it was booted from.
    def __init__(self, top: Path, cloud: str, links: Mapping[str, str]) -> None:
        self.top = top
        assert render("skypilot", top / "out", VARIABLES[cloud]) == 0
        by_id = top / "by-id"
        by_id.mkdir()
        for link, disk in links.items():
            (by_id / link).symlink_to(top / disk)
            (top / disk).touch()
        text = (top / "out/machine/usr/local/sbin/kimi-disks").read_text()
        for path, there in {
            "/dev/disk/by-id": by_id,
            "/dev/kimi": top / "kimi",
            "/srv/kimi/models": top / "models",
            "/etc/fstab": top / "fstab",
        }.items():
            text = text.replace(path, str(there))
        (top / "script").write_text(text)
        (top / "fstab").write_text("UUID=1 / ext4 defaults 0 1\n")
        stand_in(top / "bin", "mountpoint", '[ -e "$TOP/mounted" ]')
        # A disk with a partition has a line more, and "used" has a file system.
        stand_in(top / "bin", "lsblk", '[[ "$3" != *parted ]] || echo part; echo disk')
        stand_in(top / "bin", "wipefs", '[[ "$2" != *used ]] || echo ext4')
        stand_in(top / "bin", "vgs", '[ -e "$TOP/vg" ] && { grep -c . "$TOP/vg"; }')
        stand_in(top / "bin", "blkid", 'cat "$1"')
        stand_in(top / "bin", "apt-get", ":")
        stand_in(
            top / "bin",
            "vgcreate",
            'shift 2; printf "%s\\n" "$@" >"$TOP/vg"; [ ! -e "$TOP/breaks" ] || exit 1',
        )
        stand_in(
            top / "bin",
            "lvcreate",
            'echo "$*" >>"$TOP/lv"; mkdir -p "$TOP/kimi"; : >"$TOP/kimi/weights"',
        )
        stand_in(top / "bin", "mkfs.ext4", 'echo ext4 >"$TOP/kimi/weights"')
        stand_in(top / "bin", "mount", 'echo "$1" >"$TOP/mounted"')

    def run(self) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{self.top}/bin:/usr/bin:/bin", "TOP": str(self.top)}
        words = ["bash", str(self.top / "script")]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    def read(self, name: str) -> list[str]:
        path = self.top / name
        return path.read_text().splitlines() if path.exists() else []


GOOGLE_DISK, AWS_DISK = "google-local-nvme-ssd-%s", "nvme-Amazon_EC2_NVMe_Instance_Storage_%s"


@pytest.mark.parametrize(("cloud", "link"), [("gcp", GOOGLE_DISK), ("aws", AWS_DISK)])
def test_the_weights_get_a_stripe_of_the_machines_own_disks(
    cloud: str, link: str, tmp_path: Path
) -> None:
    """Each disk once, whatever links it has; none that has something on it, and no other disk."""
    links = {link % n: f"nvme{n}" for n in range(4)}
    links |= {link % "0-again": "nvme0", link % 8: "nvme8parted", link % 9: "nvme9used"}
    disks = Disks(tmp_path, cloud, {**links, "google-persistent-disk-0": "boot", "nvme-EBS": "ebs"})
    done = disks.run()
    assert done.returncode == 0, done.stderr
    assert disks.read("vg") == [str(tmp_path / f"nvme{n}") for n in range(4)]
    (made,) = disks.read("lv")
    assert "--stripes 4 " in made
    assert disks.read("mounted") == [str(tmp_path / "models")]
    # Again, and after a boot, nothing changes.
    fstab = disks.read("fstab")
    assert len(fstab) == 2
    (tmp_path / "mounted").unlink()
    assert disks.run().returncode == 0
    assert (disks.read("lv"), disks.read("fstab")) == ([made], fstab)


def test_without_disks_of_its_own_the_weights_go_onto_the_systems(tmp_path: Path) -> None:
    disks = Disks(tmp_path, "gcp", {"google-persistent-disk-0": "boot"})
    done = disks.run()
    assert done.returncode == 0, done.stderr
    assert "the weights go onto the system's disk" in done.stdout
    assert not disks.read("vg")


def test_a_stripe_that_broke_half_way_is_gone_on_with(tmp_path: Path) -> None:
    disks = Disks(tmp_path, "gcp", {GOOGLE_DISK % n: f"nvme{n}" for n in range(2)})
    (tmp_path / "breaks").touch()
    assert disks.run().returncode != 0
    (tmp_path / "breaks").unlink()
    assert disks.run().returncode == 0
    assert disks.read("mounted")


@pytest.mark.parametrize("cloud", VARIABLES)
def test_the_way_out_needs_nothing_that_is_installed_later(cloud: str, tmp_path: Path) -> None:
    """Only the wheel is there: the cloud is asked by what is in it, and power goes off anyway."""
    assert render("skypilot", tmp_path / "out", VARIABLES[cloud]) == 0
    wheel = tmp_path / "lib" / "kimi_prov-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as packed:
        for folder in ("contract", "on_host"):
            for path in sorted((ROOT / "kimi_prov" / folder).rglob("*.py")):
                packed.write(path, path.relative_to(ROOT))
        packed.write(ROOT / "kimi_prov" / "__init__.py", "kimi_prov/__init__.py")
    for name in ("shutdown", "systemctl"):
        stand_in(tmp_path / "bin", name, f'echo "{name} $*" >>"$LOG"')
    text = (tmp_path / "out/machine/usr/local/sbin/kimi-release").read_text()
    script = text.replace("/var/lib/kimi-up", str(wheel.parent))
    done = subprocess.run(
        ["bash", "-c", script, "kimi-release", "now"],
        env={
            "PATH": f"{tmp_path}/bin:/usr/bin:/bin",
            "LOG": str(tmp_path / "log"),
            "GCE_METADATA_HOST": "127.0.0.1:9",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "log").read_text().splitlines()
    assert asked[0].startswith("shutdown -P +3")
    if cloud == "gcp":
        # Google's metadata server was asked, and did not answer.
        assert "computeMetadata/v1/instance/service-accounts" in done.stdout + done.stderr
        assert "switched off instead" in done.stderr
    else:
        assert asked[1:] == ["systemctl poweroff"], done.stderr
