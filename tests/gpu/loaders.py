"""How fast weights come into one GPU, by loader and source: one command, made for a short loan.

    python3 tests/gpu/loaders.py --output DIR                      # the pieces: torch alone
    python3 tests/gpu/loaders.py --output DIR --model MODEL --python /srv/kimi/engines/X/bin/python

The first part needs torch and a GPU: it copies a file in each way of the prepared weights' plugin,
with its sums, from the RAM disk, the page cache and the disk, and cuts and turns packed experts as
vLLM's versions do. The second starts an engine for each loader, asks it once, and reads the phases
from its log: default, prefetch, fastsafetensors, instanttensor, prepared weights (written, then
copied), `vllm preload` with ipc_cache, and sleep. Each row is printed when it is there, and written
to DIR/loaders.json, so that an end by force loses none; what failed says why. Runs end in time for
--minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "kimi_prov" / "engine_plugins" / "prepared"
GB = 1e9
# Kimi-K2's packed experts: 2,048 rows of 7,168 / 8 words of eight INT4 each.
EXPERT_ROWS, EXPERT_WORDS = 2048, 896
RANKS = 8
HUGE = "huge pages"
# The engine's log, by the phase that a line ends; each has the seconds in its group.
PHASES = {
    "made": re.compile(r"Initializing model took ([\d.]+) seconds"),
    "weights": re.compile(r"Loading weights took ([\d.]+) seconds"),
    "copied": re.compile(r"Prepared weights: [\d.]+ GB in ([\d.]+) seconds"),
    "written": re.compile(r"Prepared weights written: .* in ([\d.]+) seconds"),
    "model": re.compile(r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds"),
    "compiled": re.compile(r"torch\.compile (?:takes|took|and initial profiling)[^\d]*([\d.]+) s"),
    "captured": re.compile(r"Graph capturing finished in ([\d.]+) secs"),
    "engine": re.compile(r"init engine .* took ([\d.]+) s"),
}
_SIZE = re.compile(r"Model loading took ([\d.]+) GiB")


@dataclass
class Row:
    """One measurement. `memory`: the highest GiB of the card's memory and of the host's."""

    loader: str
    source: str
    seconds: float | None = None
    gb: float | None = None
    phases: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def gb_s(self) -> float | None:
        """GB a second."""
        return self.gb / self.seconds if self.gb and self.seconds else None


class Results:
    """Prints each row at once, and keeps all in a file."""

    def __init__(self, folder: Path, minutes: float, only: list[str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.only = only
        self.rows: list[Row] = []
        self._end = time.monotonic() + 60 * minutes

    @property
    def left_s(self) -> float:
        """Seconds that may still be used."""
        return self._end - time.monotonic()

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)
        sys.stdout.write(format_row(row) + "\n")
        sys.stdout.flush()
        document = {
            "machine": describe_machine(),
            "rows": [asdict(one) | {"gb_s": one.gb_s} for one in self.rows],
        }
        (self.folder / "loaders.json").write_text(json.dumps(document, indent=1) + "\n")

    def measure(self, loader: str, source: str, needs_s: float, run: Callable[[], Row]) -> None:
        """Run one measurement, where time is left for it; what fails is a row that says why."""
        if self.only and not loader.startswith(tuple(self.only)):
            return
        if self.left_s < needs_s:
            self.add(Row(loader, source, note=f"not begun: {self.left_s:.0f} s are left"))
            return
        try:
            self.add(run())
        except Exception as error:  # noqa: BLE001 - the other rows count too
            self.add(Row(loader, source, note=f"{type(error).__name__}: {str(error)[:200]}"))


def format_row(row: Row) -> str:
    """Format a row of the table."""
    rate = f"{row.gb_s:7.1f} GB/s" if row.gb_s else f"{'-':>12}"
    seconds = f"{row.seconds:8.2f} s" if row.seconds else f"{'-':>10}"
    parts = [f"{name} {value:.2f}" for name, value in row.phases.items()]
    parts += [f"{name} {value:.1f} GiB" for name, value in row.memory.items()]
    more = ", ".join(filter(None, [*parts, row.note]))
    return f"{row.loader:22}{row.source:12}{rate}{seconds}  {more}"


def describe_machine() -> dict[str, str]:
    """Describe the machine and the day."""
    query = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,pcie.link.gen.max",
        "--format=csv,noheader",
    ]
    with contextlib.suppress(OSError):
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        return {
            "gpu": done.stdout.strip(),
            "date": time.strftime("%F"),
            "cpus": str(os.cpu_count()),
        }
    return {"gpu": "none", "date": time.strftime("%F"), "cpus": str(os.cpu_count())}


def parse_phases(log: str) -> dict[str, float]:
    """Read the seconds of each phase from an engine's log; of several ranks the slowest."""
    found = {}
    for name, pattern in PHASES.items():
        seconds = [float(match[1]) for match in pattern.finditer(log)]
        if seconds:
            found[name] = max(seconds)
    return found


