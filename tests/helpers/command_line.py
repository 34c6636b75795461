"""The command line in this process, on machines that answer as a test says.

Ansible is not there: what its tasks would report of each host comes from the test. How Ansible
itself is run, and what it reports, is held by tests/component/runner and tests/component/commands.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kimi_prov.cli import cli
from kimi_prov.runner import inventory as inventories
from kimi_prov.runner import run as runner
from kimi_prov.show.exit_handling import run_guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pytest

Result = dict[str, Any]


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Stream(io.TextIOWrapper):
    """Standard output or error as a terminal in UTF-8 has it."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="backslashreplace")

    def text(self) -> str:
        """Return what was written."""
        self.flush()
        content: bytes = self.buffer.getvalue()  # type: ignore[attr-defined]
        return content.decode()


@contextlib.contextmanager
def surroundings(environment: Mapping[str, str]) -> Iterator[None]:
    """Have this environment and no other, as a process that is started with it has."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(*words: object, given: str = "") -> Done:
    """Run the command line as `main` does; `given` is what standard input has."""
    out, err = Stream(), Stream()
    # A chat handles signals for itself, to its end.
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            called = partial(
                cli.main, args=[*map(str, words)], prog_name="kimi-prov", standalone_mode=False
            )
            code = run_guarded(called)
    finally:
        sys.stdin = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
        # Where --catalog hands its rows on to other processes: no test after this one has them.
        os.environ.pop("KIMI_PROV_CATALOG", None)
    return Done(int(code), out.text(), err.text())


@dataclass(frozen=True)
class Asked:
    """What a task of a play is asked for a host."""

    host: str
    variables: Mapping[str, Any]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Task:
    """A task of a play: an action, and what comes of it for each host."""

    action: str
    answers: Callable[[Asked], Result | None]
    name: str = ""


def task(action: str, answers: Any = None, *, name: str = "", **of_hosts: Result) -> Task:
    """Make a task: `answers` for any host, or by host's name; a host without one leaves it out."""
    if callable(answers):
        return Task(action, answers, name)
    if answers is not None:
        return Task(action, lambda _: answers, name)
    return Task(action, lambda asked: of_hosts.get(asked.host), name)


def gives(document: object, **more: Any) -> Result:
    """Give the result of a task that made a document."""
    return {"changed": False, "kimi_document": document, **more}


def fails(message: str, **more: Any) -> Result:
    """Give the result of a task that failed."""
    return {"changed": False, "failed": True, "msg": message, **more}


def is_away(message: str) -> Result:
    """Give the result for a host that does not answer."""
    return {"changed": False, "unreachable": True, "msg": message}


@dataclass
class CommandLine:
    """A home of a user's own, the hosts of an inventory, and what the next plays do on them."""

    home: Path
    tasks: list[Task] = field(default_factory=list)
    # The playbooks that were run, by name.
    played: list[str] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        """Where runs are kept."""
        return self.home / "state" / "kimi-prov" / "runs"

    def plays(self, *tasks: Task) -> None:
        """Have every playbook do these tasks."""
        self.tasks = list(tasks)

    def hosts(self, *names: str) -> Path:
        """Write an inventory of local hosts with these names."""
        path = self.home / "hosts.yml"
        hosts = ", ".join(f"{name}: {{}}" for name in names)
        path.write_text(f"kimi: {{hosts: {{{hosts}}}, vars: {{ansible_connection: local}}}}\n")
        return path

    def run(self, *words: object, given: str = "") -> Done:
        """Run the command line in the home."""
        with contextlib.chdir(self.home):
            return run(*words, given=given)


