"""Decides what a supervisor does about each event; it has no sockets and no processes.

A group starts and stops as one. The head waits until every rank has said hello with equal facts,
then says go; each host starts its engine. When an engine ends on one host, the engines of all hosts
are ended: systemd starts each supervisor again, and they connect again. Times are in seconds of a
monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from kimi_prov.contract.clean_text import clean_line
from kimi_prov.contract.errors import EXIT_PERMANENT, EXIT_TRANSIENT
from kimi_prov.on_host.group.members import Facts, Group, list_differing
from kimi_prov.on_host.system import group_state

if TYPE_CHECKING:
    from kimi_prov.on_host.group.messages import Message

HEAD = 0

# Part of the message while hosts of a group do not start because they differ.
NOT_EQUAL = "nothing starts until they are equal"


@dataclass(frozen=True)
class Limits:
    """Limits in seconds, and the number of rounds that may fail in a row.

    `beat`: between two signs of life. `silence`: without a sign of life, after which a peer counts
    as gone. `loading`: from the start of the engine to its first answer. `progress`: without a step
    of the engine or an answer. `farewell`: how long a rank whose engine ended waits for the head's
    decision.
    """

    beat: float = 1.0
    silence: float = 10.0
    loading: float = 3600.0
    progress: float = 60.0
    farewell: float = 3.0
    rounds: int = 3


@dataclass(frozen=True)
class Send:
    """Send a message to a rank."""

    rank: int
    kind: str
    fields: dict[str, object]


@dataclass(frozen=True)
class Drop:
    """End the connection to a rank."""

    rank: int


@dataclass(frozen=True)
class Say:
    """Write a line for the operator."""

    text: str


@dataclass(frozen=True)
class Start:
    """Start the engine."""


@dataclass(frozen=True)
class Failed:
    """Count a failed round."""

    why: str


@dataclass(frozen=True)
class Answered:
    """Reset the count of failed rounds."""


@dataclass(frozen=True)
class End:
    """End the engine, and then this process with an exit status."""

    status: int


Action = Union[Send, Drop, Say, Start, Failed, Answered, End]
Actions = list[Action]


class _Supervisor:
    """What the head and the ranks have in common."""

    def __init__(self, group: Group, facts: Facts, limits: Limits) -> None:
        self._group = group
        self._facts = facts
        self._limits = limits
        # Last sign of life of each rank that is connected.
        self._seen: dict[int, float] = {}
        self._beaten = float("-inf")
        self._said = ""
        self._started: float | None = None
        self._serves = False
        self._ended = False

    @property
    def phase(self) -> str:
        """Return the state of the group, as far as this host knows it."""
        if self._started is None:
            return group_state.WAITING
        return group_state.SERVING if self._serves else group_state.STARTING

    def stopped(self) -> Actions:
        """End the round because systemd stops this unit."""
        if self._ended:
            return []
        why = "its unit is stopped"
        tell = [Send(rank, "leaving", {"why": why}) for rank in self._seen]
        return [*tell, *self._end(0, "stopping: asked by systemd")]

    def _host(self, rank: int) -> str:
        return self._group.members[rank].host

    def _say(self, text: str) -> Actions:
        """Log a text once, until another text is logged."""
        if text == self._said:
            return []
        self._said = text
        return [Say(text)]

    def _end(self, status: int, why: str) -> Actions:
        self._ended = True
        return [*self._say(why), End(status)]

    def _beats(self, now: float) -> Actions:
        if now - self._beaten < self._limits.beat:
            return []
        self._beaten = now
        return [Send(rank, "beat", {}) for rank in self._seen]

    def _silent(self, now: float) -> int | None:
        """Return a rank that gave no sign of life for too long."""
        late = (r for r, seen in self._seen.items() if now - seen > self._limits.silence)
        return next(late, None)


class Head(_Supervisor):
    """The supervisor of the host that serves: it decides for all hosts."""

    def __init__(self, group: Group, facts: Facts, limits: Limits, failed: int = 0) -> None:
        """Start with `failed` rounds that were counted before this one."""
        super().__init__(group, facts, limits)
        self._failed = failed
        self._alive: float | None = None
        self._trouble = ""

    def begin(self) -> Actions:
        """Log which hosts are waited for."""
        return self._meet(0.0) if not self._group.others else self._waiting()

    def heard(self, rank: int, message: Message, now: float) -> Actions:
        """Handle a message; the first of a connection is a hello, whose rank was checked."""
        if self._ended:
            return []
        kind = message["kind"]
        if kind == "hello":
            return self._hello(rank, message["facts"], now)
        if rank not in self._seen:
            return [Drop(rank)]
        self._seen[rank] = now
        if kind == "failed":
            return self._lost_engine(
                f"the engine on {self._host(rank)} {clean_line(message['why'])}"
            )
        if kind == "leaving":
            return self.lost(rank, clean_line(message["why"]))
        return []

    def lost(self, rank: int, why: str) -> Actions:
        """Decide what follows when a connection has ended."""
        if self._ended or self._seen.pop(rank, None) is None:
            return []
        text = f"{self._host(rank)} left: {why}"
        if self._started is None:
            return [Drop(rank), *self._say(text), *self._waiting()]
        return self._close(text)

    def child_ended(self, how: str, now: float) -> Actions:
        """Decide what follows when this host's engine has ended."""
        del now  # From here on a rank waits for what the head says.
        return [] if self._ended else self._lost_engine(f"the engine on {self._host(HEAD)} {how}")

    def engine_lives(self, now: float) -> Actions:
        """Note that the engine has answered a chat, or made a step."""
        if self._ended or self._started is None:
            return []
        first, self._alive, self._trouble = self._alive is None, now, ""
        if not first:
            return []
        self._serves = True
        took = f"the engine answers, {now - self._started:.0f} s after its start"
        tell = [Send(rank, "serving", {}) for rank in self._seen]
        return [Answered(), *tell, *self._say(took)]

    def engine_silent(self, reason: str) -> None:
        """Record why the engine did neither; the line about too long a silence says it."""
        self._trouble = reason

    def tick(self, now: float) -> Actions:
        """Send signs of life, and check which ranks are late."""
        if self._ended:
            return []
        silent = self._silent(now)
        if silent is not None:
            return self.lost(silent, f"silent for {self._limits.silence:.0f} s")
        late = self._started is not None and now - self._started > self._limits.loading
        if late and self._alive is None:
            limit = f"{self._limits.loading:.0f} s"
            return self._lost_engine(f"the engine did not answer within {limit}{self._because}")
        if self._alive is not None and now - self._alive > self._limits.progress:
            limit = f"{self._limits.progress:.0f} s"
            return self._close(
                f"the engine made no step and gave no answer for {limit}{self._because}"
            )
        return self._beats(now)

    @property
    def _because(self) -> str:
        return f": {clean_line(self._trouble)}" if self._trouble else ""

    def _hello(self, rank: int, facts: Facts, now: float) -> Actions:
        if self._started is not None:
            # Its supervisor was started again, so its part of the engine is gone.
            return [Drop(rank), *self._close(f"{self._host(rank)} started again")]
        keys = list_differing(self._facts, facts)
        if keys:
            self._seen.pop(rank, None)
            told = f"{self._host(rank)} is refused: {_describe_difference(keys, self._host(HEAD))}"
            return [Send(rank, "differs", {"keys": keys}), Drop(rank), *self._say(told)]
        self._seen[rank] = now
        return self._meet(now) if self._is_complete else self._waiting()

    @property
    def _missing(self) -> list[int]:
        return [rank for rank in self._group.others if rank not in self._seen]

    @property
    def _is_complete(self) -> bool:
        return not self._missing

    def _waiting(self) -> Actions:
        hosts = [self._host(rank) for rank in self._missing]
        tell = [Send(rank, "wait", {"hosts": hosts}) for rank in self._seen]
        return [*tell, *self._say(f"waiting for {', '.join(hosts)}")]

    def _meet(self, now: float) -> Actions:
        self._started = now
        go = [Send(rank, "go", {}) for rank in self._seen]
        count = len(self._group.members)
        return [
            *go,
            *self._say(f"all {count} hosts are here and equal: starting the engine"),
            Start(),
        ]

    def _lost_engine(self, why: str) -> Actions:
        """End a round whose engine ended by itself while every host was connected."""
        if self._alive is not None or self._started is None:
            return self._close(why)
        self._failed += 1
        count = f"round {self._failed} of {self._limits.rounds} that failed"
        if self._failed < self._limits.rounds:
            return [Failed(why), *self._close(f"{why} ({count})")]
        last = "given up until somebody starts it again, see the lines of the engine above"
        return [Failed(why), *self._close(f"{why} ({count}): {last}", final=True)]

    def _close(self, why: str, *, final: bool = False) -> Actions:
        tell = [Send(rank, "end", {"why": why, "final": final}) for rank in self._seen]
        return [*tell, *self._end(EXIT_PERMANENT if final else EXIT_TRANSIENT, why)]