# --- the pieces -------------------------------------------------------------------------------


def run_pieces(results: Results, gb: float, disk: Path | None, ram: Path) -> None:
    """Measure copies of one file in each way, and experts cut and turned."""
    sys.path.insert(0, str(PLUGIN))
    import torch  # noqa: PLC0415

    torch.cuda.init()
    target = torch.empty(int(gb * GB) // 4096 * 4096, dtype=torch.uint8, device="cuda")
    places = [(ram, ("ram disk",)), *([(disk, ("page cache", "disk"))] if disk else [])]
    for folder, sources in places:
        path = folder / "kimi-loaders.prepared"
        try:
            pieces = _write_file(path, target, folder)
            if path.stat().st_blksize >= 2 << 20:
                sources = (f"{sources[0]}, {HUGE}",)  # noqa: PLW2901
            for source in sources:
                for way in ("registered", "staged", "plain"):
                    run = partial(_copy, way, source, path, pieces)
                    results.measure(way, source, 30, run)
        except OSError as error:
            results.add(Row("copies", sources[0], note=f"{folder}: {error.strerror}"))
        finally:
            path.unlink(missing_ok=True)
    del target
    torch.cuda.empty_cache()
    for loader, turn in (
        ("turned by the CPU", turn_on_cpu),
        ("turned by the GPU", turn_on_gpu),
        ("slice cut first", cut_first),
    ):
        results.measure(loader, "ram disk", 30, partial(_turn, loader, turn, ram))


def _write_file(path: Path, target: Any, folder: Path) -> list[Any]:
    from kimi_prepared_weights import copying, holdings, store  # noqa: PLC0415

    if shutil.disk_usage(folder).free < len(target) + (1 << 30):
        raise OSError(28, "too little room")
    target.random_(0, 255)
    with store.Writer(path) as writer:
        writer.add("all", copying.read_chunks(target))
        writer.finish({"of": "loaders"}, [], {})
    contents = store.read_contents(path, {"of": "loaders"})
    pieces: list[Any] = copying.list_pieces([holdings.Held("all", target)], contents.blocks)
    return pieces


def _drop_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _copy(way: str, source: str, path: Path, pieces: list[Any]) -> Row:
    """Copy three times, the page cache of a disk's file only once; the median counts."""
    import torch  # noqa: PLC0415
    from kimi_prepared_weights import copying  # noqa: PLC0415

    times = []
    for _ in range(1 if source == "disk" else 3):
        if source == "disk":
            _drop_cache(path)
        for piece in pieces[:1]:
            piece.target.zero_()
        torch.cuda.synchronize()
        copied = copying.copy_file(path, pieces, way)
        torch.cuda.synchronize()
        times.append(copied.seconds)
    seconds = sorted(times)[len(times) // 2]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    return Row(
        way, source, seconds, copied.size / GB, memory={"host": peak}, note="every sum right"
    )


def turn_on_cpu(expert: Any, target: Any) -> None:
    """Turn a whole expert over on the CPU, then cut and copy: vLLM up to 0.31."""
    turned = expert.t().contiguous()
    target.copy_(turned[:, : target.shape[1]])


def turn_on_gpu(expert: Any, target: Any) -> None:
    """Copy a whole expert, turn it over on the GPU, then cut: vLLM 0.32 and later."""
    target.copy_(expert.to(target.device).t().contiguous()[:, : target.shape[1]])


def cut_first(expert: Any, target: Any) -> None:
    """Cut the rank's slice, copy it, and turn it over on the GPU."""
    target.copy_(expert[: target.shape[1]].to(target.device).t())


def _turn(loader: str, turn: Callable[[Any, Any], None], ram: Path, gb: float = 4.0) -> Row:
    """Load one rank's slices of packed experts; GB are those of whole experts."""
    import torch  # noqa: PLC0415

    size = EXPERT_ROWS * EXPERT_WORDS * 4
    count = int(gb * GB) // size
    path = ram / "kimi-loaders.experts"
    try:
        with path.open("wb") as file:
            block = os.urandom(size)
            for _ in range(count):
                file.write(block)
        mapped = torch.from_file(str(path), shared=False, size=count * size // 4, dtype=torch.int32)
        experts = mapped.view(count, EXPERT_ROWS, EXPERT_WORDS)
        target = torch.empty(EXPERT_WORDS, EXPERT_ROWS // RANKS, dtype=torch.int32, device="cuda")
        turn(experts[0], target)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for expert in experts:
            turn(expert, target)
        torch.cuda.synchronize()
        return Row(loader, "ram disk", time.perf_counter() - began, count * size / GB)
    finally:
        path.unlink(missing_ok=True)


# --- engines ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """How an engine is started: its python, the model, flags for all starts, and a folder."""

    python: str
    model: Path
    flags: tuple[str, ...]
    folder: Path
    packages: Path

    def command(self, *flags: str) -> list[str]:
        """The command line of a server."""
        return [
            self.python, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model),
            "--host", "127.0.0.1", *self.flags, *flags,
        ]  # fmt: skip


def prepared_flags(folder: Path, **more: str) -> tuple[str, ...]:
    """The flags of prepared weights in a folder."""
    extra = json.dumps({"folder": str(folder), "manifest": "bench", **more})
    return ("--load-format", "kimi_prepared", "--model-loader-extra-config", extra)


def run_engines(results: Results, engine: Engine, ram: Path, disk: Path) -> None:
    """Start an engine for each loader and source."""
    prepared, kept = ram / "kimi-prepared", disk / "kimi-prepared"
    loaders: list[tuple[str, str, tuple[str, ...]]] = [
        ("default", "as it lies", ()),
        ("prepared, written", "ram disk", prepared_flags(prepared)),
        ("prepared", "ram disk", prepared_flags(prepared)),
        ("prepared, staged", "ram disk", prepared_flags(prepared, way="staged")),
        ("instanttensor", "as it lies", ("--load-format", "instanttensor")),
        ("fastsafetensors", "as it lies", ("--load-format", "fastsafetensors")),
        ("prefetch", "as it lies", ("--safetensors-load-strategy", "prefetch")),
    ]
    again = [
        ("prepared, written", "disk", prepared_flags(kept)),
        ("prepared", "page cache", prepared_flags(kept)),
    ]
    try:
        for loader, source, flags in loaders:
            run = partial(start, engine, results, loader, source, flags)
            results.measure(loader, source, 60, run)
        run = partial(start_resident, engine, results)
        results.measure("preload, ipc_cache", "the card", 120, run)
        for level, source in ((1, "host"), (2, "none")):
            run = partial(fall_asleep, engine, results, level)
            results.measure(f"sleep {level}", source, 90, run)
        shutil.rmtree(prepared, ignore_errors=True)
        for loader, source, flags in again:
            run = partial(start, engine, results, loader, source, flags)
            results.measure(loader, source, 60, run)
    finally:
        shutil.rmtree(prepared, ignore_errors=True)
        shutil.rmtree(kept, ignore_errors=True)


def start(
    engine: Engine, results: Results, loader: str, source: str, flags: tuple[str, ...]
) -> Row:
    """Start an engine, ask it once, and end it; the row has its phases."""
    with serving(engine, results, f"{loader}, {source}", flags) as (row, _):
        row.loader, row.source = loader, source
    return row


@contextlib.contextmanager
def serving(
    engine: Engine, results: Results, loader: str, flags: tuple[str, ...], **environment: str
) -> Iterator[tuple[Row, int]]:
    """Run a server until the end of the block; yields its row, and its port."""
    port = find_port()
    log = engine.folder / f"{re.sub('[^a-z0-9]+', '-', loader)}.log"
    row = Row(loader, "")
    began = time.monotonic()
    command = engine.command("--port", str(port), *flags)
    with log.open("w") as out, running(command, out, engine, environment) as server:
        peak = wait_for_answer(server, port, engine, results.left_s)
        row.phases["answer"] = time.monotonic() - began
        text = log.read_text(errors="replace")
        row.phases |= parse_phases(text)
        size = _SIZE.search(text)
        row.gb = float(size[1]) * (1 << 30) / GB if size else None
        row.seconds = next(
            (row.phases[name] for name in ("copied", "weights", "model") if name in row.phases),
            None,
        )
        row.memory = peak
        yield row, port


@contextlib.contextmanager
def running(
    command: list[str], out: Any, engine: Engine, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    variables = {**os.environ, **environment, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    variables["PYTHONPATH"] = f"{engine.packages}:{variables.get('PYTHONPATH', '')}".rstrip(":")
    process = subprocess.Popen(
        command, stdout=out, stderr=subprocess.STDOUT, env=variables, start_new_session=True
    )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
                break


def wait_for_answer(
    server: subprocess.Popen[bytes], port: int, engine: Engine, limit_s: float
) -> dict[str, float]:
    """Wait until a completion is answered; returns the highest use of memory until then."""
    peak: dict[str, float] = {}
    end = time.monotonic() + limit_s
    body = json.dumps({"model": str(engine.model), "prompt": "a", "max_tokens": 1}).encode()
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the engine ended with {server.returncode}; see its log")
        for name, value in read_memory(server.pid).items():
            peak[name] = max(value, peak.get(name, 0.0))
        with contextlib.suppress(OSError):
            post(port, "/v1/completions", body)
            return peak
        time.sleep(0.25)
    raise TimeoutError("no answer in the time that was left")


def post(port: int, path: str, body: bytes = b"") -> bytes:
    """Send a POST to the server; raises OSError for any answer but 200."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        data: bytes = answer.read()
        return data


def read_memory(session: int) -> dict[str, float]:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError):
        done = subprocess.run(query, capture_output=True, text=True, check=False)
        used = [float(line) / 1024 for line in done.stdout.split() if line.isdigit()]
        return {"card": max(used, default=0.0), "host": _read_resident(session)}
    return {"host": _read_resident(session)}


def _read_resident(session: int) -> float:
    """GiB of anonymous and shared memory of a session's processes, without the page cache's."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) != session:
                continue
            status = (stat.parent / "status").read_text()
            total += sum(int(kb) for kb in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status))
    return total / (1 << 20)


def find_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def holding(
    engine: Engine, results: Results, *flags: str
) -> Iterator[tuple[subprocess.Popen[bytes], float, tuple[str, ...]]]:
    """Hold weights until the end of the block: the holder, its seconds, and an engine's flags."""
    port, sockets = find_port(), engine.folder / "sockets"
    sockets.mkdir(mode=0o700, exist_ok=True)
    command = [
        engine.python, "-m", "kimi_prepared_weights.hold", "--model", str(engine.model),
        *engine.flags, *flags, "--weight-cache-socket-dir", str(sockets),
        "--weight-cache-health-port", str(port), "--weight-cache-health-host", "127.0.0.1",
    ]  # fmt: skip
    began = time.monotonic()
    with (engine.folder / "hold.log").open("a") as out, running(command, out, engine, {}) as one:
        while not _is_ready(port):
            if one.poll() is not None:
                raise RuntimeError(f"the holder ended with {one.returncode}; see hold.log")
            if results.left_s < 30:
                raise TimeoutError("the holder was not ready in time")
            time.sleep(0.5)
        extra = json.dumps({"socket_dir": str(sockets), "fallback": False})
        mapped = ("--load-format", "ipc_cache", "--model-loader-extra-config", extra)
        yield one, time.monotonic() - began, mapped


def _is_ready(port: int) -> bool:
    with (
        contextlib.suppress(OSError),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5),
    ):
        return True
    return False


def start_resident(engine: Engine, results: Results) -> Row:
    """A holder keeps the weights on the cards; an engine maps them (vLLM 0.32 and later)."""
    with (
        holding(engine, results) as (_, ready, flags),
        serving(engine, results, "preload, ipc_cache", flags) as (row, _),
    ):
        row.source = "the card"
        row.phases = {"daemon": ready, **row.phases}
    return row


def fall_asleep(engine: Engine, results: Results, level: int) -> Row:
    """Time /sleep and /wake_up, and check that the answer after is the one before."""
    name = f"sleep {level}"
    with serving(engine, results, name, ("--enable-sleep-mode",), VLLM_SERVER_DEV_MODE="1") as (
        row,
        port,
    ):
        question = json.dumps(
            {"model": str(engine.model), "prompt": "a b c", "max_tokens": 8, "temperature": 0}
        ).encode()
        before = json.loads(post(port, "/v1/completions", question))["choices"][0]["text"]
        began = time.perf_counter()
        post(port, f"/sleep?level={level}")
        row.phases["asleep"] = time.perf_counter() - began
        row.memory |= {"card asleep": read_memory(0).get("card", 0.0)}
        began = time.perf_counter()
        post(port, "/wake_up")
        row.seconds = row.phases["awake"] = time.perf_counter() - began
        row.source = "host" if level == 1 else "none"
        after = json.loads(post(port, "/v1/completions", question))["choices"][0]["text"]
        row.note = "same answer" if after == before else f"another answer: {after[:40]!r}"
    return row


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--gb", type=float, default=16.0, help="of the file that is copied")
    parser.add_argument("--ram", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--model", type=Path, help="a model's folder, for engines")
    parser.add_argument("--python", default=sys.executable, help="of an environment with vLLM")
    parser.add_argument("--flags", default="--max-model-len 4096 --trust-remote-code")
    parser.add_argument("--no-pieces", action="store_true", help="engines alone")
    parser.add_argument("--ram-only", action="store_true", help="copies from the RAM disk alone")
    parser.add_argument(
        "--only", action="append", metavar="LOADER", help="those that begin so; repeatable"
    )
    options = parser.parse_args()
    results = Results(options.output, options.minutes, options.only)
    if not options.no_pieces:
        disk = None if options.ram_only else options.disk
        run_pieces(results, options.gb, disk, options.ram)
    if options.model is not None:
        packages = options.output / "packages"
        unpack_plugin(packages)
        engine = Engine(
            options.python, options.model, tuple(options.flags.split()), options.output, packages
        )
        run_engines(results, engine, options.ram, options.disk)


def unpack_plugin(target: Path) -> None:
    """Lay the plugin out as if it were installed: vLLM looks for its entry point."""
    import tomllib  # noqa: PLC0415

    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    name = project["name"].replace("-", "_")
    shutil.copytree(PLUGIN / name, target / name, dirs_exist_ok=True)
    info = target / f"{name}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    rows = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("".join(rows))


if __name__ == "__main__":
    main()
