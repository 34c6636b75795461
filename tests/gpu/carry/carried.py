"""Unpacks on a GPU machine what `pack.py` packed, and runs the tests of `make gpu` there.

    python3 carried.py take              what was laid beside this file is checked and unpacked
    python3 carried.py start KIND [PYTEST'S WORDS...]
    python3 carried.py watch KIND [SECONDS]      the log so far; report and log go to $OUT
    python3 carried.py control COMMAND...        run in the control machine, to look at a host

KIND: `processor`, `served`, `group`, `tower`, `full` or `hybrid`. It runs in the background, as
root, below /w, in a Debian root of its own whose network is the machine's. Python 3.10 or newer and
its standard library; gzip and tar. Variables that begin with KIMI_PROV_GPU_ are handed on.
"""

from __future__ import annotations

import email.parser
import fcntl
import hashlib
import html
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

W = Path("/w")
PIECES = Path(__file__).resolve().parent
MARKS = W / "unpacked"
INDEX = W / "index"
PORT = {
    "processor": 8901,
    "served": 8902,
    "group": 8903,
    "hybrid": 8904,
    "tower": 8905,
    "full": 8906,
    "loaders": 8907,
    "prepared": 8908,
    "resident": 8909,
    "sleep": 8910,
}
FILES = {
    "processor": "test_processor_served.py",
    "served": "test_served.py",
    "group": "test_group_served.py",
    "hybrid": "test_hybrid_served.py",
    "tower": "test_tower_served.py",
    "full": "test_full_size_served.py",
    "loaders": "test_loaders_served.py",
    "prepared": "test_prepared_gpus_served.py",
    "resident": "test_resident_served.py",
    "sleep": "test_sleep_served.py",
}
IMAGES = {
    "processor": "debian-12",
    "served": "debian-13",
    "group": "debian-13",
    "hybrid": "debian-12",
    "tower": "debian-13",
    "full": "debian-13",
    "loaders": "debian-13",
    "prepared": "debian-13",
    "resident": "debian-13",
    "sleep": "debian-13",
}
# Kinds for which nothing more travels than for another.
PACKED_AS = dict.fromkeys(
    ("group", "tower", "full", "loaders", "prepared", "resident", "sleep"), "served"
)
# Folders of reports within the one that pytest is told.
WITHIN = {kind: kind for kind in PORT if kind != "served"}
# Made on that machine, in this order: the cut model, and for a kind that serves another, that one.
MODELS = ("kimi-k2-cut", "kimi-k2.5-cut")
SERVES = {"tower": "kimi-k2.5-cut"}
# These make their own.
MAKES = ("full", "loaders", "prepared")
SERVED = "0.33.0"
# NVIDIA's libraries of the same CUDA, which the machine has for a torch of its own: they are
# written as wheels again.
OF_MACHINE = (
    *("cuda-toolkit", "nvidia-cublas", "nvidia-cuda-cupti", "nvidia-cuda-nvrtc"),
    *("nvidia-cuda-runtime", "nvidia-cufft", "nvidia-cufile", "nvidia-curand"),
    *("nvidia-cusolver", "nvidia-cusparse", "nvidia-cusparselt-cu13", "nvidia-nvjitlink"),
    *("nvidia-nvshmem-cu13", "nvidia-nvtx"),
)
# Of the kinds whose wheels are not as released: the lock that stands for the product's.
LOCKS = {
    "served": f"vllm-cuda-{SERVED}-cp312.txt",
    "hybrid": "ktransformers-cuda-0.7.2-cp311.txt",
}
# What an owner set so that programs leave NVLink's multicast alone holds for the host's as well.
MULTICAST = ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST", "NVSHMEM_DISABLE_NVLS")
# The driver, where it has a folder of its own.
DRIVER = "/usr/local/nvidia"

# The machine's root gives way to the control machine's, in mounts of its own: systemd-nspawn wants
# a root that is a mount. What stays is seen by everybody: /w, /proc, /sys, /dev, the network.
ENTER = r"""
set -e
run=/w/run/$2
root=$run/root
mkdir -p $run/upper $run/work $root
mount -t overlay overlay -o \
  lowerdir=/w/control:/w/images/debian-12/root,upperdir=$run/upper,workdir=$run/work $root
mkdir -p $root/w $root/old
for name in proc sys dev; do mount --rbind /$name $root/$name; done
mount --bind /w $root/w
if [ -d "$1" ]; then
  mkdir -p "$root$1"
  mount --rbind "$1" "$root$1"
  echo "$1/lib64" > $root/etc/ld.so.conf.d/driver.conf
  ln -sf "$1/bin/nvidia-smi" $root/usr/bin/nvidia-smi
  chroot $root ldconfig
fi
shift 2
cd $root
pivot_root . old
umount -l /old
cd /w/src
exec env -i PATH=/opt/control/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/w/home LC_ALL=C.UTF-8 \
  XDG_CACHE_HOME=/w/cache XDG_STATE_HOME=/w/state TMPDIR=/w/tmp "$@"
"""
# A host asks the control machine for packages by http, which pip wants to be told is meant.
PREPARE = (
    "printf '[global]\\ntrusted-host = %s\\n' \"$(ip route show default | awk '{print $3}')\" "
    "> /etc/pip.conf"
)


