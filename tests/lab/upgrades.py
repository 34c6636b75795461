"""A served lab host that is changed and harmed: its clients, its history, its disk, its points.

The disk of such a host is a file system of a fixed size, so that it can be filled from outside.
What a run has reached is read from outside too, in the host's own root: no command of a test comes
between the point and the harm.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import closed_form
import psutil
import yaml
from machines import HANGS_S, KIMI_PROV, Lab, descendants, kimi_prov, make_lab
from weights_server import Server

from kimi_prov.contract import paths
from kimi_prov.lab import inventory as lab_inventory
from kimi_prov.lab import model as lab_model
from kimi_prov.lab import model_shapes
from kimi_prov.lab import operations as commands
from kimi_prov.lab.state import HostState, LabState, find_state_home
from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from machines import Host

# Its parser takes the flag; the engine refuses it of weights that are not of that form.
NO_START = {"kimi_engine_args": {"quantization": "awq"}}
# It answers, and what it answers is nonsense. The context bounds how much of it.
WRONG = {
    "kimi_model": "kimi-k2-lab-wrong",
    "kimi_weights_source": "file:///opt/models/kimi-k2-lab",
    "kimi_context": 1024,
}
OWN_MODELS = {"KIMI_PROV_CATALOG": str(Path(__file__).parent / "catalogue")}


class Client:
    """Streams one chat after the other; notes when none came.

    `tokens` of each answer: a long one is under way when a switch drains.
    """

    def __init__(self, host: Host, tokens: int = 24) -> None:
        self.key, fingerprint = host.door()
        self.endpoint = api_client.Endpoint(host.address, 8000, fingerprint, 120.0)
        self.tokens = tokens
        self.stop = threading.Event()
        self.away_s = 0.0
        self._lost: float | None = None

    def run(self) -> None:
        """Ask until told to stop."""
        body: dict[str, Any] = {"model": "kimi-k2-lab", "max_tokens": self.tokens}
        body |= {"messages": [{"role": "user", "content": "Count."}], "ignore_eos": True}
        while not self.stop.is_set():
            try:
                answered = [p for _, p in api_client.stream(self.endpoint, self.key, body)][
                    -1
                ] is None
            except (api_client.ApiError, IndexError):
                answered = False
            now = time.monotonic()
            if not answered:
                self._lost = self._lost or now
                time.sleep(0.2)
            elif self._lost:
                self.away_s, self._lost = self.away_s + now - self._lost, None
            # The two cores have more to do; yet a switch has to find an answer under way.
            self.stop.wait(0.2)


@contextmanager
def streaming(
    host: Host, note: Callable[[str, object], None], tokens: int = 24
) -> Iterator[Client]:
    """Ask all the while, and note the seconds without an answer, up to the first one after."""
    client = Client(host, tokens)
    thread = threading.Thread(target=client.run, daemon=True)
    thread.start()
    try:
        yield client
    finally:
        client.stop.set()
        thread.join(HANGS_S)
        note("seconds without service", round(client.away_s, 1))


def history(host: Host) -> dict[str, Any]:
    """The host's part of `history`, which the schema holds."""
    done = kimi_prov("history", host.inventory, "--limit", host.name, "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "history")
    found: dict[str, Any] = document["hosts"][host.name]
    return found


def settings_file(folder: Path, settings: dict[str, Any]) -> str:
    """Settings as an option of `apply`."""
    file = folder / "settings.yml"
    file.write_text(yaml.safe_dump(settings))
    return f"@{file}"


def changed(host: Host, folder: Path, settings: dict[str, Any], *more: str) -> Any:
    """`apply` with other settings than the inventory's."""
    words = ("-e", settings_file(folder, settings), *more)
    return kimi_prov("apply", host.inventory, "--limit", host.name, *words, env=OWN_MODELS)


def chats(host: Host, model: str = "kimi-k2-lab") -> None:
    """Have one chat answered through the opened port."""
    key, fingerprint = host.door()
    assert answers(host, key, fingerprint, model)


def answers(host: Host, key: str, fingerprint: str, model: str = "kimi-k2-lab") -> bool:
    """Whether a chat is answered now."""
    endpoint = api_client.Endpoint(host.address, 8000, fingerprint, 120.0)
    question = [{"role": "user", "content": "Hello"}]
    with suppress(api_client.ApiError):
        body = {"model": model, "messages": question, "max_tokens": 2}
        return api_client.request_chat(endpoint, key, body).status == 200
    return False


# --- a host with a disk of its own -----------------------------------------------------------


@dataclass
class Disk:
    """The whole disk of a lab host: an ext4 file system in a file of the control machine."""

    folder: Path
    image: Path

    @property
    def free_bytes(self) -> int:
        about = os.statvfs(self.folder)
        return about.f_bavail * about.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Take what is free, to the last block; `leave_bytes` stays."""
        file = os.open(self._filler, os.O_WRONLY | os.O_CREAT)
        try:
            end = os.fstat(file).st_size
            step = max(0, self.free_bytes - leave_bytes)
            while step >= 4096:
                try:
                    os.posix_fallocate(file, end, step)
                    end += step
                    step = min(step, max(0, self.free_bytes - leave_bytes))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2
        finally:
            os.close(file)

    def free(self) -> None:
        """Give it back."""
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        # Beside the host's own files: it is on the disk, and not in the host's sight.
        return self.folder / "filler"


@contextmanager
def disks(lab: Lab, size_bytes: int) -> Iterator[dict[str, Disk]]:
    """Give each host of a lab that is not up yet a disk of this size; the lab is down after it."""
    name = lab_inventory.identify_lab(lab.inventory)[0]
    made: dict[str, Disk] = {}
    with tempfile.TemporaryDirectory() as images:
        try:
            for host in lab.hosts:
                folder = Path(LabState(find_state_home() / name).host(host).folder)
                folder.mkdir(parents=True)
                image = Path(images) / host
                with image.open("wb") as stream:
                    stream.truncate(size_bytes)
                # No blocks kept for root, which fills it.
                _run("mkfs.ext4", "-q", "-m", "0", image)
                _run("mount", "-o", "loop", image, folder)
                made[host] = Disk(folder, image)
            lab.up()
            yield made
        finally:
            for host, disk in made.items():
                with suppress(Exception):
                    commands.switch_power(lab.inventory, host, on=False, hard=True)
                _run("umount", "--lazy", disk.folder)
            lab.down()


def _run(*argv: str | Path) -> None:
    subprocess.run([str(word) for word in argv], check=True, capture_output=True)


# --- what a run has reached ------------------------------------------------------------------


@dataclass
class Inside:
    """Files of a host that is up, read from the control machine."""

    host: Host

    @cached_property
    def _state(self) -> HostState:
        name = lab_inventory.identify_lab(self.host.inventory)[0]
        return LabState(find_state_home() / name).host(self.host.name)

    _root: Path | None = field(default=None, init=False)

    def root(self) -> Path | None:
        """The host's root, as its first process sees it; None while it is off."""
        if self._root is not None and self._root.exists():
            return self._root
        self._root = None
        pid = self._state.running_pid()
        with suppress(psutil.Error):
            for process in psutil.Process(pid).children(recursive=True) if pid else []:
                if process.name() == "systemd" and process.exe().endswith("/systemd/systemd"):
                    self._root = Path(f"/proc/{process.pid}/root")
                    break
        return self._root

    def path(self, name: str) -> Path | None:
        """Where a path of the host is to be found from here."""
        root = self.root()
        return root / name[1:] if root else None

    def text(self, name: str) -> str:
        """A file's text; empty where there is none."""
        path = self.path(name)
        with suppress(OSError):
            return path.read_text() if path else ""
        return ""

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file's object; empty where there is none."""
        with suppress(ValueError):
            return dict(json.loads(self.text(name) or "{}"))
        return {}

    @property
    def phase(self) -> str:
        """The phase of the open switch; empty where none is open."""
        return str(self.json(paths.SWITCH).get("phase") or "")

    @property
    def line(self) -> str:
        """What the switch says it is at."""
        return str(self.json(paths.SWITCH_PROGRESS).get("line") or "")

    def entry(self) -> dict[str, Any]:
        """The newest entry of the history."""
        folder = self.path(paths.HISTORY)
        names = sorted(path.name for path in folder.glob("[0-9]*")) if folder else []
        return self.json(f"{paths.HISTORY}/{names[-1]}/entry.json") if names else {}


# --- a run that is harmed --------------------------------------------------------------------


@dataclass
class Run:
    """An `apply` in the background, in a session of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def reaches(self, point: Callable[[], bool], what: str) -> None:
        """Wait until it has come to a point."""
        end = time.monotonic() + HANGS_S
        while not point():
            assert self.process.poll() is None, f"it ended before {what!r}:\n{self.said}"
            assert time.monotonic() < end, f"{what!r} was not reached:\n{self.said}"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it and all that it started, as SIGKILL does: nothing is cleared up."""
        for victim in descendants(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
        self.ended()

    def ended(self) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(HANGS_S)


_RUNS = itertools.count()


@contextmanager
def applying(
    host: Host, folder: Path, settings: dict[str, Any], *, alone: bool = True
) -> Iterator[Run]:
    """Start an `apply` with other settings; whatever is left of it is ended.

    `alone`: to this host, and to no other of its inventory.
    """
    log = folder / f"apply{next(_RUNS)}.log"
    argv = [KIMI_PROV, "apply", str(host.inventory), *(["--limit", host.name] if alone else [])]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*argv, "-e", settings_file(folder, settings)],
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **OWN_MODELS},
        )
    run = Run(process, log)
    try:
        yield run
    finally:
        if process.poll() is None:
            run.kill()


