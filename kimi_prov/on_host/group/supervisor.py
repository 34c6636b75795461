"""`group ... -- engine -m MODULE ARGUMENT...` runs this host's part of a model of several hosts.

It connects to the supervisors of the other hosts, starts the engine as its child once all are there
and equal, and ends the engine when any part of the group has ended; systemd then starts it again.
On the head it also checks whether the engine makes progress. lifecycle.py holds the decisions.
"""

from __future__ import annotations

import argparse
import os
import queue
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.group import lifecycle, links, members
from kimi_prov.on_host.group.child import Child
from kimi_prov.on_host.group.lifecycle import HEAD, Head, Limits, Rank
from kimi_prov.on_host.group.liveness import Watch
from kimi_prov.on_host.system import group_state
from kimi_prov.on_host.system.group_state import Record
from kimi_prov.on_host.system.notify import Notifier

if TYPE_CHECKING:
    from kimi_prov.on_host.group.links import Link
    from kimi_prov.on_host.group.messages import Message

# Seconds after which it checks again what ended and who is late.
_POLL_INTERVAL_S = 0.5
_RECONNECT_S = 1.0
# A peer that connects has to say hello within this time.
_HELLO_S = 10.0
_LIMITS = Limits()


def main(argv: list[str]) -> int:
    """Supervise one round; the exit status tells systemd whether to start another."""
    options, command = _parse_options(argv)
    found = tuple(members.Member.parse(text) for text in options.member)
    if not 0 <= options.rank < len(found):
        raise HostError(f"--rank {options.rank}: there are {len(found)} members")
    if len({member.address for member in found}) < len(found):
        raise HostError("--member: two hosts have one address")
    group = members.Group(options.name, found, options.rank)
    marks = [Path(mark) for mark in options.weights]
    facts = members.collect_facts(group, options.digest, Path(options.environment), marks)
    limits = Limits(
        silence=options.silence,
        loading=options.loading,
        progress=options.progress,
        rounds=options.rounds,
    )
    kept = Record(os.environ.get("RUNTIME_DIRECTORY"), options.digest)
    logic: Head | Rank = Rank(group, facts, limits)
    watch = None
    if options.rank == HEAD:
        logic = Head(group, facts, limits, kept.failed)
        limit_s = options.progress
        watch = Watch(options.chat_port, options.model, every_s=options.ask_every, limit_s=limit_s)
    engine = Engine(command, watch)
    notifier = Notifier.from_environment(os.environ)
    return Supervisor(group, logic, kept, engine, notifier).run(options.port, options.grace)