def take() -> None:
    """Check the pieces that came, and unpack in the background what is whole."""
    index = read_index()
    for row in index["pieces"]:
        path = PIECES / row["name"]
        mark = MARKS / row["name"]
        if path.exists() and not mark.exists():
            if hashlib.sha256(path.read_bytes()).hexdigest() != row["sha256"]:
                path.unlink()
                sys.exit(f"{row['name']} came with other bytes than were packed: carry it again")
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
    there = [row["name"] for row in index["pieces"] if (MARKS / row["name"]).exists()]
    say(f"{len(there)} of {len(index['pieces'])} pieces")
    with (W / "unpack.log").open("a") as log:
        detached([sys.executable, __file__, "unpack"], log)


def unpack() -> None:
    """Unpack every archive whose pieces are there; one such process at a time."""
    with (W / "unpack.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        index = read_index()
        for row in index["archives"]:
            mark = MARKS / row["name"]
            spans = covered(index["pieces"], row["start"], row["end"])
            if mark.exists() or not all((MARKS / name).exists() for name, _, _ in spans):
                continue
            to = W / row["to"]
            to.mkdir(parents=True, exist_ok=True)
            # This machine's users are not those of an image.
            command = ["tar", "-C", str(to), "--numeric-owner", "-xp"]
            command += ["-z"] if row["name"].endswith(".gz") else []
            began = time.monotonic()
            with subprocess.Popen(command, stdin=subprocess.PIPE) as tar:
                assert tar.stdin is not None
                for name, start, end in spans:
                    with (PIECES / name).open("rb") as stream:
                        stream.seek(start)
                        tar.stdin.write(stream.read(end - start))
                tar.stdin.close()
            if tar.returncode:
                sys.exit(f"{row['name']} was not unpacked: tar ended with {tar.returncode}")
            say(f"{row['name']}: {time.monotonic() - began:.1f} s")
            mark.touch()
            remove_pieces(index, [name for name, _, _ in spans])
            if row["name"].startswith("checkout"):
                make_model()
                if any("served" in other["kinds"] for other in index["archives"]):
                    with (W / "rewheel.log").open("w") as log:
                        detached([sys.executable, __file__, "rewheel"], log)


def remove_pieces(index: dict[str, Any], names: list[str]) -> None:
    """Remove those that no other archive is waiting for: the disk may be small."""
    waiting = [row for row in index["archives"] if not (MARKS / row["name"]).exists()]
    wanted = {
        name for row in waiting for name, _, _ in covered(index["pieces"], row["start"], row["end"])
    }
    for name in names:
        if name not in wanted:
            (PIECES / name).unlink()


def covered(pieces: list[dict[str, Any]], start: int, end: int) -> list[tuple[str, int, int]]:
    """Say which bytes of which pieces are those from `start` to before `end` of all of them."""
    found = []
    position = 0
    for row in pieces:
        first, last = max(start, position), min(end, position + row["bytes"])
        if first < last:
            found.append((row["name"], first - position, last - position))
        position += row["bytes"]
    return found


def make_model() -> None:
    """Have the cut models made while other pieces travel; their cache is where the lab looks."""
    code = "import sys\nfrom kimi_prov.lab import files\n"
    code += "for name in sys.argv[1:]: print(files.build_model(name), flush=True)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(W / "cache"), "PYTHONPATH": str(W / "src")}
    with (W / "model.log").open("w") as log:
        detached([sys.executable, "-c", code, *MODELS], log, environment)


def start(kind: str, words: list[str]) -> None:
    """Run the tests of a kind in the background, once all of it is unpacked."""
    index = read_index()
    packed = packed_as(kind)
    wanted = [row["name"] for row in index["archives"] if packed in row["kinds"]]
    end = time.monotonic() + 300
    while missing := [name for name in wanted if not (MARKS / name).exists()]:
        if time.monotonic() > end:
            sys.exit(f"not unpacked: {', '.join(missing)}\n{(W / 'unpack.log').read_text()}")
        time.sleep(0.5)
    models = W / "cache" / "kimi-prov" / "models"
    model = SERVES.get(kind, MODELS[0])
    while kind not in MAKES and not [*models.glob(f"{model}-*")] and time.monotonic() < end:
        if "Error" in (W / "model.log").read_text():
            break  # `lab up` tries it again, and tells
        time.sleep(0.5)
    report = W / "report" / kind
    shutil.rmtree(report, ignore_errors=True)
    report.mkdir(parents=True)
    for folder in ("home", "cache", "state", "tmp"):
        (W / folder).mkdir(exist_ok=True)
    laid = MARKS / "laid"
    if packed == "served" and not laid.exists():
        lay_python(W / "images" / IMAGES[kind] / "root")
        while not (MARKS / "rewheel").exists() and time.monotonic() < end:
            time.sleep(0.5)
        add_wheels()
        # Another kind's host may stand on the image when the next one starts.
        laid.touch()
    if packed in LOCKS:
        write_lock(INDEX / f"wheels-{packed}", W / f"site-{packed}" / "locks" / LOCKS[packed])
    simple_index(INDEX / f"wheels-{packed}", INDEX / f"simple-{packed}")
    (report / "settings.yml").write_text(json.dumps(settings(kind)) + "\n")
    variables = [f"{name}={value}" for name, value in sorted(environment(kind, report).items())]
    program = ["/opt/control/bin/python", "-u", str(PIECES / "carried.py")]
    with (report / "log").open("w") as log:
        detached(entered(kind, [*variables, *program, "inside", kind, *words]), log)
    say(f"{kind}: started")


def packed_as(kind: str) -> str:
    """Give the kind whose archives, image and wheels a kind uses."""
    return PACKED_AS.get(kind, kind)


def entered(name: str, words: list[str]) -> list[str]:
    """Give the command that runs `words` in the control machine, in mounts of that name."""
    enter = ["unshare", "--mount", "--propagation=private", "sh", "-c", ENTER, "sh", DRIVER]
    return [*enter, name, *words]


def environment(kind: str, report: Path) -> dict[str, str]:
    """Give the variables that `make gpu` reads; what was set by hand wins."""
    which = "PROCESSOR_SETTINGS" if kind == "processor" else "SETTINGS"
    packed = packed_as(kind)
    site = {"KIMI_PROV_CATALOG": str(W / f"site-{packed}")} if packed in LOCKS else {}
    return {
        **site,
        "KIMI_PROV_GPU_REPORT": str(report),
        f"KIMI_PROV_GPU_{which}": str(report / "settings.yml"),
        "KIMI_PROV_GPU_PREPARE": prepare(),
        "KIMI_PROV_GPU_MINUTES": "20",
        **{name: text for name, text in os.environ.items() if name.startswith("KIMI_PROV_GPU_")},
    }


def prepare() -> str:
    """Give the command that a host runs once it is up."""
    kept = [f'{name}="{os.environ[name]}"' for name in MULTICAST if name in os.environ]
    if not kept:
        return PREPARE
    lines = f"[Manager]\\nDefaultEnvironment={' '.join(kept)}\\n"
    folder = "/etc/systemd/system.conf.d"
    return (
        f"{PREPARE} && mkdir -p {folder} && printf '{lines}' > {folder}/multicast.conf "
        "&& systemctl daemon-reexec"
    )


def settings(kind: str) -> dict[str, str]:
    """Give the variables of the host: its image, and where its packages come from."""
    at = "http://{{ lab_gateway }}:" + str(PORT[kind])
    return {
        "lab_image": IMAGES[kind],
        "kimi_apt_mirror": f"{at}/{IMAGES[kind]}/debian",
        "kimi_pip_index_url": f"{at}/simple-{packed_as(kind)}/",
        # PyTorch's builds for CPUs lie beside the others.
        "kimi_torch_index_url": f"{at}/simple-{packed_as(kind)}/",
        **({"kimi_engine_version": SERVED} if packed_as(kind) == "served" else {}),
    }


def inside(kind: str, words: list[str]) -> None:
    """In the control machine: lay the image where the lab looks for it, serve packages, test."""
    from kimi_prov.lab import images  # noqa: PLC0415 - of the checkout, in its environment
    from kimi_prov.lab.settings import read_apt_settings  # noqa: PLC0415

    report = W / "report" / kind
    name = IMAGES[kind]
    recipe = images.make_recipe(name, with_kernel=False, apt=read_apt_settings())
    image = W / "cache" / "kimi-prov" / "images" / recipe.key
    image.parent.mkdir(parents=True, exist_ok=True)
    if not image.is_symlink():
        image.symlink_to(W / "images" / name)
    serve = [sys.executable, "-m", "http.server", str(PORT[kind]), "--directory", str(INDEX)]
    with (report / "index.log").open("w") as log:
        server = subprocess.Popen(serve, stdout=log, stderr=log)
    hosts = W / "tmp" / kind
    for inventory in hosts.glob("*/inv"):
        # Of a run that was ended.
        subprocess.run(["kimi-prov", "lab", "down", str(inventory)], check=False)
    tests = [f"tests/gpu/{FILES[kind]}", "-m", "gpu", "-p", "no:cacheprovider", "-v"]
    tests += [f"--basetemp={hosts}", *words]
    try:
        done = subprocess.run([sys.executable, "-m", "pytest", *tests], cwd=W / "src", check=False)
    finally:
        server.terminate()
    (report / "ended").write_text(f"{done.returncode}\n")


def watch(kind: str, seconds: float) -> None:
    """Wait for the end, so long at most; print the log, and lay it with the report into $OUT."""
    report = W / "report" / kind
    end = time.monotonic() + seconds
    while not (report / "ended").exists() and time.monotonic() < end:
        time.sleep(1)
    say((report / "log").read_text(errors="replace")[-9000:])
    ended = report / "ended"
    say(f"{kind}: ended with {ended.read_text()}" if ended.exists() else f"{kind}: goes on")
    if out := os.environ.get("OUT"):
        keep(kind, report, Path(out))


def keep(kind: str, report: Path, out: Path) -> None:
    """Lay report and logs into a folder."""
    found = report / WITHIN.get(kind, "")
    for name in ("report.json", "report.txt"):
        if (found / name).exists():
            shutil.copy(found / name, out / f"{kind}-{name}")
    with tarfile.open(out / f"{kind}.tar.gz", "w:gz") as tar:
        tar.add(report, arcname=kind)
        runs = W / "state" / "kimi-prov" / "runs"
        for log in (W / "unpack.log", W / "model.log", W / "rewheel.log", runs):
            if log.exists():
                tar.add(log, arcname=f"{kind}/{log.name}")


def rewheel() -> None:
    """Write NVIDIA's libraries of the machine's own Python as wheels again."""
    into = INDEX / "wheels-machine"
    into.mkdir(parents=True, exist_ok=True)
    found = {
        re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one
        for one in importlib.metadata.distributions()
        if one.metadata["Name"]
    }
    mine = [one for name, one in found.items() if name in OF_MACHINE]
    with ThreadPoolExecutor() as pool:
        for line in pool.map(lambda one: write_wheel(one, into), mine):
            say(line)
    MARKS.mkdir(parents=True, exist_ok=True)
    (MARKS / "rewheel").touch()


def write_wheel(one: importlib.metadata.Distribution, into: Path) -> str:
    """Write a package that is installed as a wheel, without its programs; return the name."""
    files = [
        path
        for path in one.files or ()
        if ".." not in path.parts
        and "__pycache__" not in path.parts
        and path.name not in {"INSTALLER", "REQUESTED", "direct_url.json"}
        and Path(str(path.locate())).is_file()
    ]
    metadata = next(p for p in files if p.name == "METADATA" and p.parent.suffix == ".dist-info")
    folder = metadata.parent
    tags = re.findall(r"^Tag: (\S+)", one.read_text("WHEEL") or "", re.MULTILINE)
    # Several tags differ in one place each, and are written together there.
    places = zip(*(tag.split("-") for tag in tags), strict=True)
    tag = "-".join(".".join(dict.fromkeys(place)) for place in places)
    rows = [
        f"{path},{f'{path.hash.mode}={path.hash.value}' if path.hash else ''},{path.size or ''}"
        for path in files
        if path.name != "RECORD"
    ]
    wheel = into / f"{folder.stem}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in files:
            if path.name != "RECORD" or path.parent != folder:
                archive.write(str(path.locate()), str(path))
        archive.writestr(f"{folder}/RECORD", "\n".join([*rows, f"{folder}/RECORD,,"]) + "\n")
    return f"{wheel.name}: {wheel.stat().st_size >> 20} MiB"


def add_wheels() -> None:
    """Lay the machine's wheels beside those that were carried."""
    for wheel in (INDEX / "wheels-machine").glob("*.whl"):
        link = INDEX / "wheels-served" / wheel.name
        if not link.exists():
            os.link(wheel, link)


def write_lock(wheels: Path, lock: Path) -> None:
    """Write a site's lock for wheels as they are here."""

    def row(wheel: Path) -> str:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            metadata = email.parser.BytesHeaderParser().parsebytes(archive.read(name))
        digest = hashlib.sha256()
        with wheel.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
        project = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
        return f"{project}=={metadata['Version']} \\\n    --hash=sha256:{digest.hexdigest()}\n"

    lock.parent.mkdir(parents=True, exist_ok=True)
    beside = ("uv-", "py_spy-")
    found = [wheel for wheel in wheels.glob("*.whl") if not wheel.name.startswith(beside)]
    with ThreadPoolExecutor() as pool:
        lock.write_text("# Made of the wheels at hand.\n" + "".join(sorted(pool.map(row, found))))


def lay_python(root: Path) -> None:
    """Copy this machine's Python 3.12 into an image, under the packages that a plan asks for."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    program = Path(os.path.realpath(sys.executable))
    told = sysconfig.get_config_vars()
    libraries = {Path(told["LIBDIR"]), Path(told["LIBDIR"], told.get("MULTIARCH") or "")}
    config = Path(sysconfig.get_config_h_filename()).parent
    # Debian's and Ubuntu's pyconfig.h includes one in a folder of the architecture's.
    multiarch = Path("/usr/include", told.get("MULTIARCH") or "", name)
    stdlib, include = (Path(sysconfig.get_path(kind)) for kind in ("stdlib", "include"))
    folders = {stdlib, include, config, multiarch}
    for folder in folders:
        if folder.is_dir():
            to = root / str(folder).lstrip("/")
            shutil.rmtree(to, ignore_errors=True)  # of a start before this one
            shutil.copytree(
                folder,
                to,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", "dist-packages", "site-packages"),
            )
    for file in (program, *(file for at in libraries for file in at.glob(f"lib{name}*.so*"))):
        to = root / "usr/bin" / name if file == program else root / str(file).lstrip("/")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)
    for package in (f"{name}-venv", f"{name}-dev"):
        control = root / "opt" / package / "DEBIAN" / "control"
        control.parent.mkdir(parents=True, exist_ok=True)
        control.write_text(
            f"Package: {package}\nVersion: {sys.version.split()[0]}\nArchitecture: all\n"
            f"Maintainer: make gpu <root@localhost>\nDescription: stands for {name} of elsewhere\n"
        )
        script = f"cd /opt && dpkg-deb -b {package} && dpkg -i {package}.deb && rm -r {package}*"
        subprocess.run(["chroot", str(root), "sh", "-c", script], check=True)


def simple_index(wheels: Path, into: Path) -> None:
    """Make a package index of a folder of wheels: pages that pip and uv read, with metadata."""
    projects: dict[str, list[str]] = {}
    for wheel in sorted(wheels.glob("*.whl")):
        metadata = wheel.with_name(f"{wheel.name}.metadata")
        if not metadata.exists():
            with zipfile.ZipFile(wheel) as archive:
                inside = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
                metadata.write_bytes(archive.read(inside))
        requires = email.parser.BytesHeaderParser().parsebytes(metadata.read_bytes())
        wanted = html.escape(requires["Requires-Python"] or ">=3")
        digest = hashlib.sha256(metadata.read_bytes()).hexdigest()
        name = re.sub(r"[-_.]+", "-", wheel.name.partition("-")[0]).lower()
        projects.setdefault(name, []).append(
            f'<a href="../../{wheels.name}/{quote(wheel.name)}" data-requires-python="{wanted}" '
            f'data-core-metadata="sha256={digest}">{wheel.name}</a>'
        )
    for name, links in projects.items():
        page = into / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("<!DOCTYPE html>\n" + "\n".join(links) + "\n")


def detached(command: list[str], log: IO[str], environment: dict[str, str] | None = None) -> None:
    """Start what goes on when the caller has ended."""
    subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environment,
    )


def say(line: str) -> None:
    """Write one line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def read_index() -> dict[str, Any]:
    """Read how the pieces go together."""
    return dict(json.loads((PIECES / "index.json").read_text()))


def main() -> None:
    """Do what the command line says."""
    what, *words = sys.argv[1:] or [""]
    if what == "take":
        take()
    elif what == "unpack":
        unpack()
    elif what == "rewheel":
        rewheel()
    elif what == "start":
        start(words[0], words[1:])
    elif what == "control":
        sys.exit(subprocess.run(entered("control", words), check=False).returncode)
    elif what == "inside":
        inside(words[0], words[1:])
    elif what == "watch":
        watch(words[0], float(words[1]) if words[1:] else 0)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