# --- the host that the modules share ---------------------------------------------------------

INT4, SECOND, DEEP = "kimi-k2-lab-int4", "kimi-k2-lab-second", "kimi-k2-lab-deep"
NETWORK = "10.93.110"
# For three environments of vLLM's CPU build.
DISK_BYTES = 12 << 30
FIRST = 4


@dataclass
class Shaken:
    """A host that serves, with a disk of its own; beside it a web server of other weights."""

    host: Host
    disk: Disk
    web: Server
    inside: Inside
    key: str
    fingerprint: str
    settings: dict[str, Any] = field(default_factory=lambda: {"kimi_concurrency": FIRST})
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(FIRST + 1))
    # Command lines that were planned, as they were seen.
    plans: list[list[str]] = field(default_factory=list)

    def answers(self) -> bool:
        """Whether a chat is answered now."""
        return answers(self.host, self.key, self.fingerprint)

    def argv(self) -> str:
        """The command line of the engine that runs."""
        pid = "systemctl show -P MainPID kimi-serve@0"
        return self.host.ssh(f"tr '\\0' ' ' </proc/$({pid})/cmdline")

    def serving(self) -> int:
        """The concurrency by which versions differ here, of the engine that runs."""
        words = self.argv().split()
        planned = self.inside.json(paths.PLAN)["instances"][0]["argv"]
        # Of a run that was cut the plan may be there, and the engine still the one before.
        self.plans.append(planned[1:])
        # One of the two, and not a mixture.
        assert words[-len(planned) + 1 :] in self.plans[-2:]
        return int(words[words.index("--max-num-seqs") + 1])


@contextmanager
def shaken_host(folder: Path) -> Iterator[Shaken]:
    """Bring such a host up and let it serve."""
    models = {INT4: f"model:{INT4}", DEEP: "../deep"}
    lab = make_lab(
        folder / "inv",
        NETWORK,
        nodes=["shaken"],
        files=[{"src": src, "dest": f"/opt/models/{name}"} for name, src in models.items()],
        kimi_served_names=["kimi-k2-lab"],
        kimi_concurrency=FIRST,
    )
    lab_model.make_model(folder / "deep", "bf16", replace(model_shapes.TINY, layers=30))
    lab_model.make_model(folder / "second")
    with disks(lab, DISK_BYTES) as made:
        host = lab.hosts["shaken"]
        done = host.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        weights = {path.name: path.read_bytes() for path in (folder / "second").iterdir()}
        web = Server(weights, host=f"{NETWORK}.1")
        try:
            yield Shaken(host, made["shaken"], web, Inside(host), *host.door())
        finally:
            web.stop()