def _parse_options(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Read the options, and the command line of the engine: this program's own."""
    at = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(prog="group")
    parser.add_argument("--name", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--member", action="append", required=True, metavar="HOST=ADDRESS")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--digest", required=True)
    parser.add_argument("--environment", required=True, metavar="MARK")
    parser.add_argument("--weights", action="append", default=[], metavar="MARK")
    parser.add_argument("--chat-port", type=int)
    parser.add_argument("--model")
    parser.add_argument("--rounds", type=int, default=_LIMITS.rounds)
    parser.add_argument("--loading", type=float, default=_LIMITS.loading, metavar="SECONDS")
    parser.add_argument("--silence", type=float, default=_LIMITS.silence, metavar="SECONDS")
    parser.add_argument("--progress", type=float, default=_LIMITS.progress, metavar="SECONDS")
    parser.add_argument("--ask-every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--grace", type=float, default=3.0, metavar="SECONDS")
    options = parser.parse_args(argv[:at])
    if options.rank == HEAD and not (options.chat_port and options.model):
        parser.error("the head needs --chat-port and --model")
    words = argv[at + 1 :]
    if not words:
        parser.error("expected -- and what starts the engine")
    return options, [sys.executable, sys.argv[0], *words]


class Engine(NamedTuple):
    """How the engine is started, and how the head checks whether it makes progress."""

    command: list[str]
    watch: Watch | None


class Supervisor:
    """Connects the decisions with the sockets, the child, signals and the clock."""

    def __init__(
        self,
        group: members.Group,
        logic: Head | Rank,
        kept: Record,
        engine: Engine,
        notifier: Notifier,
    ) -> None:
        self._group, self._logic, self._kept = group, logic, kept
        self._engine, self._notifier = engine, notifier
        self._port = 0
        self._links: dict[int, Link] = {}
        # Connections without a hello so far, by address, with the time of each.
        self._strangers: dict[str, tuple[Link, float]] = {}
        self._child: Child | None = None
        self._status: int | None = None
        self._selector = selectors.DefaultSelector()
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._waker, self._woken = socket.socketpair()
        self._stop = False
        self._next_try = 0.0
        self._said = ""
        self._turned_away: list[str] = []

    def run(self, port: int, grace_s: float) -> int:
        """Work until the round is over; return the exit status."""
        self._port = port
        self._take_signals()
        listener = links.listen(self._group, self._port) if self._group.rank == HEAD else None
        try:
            if listener is not None:
                self._selector.register(listener, selectors.EVENT_READ)
            self._do(self._logic.begin())
            while self._status is None:
                self._turn(listener)
        finally:
            if listener is not None:
                listener.close()
            for link in [*self._links.values(), *(link for link, _ in self._strangers.values())]:
                link.close()
            if self._child is not None:
                self._child.stop(grace_s, self._notifier.alive)
        return self._status

    def _turn(self, listener: socket.socket | None) -> None:
        """Do one step of the loop: what came in, what ended, what is late."""
        self._notifier.alive()
        if isinstance(self._logic, Rank) and not self._links:
            self._connect(self._logic)
        for key, _ in self._selector.select(_POLL_INTERVAL_S):
            if key.fileobj is listener:
                self._accept(listener)
            elif key.fileobj is self._woken:
                self._woken.recv(4096)
            else:
                self._receive(key.data)
        if self._stop:
            self._do(self._logic.stopped())
        while isinstance(self._logic, Head) and not self._answers.empty():
            self._report_answer(self._logic, self._answers.get())
        ended = self._child.describe_end() if self._child is not None else None
        now = time.monotonic()
        if ended is not None:
            self._do(self._logic.child_ended(ended, now))
        for address, (link, since) in list(self._strangers.items()):
            if now - since > _HELLO_S:
                self._forget(link)
                self._strangers.pop(address)
        self._do(self._logic.tick(now))

    def _take_signals(self) -> None:
        self._waker.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stopped)
        # The loop shall notice the end of the engine at once.
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _stopped(self, *_: object) -> None:
        self._stop = True

    def _report_answer(self, head: Head, reason: str | None) -> None:
        if reason is None:
            self._do(head.engine_lives(time.monotonic()))
        else:
            head.engine_silent(reason)

    def _connect(self, rank: Rank) -> None:
        if time.monotonic() < self._next_try:
            return
        link, why = links.connect(self._group, self._port)
        self._next_try = time.monotonic() + _RECONNECT_S
        if link is None:
            head = self._group.head
            self._say(f"waiting for {head.host}, the head, at {head.address}: {why}")
            return
        self._links[HEAD] = link
        self._selector.register(link.socket, selectors.EVENT_READ, link)
        self._do(rank.connected(time.monotonic()))

    def _accept(self, listener: socket.socket) -> None:
        link = links.accept(listener)
        if link is None:
            return
        known = [self._group.members[rank].address for rank in self._group.others]
        if link.address not in known:
            link.close()
            if link.address not in self._turned_away and len(self._turned_away) < len(known) + 8:
                self._turned_away.append(link.address)
                print(f"refused {link.address}: it is no member of the group", flush=True)
            return
        before = self._strangers.pop(link.address, None)
        if before is not None:
            self._forget(before[0])
        self._strangers[link.address] = (link, time.monotonic())
        self._selector.register(link.socket, selectors.EVENT_READ, link)

    def _receive(self, link: Link) -> None:
        if link.socket.fileno() < 0:  # Closed in this same step of the loop.
            return
        messages, why = link.receive()
        for message in messages:
            if link.socket.fileno() < 0 or self._status is not None:
                return
            if link.rank is None and not self._introduced(link, message):
                why = "it said no hello"
                break
            if link.rank is not None:
                self._do(self._logic.heard(link.rank, message, time.monotonic()))
        if why is None or link.socket.fileno() < 0:
            return
        self._forget(link)
        if link.rank is None:
            self._strangers.pop(link.address, None)
            print(f"refused {link.address}: {why}", flush=True)
        elif self._links.get(link.rank) is link:
            self._links.pop(link.rank)
            self._do(self._logic.lost(link.rank, why))

    def _introduced(self, link: Link, message: Message) -> bool:
        """Assign a connection to the rank of its hello, where its address is that rank's."""
        rank = message.get("rank")
        if message["kind"] != "hello" or rank not in self._group.others:
            return False
        if self._group.members[rank].address != link.address:
            return False
        self._strangers.pop(link.address, None)
        before = self._links.pop(rank, None)
        if before is not None:
            self._forget(before)
        link.rank = rank
        self._links[rank] = link
        return True

    def _forget(self, link: Link) -> None:
        if link.socket.fileno() >= 0:
            self._selector.unregister(link.socket)
            link.close()

    def _do(self, actions: lifecycle.Actions) -> None:
        for action in actions:
            if isinstance(action, lifecycle.Say):
                self._say(action.text)
            elif isinstance(action, lifecycle.Send):
                link = self._links.get(action.rank)
                if link is not None:
                    link.send(action.kind, action.fields)
            elif isinstance(action, lifecycle.Drop):
                link = self._links.pop(action.rank, None)
                if link is not None:
                    self._forget(link)
            elif isinstance(action, lifecycle.Start):
                self._start()
            elif isinstance(action, lifecycle.Failed):
                self._kept.fail(action.why)
            elif isinstance(action, lifecycle.Answered):
                self._kept.clear()
            else:
                self._status = action.status
        ended = self._status is not None
        self._kept.tell(group_state.WAITING if ended else self._logic.phase, self._said)

    def _start(self) -> None:
        self._child = Child(self._engine.command)
        if self._engine.watch is not None:
            self._engine.watch.start(self._answered)

    def _answered(self, reason: str | None) -> None:
        """Store the result of a question, from the thread that asked it."""
        self._answers.put(reason)
        try:
            self._waker.send(b"\0")
        except OSError:  # The pipe is full, so the loop is awake anyway.
            return

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            print(f"group {self._group.name}: {text}", flush=True)
            self._notifier.status(text)
