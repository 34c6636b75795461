"""The web UI in a browser before a real engine: a person asks, stops, reloads and asks again.

`test_web_page.py` asks a stand-in, which takes a request of any length. The lab's model has a
small context, so a web UI that adds to each question shows itself here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import browsers
import pytest
from machines import make_lab
from playwright.sync_api import expect
from waiting import until
from web_visitors import HANGS_MS, NARROW, WIDE, Visitor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host
    from playwright.sync_api import Browser, Locator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.87"
ADMIN = ("admin@example.org", "correct horse battery staple")
SECOND = ("second@example.org", "another horse of the stable")
QUESTION = "Say hello in one sentence."
# What the web UI may add to a question, the headers of its request among it.
MAX_ADDED_BYTES = 2048
ASKED = re.compile(r" web POST /v1/chat/completions (\d+) in=(\d+) ")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    folder = tmp_path_factory.mktemp("answers")
    secret = folder / "admin"
    secret.write_text(":".join(ADMIN) + "\n")
    wishes = {"kimi_web_ui": True, "kimi_web_admin_file": str(secret)}
    lab = make_lab(folder / "inv", NETWORK, nodes=["page"], **wishes)
    with lab.running():
        done = lab.hosts["page"].apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield lab.hosts["page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.chromium("--disable-gpu", "--disable-dev-shm-usage") as started:
        yield started


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return browsers.pictures(tmp_path_factory.mktemp("screenshots"))


@pytest.fixture(scope="module")
def admin(browser: Browser, host: Host) -> Visitor:
    return Visitor(browser, host).log_in(ADMIN)


def find_answers(visitor: Visitor) -> Locator:
    return visitor.page.locator("#response-content-container")


def stop(visitor: Visitor) -> None:
    """Wait for the first words of an answer, and stop it: the lab's model never ends by itself."""
    expect(find_answers(visitor).last).to_have_text(re.compile(r"\S"), timeout=HANGS_MS)
    visitor.page.get_by_role("button", name="Stop").click()
    expect(visitor.page.get_by_role("button", name="Stop")).to_have_count(0, timeout=HANGS_MS)


def list_requests(host: Host) -> list[tuple[int, int]]:
    """Return status and bytes of each request that the web UI sent to the model."""
    rows = ASKED.findall(host.ssh("journalctl -u kimi-proxy -o cat --no-pager"))
    return [(int(status), int(size)) for status, size in rows]


def test_the_first_page_is_a_field_to_ask_in(admin: Visitor, pictures: Path) -> None:
    expect(admin.page.get_by_text("What's New")).to_have_count(0)
    admin.sees("Explain an error")
    admin.page.screenshot(path=pictures / "first-wide.png")
    admin.page.set_viewport_size(NARROW)
    admin.sees("Explain an error")
    admin.page.screenshot(path=pictures / "first-narrow.png")
    admin.page.set_viewport_size(WIDE)


def test_a_question_reaches_the_engine_alone_and_is_answered(
    host: Host, admin: Visitor, pictures: Path
) -> None:
    admin.ask(QUESTION)
    stop(admin)
    admin.page.screenshot(path=pictures / "answered-wide.png")
    assert until(lambda: list_requests(host))
    [(status, size)] = list_requests(host)
    assert status == 200
    assert size - len(QUESTION) <= MAX_ADDED_BYTES


def test_a_stopped_answer_is_there_after_a_reload_and_the_chat_goes_on(
    admin: Visitor, pictures: Path
) -> None:
    admin.page.wait_for_url(re.compile("/c/"))
    said = find_answers(admin).last.inner_text()[:20]
    admin.page.reload()
    admin.ready()
    expect(find_answers(admin).last).to_contain_text(said, timeout=HANGS_MS)
    admin.ask("And once more.")
    expect(find_answers(admin)).to_have_count(2, timeout=HANGS_MS)
    stop(admin)
    admin.page.set_viewport_size(NARROW)
    admin.page.screenshot(path=pictures / "answered-narrow.png")
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert admin.page.evaluate(wide) == 0
    admin.page.set_viewport_size(WIDE)


def test_a_second_account_asks_and_is_answered(
    host: Host, browser: Browser, admin: Visitor
) -> None:
    made = admin.context.request.post(
        "/api/v1/auths/add",
        headers=admin.token(),
        data={"name": "Second", "email": SECOND[0], "password": SECOND[1], "role": "user"},
    )
    assert made.ok, made.text()
    second = Visitor(browser, host).log_in(SECOND)
    second.sees("Explain an error")
    second.ask(QUESTION)
    stop(second)
    second.context.close()
    assert {status for status, _ in list_requests(host)} == {200}
