"""Root file systems of the stand-in machines: built once by mmdebstrap, then cached."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from kimi_prov.errors import UserError
from kimi_prov.lab.inventory import SUITES
from kimi_prov.lab.shell import find_tool, run_tool
from kimi_prov.lab.state import remove_tree
from kimi_prov.user_dirs import find_cache_home

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kimi_prov.lab.settings import AptSettings
    from kimi_prov.lab.shell import Say

# The packages of a bare rented server: none that the roles have to install.
PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "iputils-ping",
    "kmod",
    "less",
    "libpam-systemd",
    "openssh-server",
    "procps",
    "python3",
    "sudo",
    "systemd",
    "systemd-sysv",
    "tzdata",
    "udev",
)
QEMU_PACKAGES = ("linux-image-amd64", "initramfs-tools", "zstd")
DISK_GIB = 40

_COMMON_HOOK = r"""
set -e
chroot "$1" useradd --create-home --shell /bin/bash --gid operator operator
printf 'operator ALL=(ALL) NOPASSWD: ALL\n' > "$1/etc/sudoers.d/operator"
chmod 0440 "$1/etc/sudoers.d/operator"
rm -f "$1"/etc/ssh/ssh_host_*
: > "$1/etc/machine-id"
mkdir -p "$1/var/log/journal"
chroot "$1" systemctl disable apt-daily.timer apt-daily-upgrade.timer \
  e2scrub_all.timer e2scrub_reap.service
"""

# A host's own files come as a tar on a second disk, because writing them needs no privilege then.
_QEMU_HOOK = r"""
set -e
cat > "$1/etc/systemd/system/lab-seed.service" <<'UNIT'
[Unit]
Description=Files that make this image one lab host
DefaultDependencies=no
RequiresMountsFor=/
After=systemd-remount-fs.service
Before=sysinit.target systemd-networkd.service
ConditionPathExists=!/etc/lab-seeded
[Service]
Type=oneshot
ExecStart=/bin/sh -c '\
  for i in 1 2 3 4 5 6 7 8 9 10; do [ -b /dev/vdb ] && break; sleep 0.5; done; \
  tar -xpf /dev/vdb -C / && touch /etc/lab-seeded'
[Install]
WantedBy=sysinit.target
UNIT
printf '/dev/vda / ext4 errors=remount-ro 0 1\n' > "$1/etc/fstab"
printf 'virtio_pci\nvirtio_blk\nvirtio_net\next4\n' >> "$1/etc/initramfs-tools/modules"
printf 'MODULES=list\n' > "$1/etc/initramfs-tools/conf.d/lab"
chroot "$1" update-initramfs -u >/dev/null
chroot "$1" systemctl enable lab-seed.service systemd-networkd.service
chroot "$1" systemctl disable systemd-networkd-wait-online.service
"""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what an image holds."""

    image: str
    with_kernel: bool
    #: empty: mmdebstrap uses its own archive for the suite
    sources: tuple[str, ...]
    packages: tuple[str, ...]
    apt_options: tuple[str, ...]
    hook: str

    @property
    def key(self) -> str:
        """Name of the image in the cache."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"{self.image}-{'qemu' if self.with_kernel else 'nspawn'}-{digest[:12]}"


def make_recipe(
    image: str, *, with_kernel: bool, apt: AptSettings, packages: tuple[str, ...] = ()
) -> Recipe:
    """Return the recipe of `image` for a machine with or without a kernel of its own.

    `packages`: further packages of a host; hosts with the same ones share an image.
    """
    return Recipe(
        image=image,
        with_kernel=with_kernel,
        sources=_list_sources(SUITES[image], apt),
        packages=PACKAGES + (QEMU_PACKAGES if with_kernel else ()) + tuple(sorted(packages)),
        apt_options=apt.options,
        hook=_COMMON_HOOK + (_QEMU_HOOK if with_kernel else ""),
    )


def _list_sources(suite: str, apt: AptSettings) -> tuple[str, ...]:
    if not apt.mirror:
        return ()
    lines = [f"deb {apt.mirror} {suite} main", f"deb {apt.mirror} {suite}-updates main"]
    if apt.security_mirror:
        lines.append(f"deb {apt.security_mirror} {suite}-security main")
    return tuple(lines)


def make_bootstrap_command(recipe: Recipe, target: Path) -> list[str]:
    """Build the mmdebstrap command line that writes the root file system to `target`."""
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={','.join(recipe.packages)}",
        *(f"--aptopt={option}" for option in recipe.apt_options),
        f"--customize-hook={recipe.hook}",
        SUITES[recipe.image],
        str(target),
        *recipe.sources,
    ]


@contextmanager
def _lock_cache(folder: Path) -> Iterator[None]:
    """Allow one build at a time; the lock is on the cache folder itself."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def ensure_image(recipe: Recipe, say: Say) -> Path:
    """Return the folder of the image, building it when the cache lacks it.

    nspawn images hold `root/`; qemu images hold `disk.ext4`, `vmlinuz` and `initrd.img`.
    An interrupted build leaves nothing that a later build would use as an image.
    """
    images = find_cache_home() / "images"
    done = images / recipe.key
    if done.is_dir():
        return done
    with _lock_cache(images):
        if done.is_dir():
            return done
        if find_tool("mmdebstrap") is None:
            raise UserError(
                "mmdebstrap is not installed, so the lab cannot build its image",
                fix="apt-get install mmdebstrap",
            )
        if os.geteuid() != 0 and find_tool("newuidmap") is None and find_tool("fakechroot") is None:
            raise UserError(
                "an ordinary user cannot build the lab's image without newuidmap",
                fix="apt-get install uidmap (and a line for the user in /etc/subuid and "
                "/etc/subgid), or let root build the image once: kimi-prov lab up",
            )
        fresh = images / f".new-{recipe.key}"
        remove_tree(fresh)
        fresh.mkdir()
        duration = "a minute or two" if recipe.with_kernel else "about half a minute"
        say(f"building the image {recipe.key} ({duration}, once)")
        began = time.monotonic()
        if recipe.with_kernel:
            _build_disk(recipe, fresh)
        else:
            run_tool(
                make_bootstrap_command(recipe, fresh / "root"),
                what="building the lab image",
                timeout=1800,
            )
        fresh.rename(done)
        say(f"image ready after {time.monotonic() - began:.0f} s: {done}")
    return done


def _build_disk(recipe: Recipe, out: Path) -> None:
    """Make an ext4 disk image without mounting it: a tar is unpacked under fakeroot for mke2fs."""
    tarball = out / "root.tar"
    run_tool(make_bootstrap_command(recipe, tarball), what="building the lab image", timeout=1800)
    fakeroot = [] if os.geteuid() == 0 else ["fakeroot", "--"]
    script = (
        'mkdir "$1/root" && tar -xpf "$1/root.tar" -C "$1/root" --exclude=./dev/* '
        '&& cp "$1"/root/boot/vmlinuz-* "$1/vmlinuz" '
        '&& cp "$1"/root/boot/initrd.img-* "$1/initrd.img" '
        '&& truncate -s "$2" "$1/disk.ext4" && mke2fs -q -t ext4 -F -L root -d "$1/root" '
        '-E lazy_itable_init=1 "$1/disk.ext4" && rm -rf "$1/root" "$1/root.tar"'
    )
    run_tool(
        [*fakeroot, "sh", "-c", script, "sh", out, f"{DISK_GIB}G"],
        what="making the lab's disk image",
        timeout=900,
    )
