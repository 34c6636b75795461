"""A unit test starts no process, opens no connection and never sleeps.

What needs one of these is a test of `tests/component`. It is refused here, and the test fails even
where the code under test goes on after the refusal.
"""

from __future__ import annotations

import ipaddress
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIT = Path(__file__).resolve().parent
# Events that Python tells an audit hook, and what each of them is.
REFUSED = {
    **dict.fromkeys(
        ("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.system", "os.exec"),
        "started a process",
    ),
    **dict.fromkeys(
        ("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"), "used a socket"
    ),
    **dict.fromkeys(
        ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"), "asked a resolver"
    ),
}


def is_address(host: object) -> bool:
    """Whether a host is an address already: nobody is asked for it, and Ansible's import does."""
    try:
        ipaddress.ip_address(str(host))
    except ValueError:
        return False
    return True


class Guard:
    """Refuses what a unit test may not do, while one runs."""

    def __init__(self) -> None:
        self.running = False
        self.refused: list[str] = []

    def refuse(self, what: str) -> NoReturn:
        self.refused.append(what)
        pytest.fail(f"a unit test {what}: it belongs to tests/component")

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "socket.getaddrinfo" and is_address(arguments[0]):
            return
        if self.running and event in REFUSED:
            self.refuse(f"{REFUSED[event]} ({event}: {str(arguments)[:200]})")

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.refuse(f"slept {seconds} s")


GUARD = Guard()
sys.addaudithook(GUARD.audit)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: object) -> Iterator[None]:
    """Refuse from the setup of fixtures to their end; pytest asks this of tests elsewhere, too."""
    if not item.path.is_relative_to(UNIT):
        return (yield)
    sleep, time.sleep = time.sleep, GUARD.sleep
    GUARD.running = True
    try:
        return (yield)
    finally:
        GUARD.running = False
        time.sleep = sleep


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
    """Fail a test that was refused something, whatever became of the refusal."""
    report = yield
    refused, GUARD.refused = GUARD.refused, []
    if refused and not report.failed:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: {'; '.join(refused)}"
    return report