class Rank(_Supervisor):
    """The supervisor of another host: it follows the head, and ends when the head is gone."""

    def __init__(self, group: Group, facts: Facts, limits: Limits) -> None:
        super().__init__(group, facts, limits)
        self._farewell: float | None = None

    def begin(self) -> Actions:
        """Log that the head is waited for."""
        return self._say(f"waiting for {self._host(HEAD)}, the head")

    def connected(self, now: float) -> Actions:
        """Send the hello of this host: the connection to the head is open."""
        self._seen[HEAD] = now
        return [Send(HEAD, "hello", {"rank": self._group.rank, "facts": self._facts})]

    def heard(self, rank: int, message: Message, now: float) -> Actions:
        """Handle a message of the head."""
        if self._ended or rank not in self._seen:
            return []
        self._seen[rank] = now
        kind, head = message["kind"], self._host(HEAD)
        if kind == "end":
            status = EXIT_PERMANENT if message["final"] else EXIT_TRANSIENT
            return self._end(status, f"{head} ended this round: {clean_line(message['why'])}")
        if kind == "leaving":
            return self.lost(rank, clean_line(message["why"]))
        if kind == "serving":
            self._serves = True
            return self._say(f"the model is served by {head}")
        return [] if self._started is not None else self._meeting(message, now)

    def _meeting(self, message: Message, now: float) -> Actions:
        """Handle a message of the head that comes before the start."""
        kind, head = message["kind"], self._host(HEAD)
        if kind == "wait":
            others = ", ".join(clean_line(host) for host in message["hosts"])
            return self._say(f"{head} is here; it waits for {others}")
        if kind == "differs":
            self._seen.pop(HEAD)
            keys = [clean_line(key) for key in message["keys"]]
            return [
                *self._say(f"{head} refuses this host: {_describe_difference(keys, head)}"),
                Drop(HEAD),
            ]
        if kind == "go":
            self._started = now
            return [*self._say("all hosts are here and equal: starting the engine"), Start()]
        return []

    def lost(self, rank: int, why: str) -> Actions:
        """Decide what follows when the connection to the head has ended."""
        if self._ended or self._seen.pop(rank, None) is None:
            return []
        text = f"{self._host(HEAD)}, the head, left: {why}"
        if self._started is None:
            return [Drop(rank), *self._say(text)]
        return self._end(EXIT_TRANSIENT, text)

    def child_ended(self, how: str, now: float) -> Actions:
        """Report to the head that the engine ended: the head decides about the round."""
        if self._ended or self._farewell is not None:
            return []
        self._farewell = now
        return [*self._say(f"the engine on this host {how}"), Send(HEAD, "failed", {"why": how})]

    def tick(self, now: float) -> Actions:
        """Send signs of life, and check whether the head is late."""
        if self._ended:
            return []
        if self._farewell is not None and now - self._farewell > self._limits.farewell:
            return self._end(EXIT_TRANSIENT, f"{self._host(HEAD)} said nothing more")
        silent = self._silent(now)
        if silent is not None:
            return self.lost(silent, f"silent for {self._limits.silence:.0f} s")
        return self._beats(now)


def _describe_difference(keys: list[str], head: str) -> str:
    fix = "run `kimi-prov apply` for the whole group"
    return f"{', '.join(keys)} not as on {head}; {NOT_EQUAL}: {fix}"