class StandIn:
    """In the place of ansible-runner: reports each task for each host, and what became of all."""

    def __init__(self, line: CommandLine, argv: list[str], **options: Any) -> None:
        self.line, self.argv = line, argv
        self.environment: dict[str, str] = options["envvars"]
        self.report: Callable[[Result], object] = options["event_handler"]
        self.rc = 0

    def run(self) -> None:
        """Go over the hosts, task by task, as Ansible does."""
        playbook = Path(self.argv[-1])
        self.line.played.append(playbook.stem)
        left, counts = list(self._hosts()), {}
        for host in left:
            counts[host] = dict.fromkeys(("ok", "changed", "failures", "dark"), 0)
        for one in self.line.tasks:
            about = {"task": one.name or one.action, "task_action": one.action}
            about["playbook"] = str(playbook)
            for host in list(left):
                result = one.answers(Asked(host, self._variables(), self.environment))
                if result is None:
                    continue
                self._event("runner_on_start", {**about, "host": host})
                kind, ended = _kind(result)
                data = {**about, "host": host, "res": result, "duration": 0.01}
                self._event(ended, data, _shown(host, kind, result))
                if "diff" in result and "--diff" in self.argv:
                    lines = result["diff"]["after"].splitlines()
                    shown = "\n".join(f"+{line}" for line in lines)
                    self._event("runner_on_file_diff", {**about, "host": host}, shown)
                counts[host][kind] += 1
                counts[host]["changed"] += bool(result.get("changed"))
                if kind != "ok":
                    left.remove(host)
        totals = {
            kind: {host: row[kind] for host, row in counts.items() if row[kind]}
            for kind in ("ok", "changed", "failures", "dark")
        }
        self._event("playbook_on_stats", totals)
        self.rc = 4 if totals["dark"] else 2 if totals["failures"] else 0

    def _event(self, name: str, data: Result, shown: str = "") -> None:
        self.report({"event": name, "event_data": data, "stdout": shown})

    def _options(self, name: str) -> list[str]:
        return [
            value for flag, value in zip(self.argv, self.argv[1:], strict=False) if flag == name
        ]

    def _hosts(self) -> Iterator[str]:
        listed = [read_inventory(Path(source)) for source in self._options("-i")]
        limits = {name for value in self._options("--limit") for name in value.split(",")}
        for groups in listed:
            for name in ("kimi", "kimi_gateway"):
                for host in groups.get(name, {}).get("hosts", ()):
                    if not limits or host in limits or name in limits:
                        yield host

    def _variables(self) -> Result:
        found: Result = {}
        for value in self._options("-e"):
            found |= yaml.safe_load(Path(value.removeprefix("@")).read_text()) or {}
        return found


def _kind(result: Result) -> tuple[str, str]:
    if result.get("unreachable"):
        return "dark", "runner_on_unreachable"
    if result.get("failed"):
        return "failures", "runner_on_failed"
    return "ok", "runner_on_ok"


def _shown(host: str, kind: str, result: Result) -> str:
    """What ansible-playbook prints of a result, as far as a log has it; its message as it came."""
    words = {"ok": "ok", "failures": "fatal", "dark": "fatal"}
    return f"{words[kind]}: [{host}]: {result.get('msg', '')}"


def read_inventory(path: Path) -> Result:
    """List groups and variables of hosts as `ansible-inventory --list` does, of simple YAML."""
    groups: Result = {}
    hostvars: dict[str, Result] = {}

    def add(name: str, group: Result | None, inherited: Result) -> None:
        group = group or {}
        own = {**inherited, **(group.get("vars") or {})}
        entry = groups.setdefault(name, {})
        for host, variables in (group.get("hosts") or {}).items():
            entry.setdefault("hosts", []).append(str(host))
            hostvars[str(host)] = {**hostvars.get(str(host), {}), **own, **(variables or {})}
        for child, inner in (group.get("children") or {}).items():
            entry.setdefault("children", []).append(str(child))
            add(str(child), inner, own)

    for name, group in (yaml.safe_load(path.read_text()) or {}).items():
        add(str(name), group, {})
    return {**groups, "_meta": {"hostvars": hostvars}}


class _NoWatchdog:
    """No process that outlives this one: nothing is started that it would end."""

    def __init__(self, *_: object) -> None:
        pass

    def dismiss(self) -> None:
        """There is nothing to dismiss."""


def stand_in_for_ansible(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in in Ansible's place, where inventories are read and where playbooks run."""

    def make(_executable: str, argv: list[str], **options: Any) -> StandIn:
        return StandIn(line, argv, **options)

    def listed(_path: Path, sources: list[Path], _login: object) -> Result:
        found: Result = {}
        for source in sources:
            found |= read_inventory(source)
        return found

    monkeypatch.setattr(runner, "import_ansible_runner", lambda: make)
    monkeypatch.setattr(runner, "Watchdog", _NoWatchdog)
    monkeypatch.setattr(runner, "_POLL_INTERVAL_S", 0)
    monkeypatch.setattr(inventories, "_list_inventory", listed)


def make(folder: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Make the command line of a user whose home, in this folder, is empty."""
    line = CommandLine(folder / "home")
    line.home.mkdir()
    monkeypatch.setenv("HOME", str(line.home))
    monkeypatch.setenv("XDG_STATE_HOME", str(line.home / "state"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("KIMI_PROV_CATALOG", raising=False)
    stand_in_for_ansible(line, monkeypatch)
    return line
