"""The console in a real browser, drawn from a real Prometheus that has three made-up hosts."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import browsers
import pytest
from monitored_hosts import openmetrics
from prometheus import prometheus, shown, stored
from waiting import HANGS_S

from kimi_prov.monitoring import CONSOLES, RULES
from kimi_prov.monitoring.panels import PANELS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 400, "height": 860}
CONSOLE = "/consoles/kimi.html"
# A label of a metric is data: a host that is called so is shown as text.
HOSTILE = "<img src=x onerror=alert(1)>"
_SHOWN = """
Object.fromEntries([...document.querySelectorAll('[data-panel]')].map(
  (box) => [box.dataset.panel, Number(box.dataset.series)]))
"""
# Texts of a picture that lie over each other, or over its edge.
_OVERLAPS = """
[...document.querySelectorAll('section svg[role=img]')].flatMap((picture) => {
  const frame = picture.getBoundingClientRect();
  const texts = [...picture.querySelectorAll('text')];
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([text, a], at) => {
    if (a.left < frame.left - 1 || a.right > frame.right + 1) return [text + ' is cut'];
    return boxes.slice(at + 1)
      .filter(([, b]) => a.left < b.right && b.left < a.right)
      .filter(([, b]) => a.top < b.bottom - 2 && b.top < a.bottom - 2)
      .map(([other]) => text + ' over ' + other);
  });
})
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    until = int(time.time())
    text = openmetrics(until)
    odd = f'kimi_instance_active{{host="{HOSTILE}",job="kimi-node",engine="0"}} 1 {until}\n'
    odd += f'up{{host="{HOSTILE}",job="kimi-node"}} 1 {until}\n'
    lines = [*text.splitlines()[:-1], *odd.splitlines()]
    lines.sort(key=lambda line: line.partition("{")[0])
    stored(folder, "\n".join([*lines, "# EOF", ""]))
    config = {"global": {"evaluation_interval": "1s"}, "rule_files": [f"{RULES}/*.yml"]}
    with prometheus(folder, config) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return browsers.pictures(tmp_path_factory.mktemp("pictures"))


@contextmanager
def opened(
    browser: Browser, address: str, size: dict[str, int]
) -> Iterator[tuple[Page, list[str]]]:
    page = browser.new_page(viewport=size)
    page.set_default_timeout(HANGS_S * 1000)
    # Chromium breaks off what it loads when this machine gets an interface, as it does while labs
    # come up beside this: so its requests are answered from outside of it.
    page.route(f"{address}/**", lambda route: route.fulfill(response=route.fetch()))
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda line: troubles.append(line.text) if line.type == "error" else None)
    page.on("dialog", lambda dialog: (troubles.append("a dialog"), dialog.dismiss()))
    page.on(
        "request",
        lambda asked: (
            None if asked.url.startswith((address, "data:")) else troubles.append(asked.url)
        ),
    )
    try:
        yield page, troubles
    finally:
        # What it asks for while it is closed is nobody's.
        page.unroute_all(behavior="ignoreErrors")
        page.close()


def drawn(page: Page) -> dict[str, int]:
    page.wait_for_function("document.body.dataset.drawn")
    found: dict[str, int] = page.evaluate(_SHOWN)
    return found


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=lambda size: str(size["width"]))
@pytest.mark.parametrize("host", ["", "alpha", "beta"])
def test_every_panel_shows_data_and_fits(
    browser: Browser, address: str, pictures: Path, size: dict[str, int], host: str
) -> None:
    with opened(browser, address, size) as (page, troubles):
        page.goto(f"{address}{CONSOLE}{f'#host={host}' if host else ''}")
        found = drawn(page)
        page.screenshot(path=pictures / f"{host or 'all'}-{size['width']}.png", full_page=True)
        assert set(found) == {panel.key for panel in PANELS}
        # SGLang, which beta runs, tells no cache in host memory.
        lacking = ["host_cache"] if host == "beta" else []
        assert [key for key, series in found.items() if not series] == lacking
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(_OVERLAPS) == []
        assert page.locator("section path.curve").count() >= sum(found.values())
        assert troubles == []


def test_hosts_alerts_and_what_a_host_is_called(browser: Browser, address: str) -> None:
    with opened(browser, address, WIDE) as (page, troubles):
        page.goto(address + CONSOLE)
        drawn(page)
        rows = [row.split("\t") for row in page.locator("tbody tr").all_inner_texts()]
        states = {row[0]: row[1] for row in rows}
        assert states == {HOSTILE: "serves", "alpha": "serves", "beta": "serves", "gamma": "starts"}
        # A rule needs a moment after the start.
        page.wait_for_function(
            "fetch('../api/v1/alerts').then((a) => a.json()).then((a) => a.data.alerts.length > 0)"
        )
        page.reload()
        drawn(page)
        told = page.locator(".told", has_text="Xid 31")
        assert "beta" in told.inner_text()
        page.get_by_role("link", name="beta", exact=True).click()
        page.wait_for_function("document.title === 'Kimi: beta'")
        told.get_by_role("link", name="what to do").click()
        page.wait_for_url("**/kimi-alerts.html#KimiGpuXid")
        assert "What to do" in page.locator("article:target").inner_text()
        assert troubles == []


def test_lines_of_a_picture_can_be_told_apart(browser: Browser, address: str) -> None:
    with opened(browser, address, WIDE) as (page, _):
        for part in ("", "#host=alpha"):
            page.goto("about:blank")
            page.goto(address + CONSOLE + part)
            drawn(page)
            looks = page.evaluate(
                "[...document.querySelectorAll('section')].map((box) => [box.dataset.panel,"
                "[...box.querySelectorAll('svg[role=img] path.curve')].map((line) =>"
                "line.getAttribute('style') + line.getAttribute('stroke-dasharray'))])"
            )
            assert [key for key, lines in looks if len(set(lines)) < len(lines)] == []


@pytest.mark.parametrize("name", ["kimi.html", "kimi-alerts.html"])
def test_prometheus_serves_it_as_it_is(address: str, name: str) -> None:
    """As a template it has nothing that Prometheus would fill in or refuse."""
    text = shown(f"{address}/consoles/{name}")
    assert text == (CONSOLES / name).read_text()
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
