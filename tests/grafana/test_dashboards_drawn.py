"""The dashboards, drawn by Grafana's own packages in a real browser from a real Prometheus.

`@grafana/ui` and `@grafana/data` are what Grafana reads fields and units with, and draws lines,
scales and legends. Its server, its import, its choice of variables and its data source are not
here: draw.jsx fills in variables and asks Prometheus in their place.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browsers
import node_packages
import pytest
from monitored_hosts import STEP_S, openmetrics, pods
from prometheus import prometheus, stored
from waiting import HANGS_S

from kimi_prov.monitoring import DASHBOARDS
from kimi_prov.monitoring.panels import PANELS
from kimi_prov.render.kubernetes import dashboard as of_pods

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
PINS = Path(__file__).resolve().parent
HOURS = 3
PAGE = "<!doctype html><meta charset=utf-8><body><div id=root></div><script src=draw.js></script>"
EVERY = "kimi-hosts", ".*", "all"
ALPHA, BETA, GAMMA = (("kimi-host", name, name) for name in ("alpha", "beta", "gamma"))
# Of a machine without GPUs whose engine has not started yet.
NOT_OF_GAMMA = {
    *("Requests", "Tokens a second", "Time to first token", "Time between tokens"),
    *("Answers of the proxy", "Cache in use", "Prompt tokens found in the cache", "Preemptions"),
    *("Power", "Temperature", "GPU busy", "Memory bandwidth busy", "GPU memory in use"),
    "Throttled",
}
# SGLang, which beta runs, tells no such counts.
VLLM_ALONE = {"Prompt tokens found in host memory"}
LACKING = {"gamma": NOT_OF_GAMMA | VLLM_ALONE, "beta": VLLM_ALONE}
# A line has a colour, axes and grid are grey: how many pixels of each picture are of a line.
_COLOURED = """
Object.fromEntries([...document.querySelectorAll('[data-panel]')].map((box) => {
  const canvas = box.querySelector('canvas');
  if (!canvas) return [box.dataset.panel, 0];
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let at = 0; at < data.length; at += 4)
    found += data[at + 3] > 128 &&
      Math.max(...data.slice(at, at + 3)) - Math.min(...data.slice(at, at + 3)) > 60;
  return [box.dataset.panel, found];
}))
"""
# What reaches out of its panel, or is cut within it.
_CUT = """
[...document.querySelectorAll('[data-panel]')].flatMap((box) => {
  const frame = box.getBoundingClientRect();
  return [...box.querySelectorAll('h2, h6, button, canvas')].filter((part) => {
    const own = part.getBoundingClientRect();
    return own.left < frame.left - 1 || own.right > frame.right + 1 ||
      own.bottom > frame.bottom + 1 || part.scrollWidth > part.clientWidth + 1;
  }).map((part) => box.dataset.panel + ': ' + (part.textContent || part.tagName));
})
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grafana's packages and draw.jsx in one file."""
    folder = tmp_path_factory.mktemp("grafana")
    # React's newer versions are asked for by parts of it that draw no panel.
    node_packages.installed(PINS, folder, "--ignore-scripts", "--legacy-peer-deps")
    made = folder / "draw.js"
    words = ["node_modules/.bin/esbuild", "draw.jsx", "--bundle", f"--outfile={made.name}"]
    words += ["--loader:.css=text", "--define:global=window", "--log-level=error"]
    (folder / "draw.jsx").write_text((PINS / "draw.jsx").read_text())
    produced = '--define:process.env.NODE_ENV="production"'
    subprocess.run([*words, produced], cwd=folder, check=True)
    return made


@pytest.fixture(scope="module")
def until() -> int:
    return int(time.time())


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, until: int) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("prometheus")
    stored(folder, openmetrics(until, HOURS))
    with prometheus(folder, {}) as found:
        yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, until: int) -> Iterator[str]:
    """A Prometheus that has read two pods."""
    folder = tmp_path_factory.mktemp("cluster")
    stored(folder, pods(until, HOURS))
    with prometheus(folder, {}) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.chromium() as started:
        yield started


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return browsers.pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def page(browser: Browser, program: Path) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1600, "height": 1000})
    opened.set_default_timeout(HANGS_S * 1000)
    troubles: list[str] = []
    opened.on("pageerror", lambda error: troubles.append(str(error)))
    # Grafana's server has the icons; the rest is Prometheus's.
    opened.route("**/*.svg", lambda asked: asked.fulfill(body="<svg/>", content_type="image/svg"))
    opened.route("**/page", lambda asked: asked.fulfill(body=PAGE, content_type="text/html"))
    opened.route("**/draw.js", lambda asked: asked.fulfill(path=program))
    yield opened
    opened.close()
    assert troubles == []


def draw(page: Page, address: str, until: int, dashboard: str, hosts: str) -> dict[str, Any]:
    """The lines of each panel of a dashboard of hosts, as Grafana names and formats them."""
    document = json.loads((DASHBOARDS / f"{dashboard}.json").read_text())
    return drawn(page, address, until, document, {"host": hosts})


def drawn(
    page: Page, address: str, until: int, dashboard: dict[str, Any], chosen: dict[str, str]
) -> dict[str, Any]:
    """The same of any dashboard, with what is chosen at its top."""
    # A page asks only the Prometheus that it came from.
    page.goto(f"{address}/page")
    # As its Prometheus data source has it, with the scrape interval of these series.
    window = {"__rate_interval": f"{4 * STEP_S}s"}
    found: dict[str, Any] = page.evaluate(
        "([dashboard, wishes]) => draw(dashboard, wishes)",
        [
            dashboard,
            {
                "address": address,
                "variables": {**window, **chosen},
                "range": {"from": until - HOURS * 3600, "to": until, "step": STEP_S // 2},
            },
        ],
    )
    filled = sum(bool(lines) for lines in found.values())
    page.wait_for_function(f"document.querySelectorAll('canvas').length === {filled}")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return found


@pytest.mark.parametrize(("dashboard", "hosts", "name"), [EVERY, ALPHA, BETA, GAMMA], ids=str)
def test_every_panel_is_drawn_and_nothing_of_it_is_cut(
    page: Page, address: str, until: int, pictures: Path, dashboard: str, hosts: str, name: str
) -> None:
    found = draw(page, address, until, dashboard, hosts)
    page.screenshot(path=pictures / f"grafana-{name}.png", full_page=True)
    lacking = LACKING.get(name, set())
    titles = {panel.title for panel in PANELS}
    assert {title for title, lines in found.items() if not lines} == lacking
    coloured = page.evaluate(_COLOURED)
    assert set(coloured) == titles
    # Some pixels at each of some hundred places.
    assert {title for title, pixels in coloured.items() if pixels < 200} == lacking
    assert page.evaluate(_CUT) == []


def test_lines_are_named_after_hosts_and_what_is_compared_is_dashed(
    page: Page, address: str, until: int
) -> None:
    found = draw(page, address, until, "kimi-host", "alpha")
    for title, lines in found.items():
        names = [line["name"] for line in lines]
        assert len(set(names)) == len(names), title
        assert all(name.startswith("alpha") for name in names), title
    dashed = {line["name"] for lines in found.values() for line in lines if line["dashed"]}
    assert dashed == {
        *(f"alpha {bound}" for bound in ("low", "expected", "high", "last probe or bench")),
        "alpha 0 starts",
    }


def test_figures_have_the_units_that_their_panels_name(
    page: Page, address: str, until: int
) -> None:
    units = {panel.title: panel.unit for panel in PANELS}
    forms = {
        "seconds": r"[\d.]+ (ms|s|min)",
        "ratio": r"[\d.]+%",
        "watts": r"[\d.]+ k?W",
        "celsius": r"[\d.]+ °C",
        "bytes": r"[\d.]+ [GT]iB",
        "bytes/s": r"[\d.]+ [kM]?B/s",
        "days": r"[\d.]+ days",
    }
    for title, lines in draw(page, address, until, "kimi-hosts", ".*").items():
        form = forms.get(units[title], r"[\d.]+")
        told = [line["last"] for line in lines]
        assert [text for text in told if not re.fullmatch(form, text)] == [], title


@pytest.mark.parametrize("namespace", ["models", None], ids=["known", "chosen"])
def test_the_dashboard_of_pods_is_drawn(
    page: Page, cluster: str, until: int, pictures: Path, namespace: str | None
) -> None:
    document = json.loads(of_pods.make_document("kimi", namespace))
    found = drawn(page, cluster, until, document, {} if namespace else {"namespace": "models"})
    page.screenshot(path=pictures / f"grafana-pods-{namespace or 'chosen'}.png", full_page=True)
    assert {title for title, lines in found.items() if not lines} == set()
    coloured = page.evaluate(_COLOURED)
    assert set(coloured) == {panel["title"] for panel in document["panels"]}
    assert {title for title, pixels in coloured.items() if pixels < 200} == set()
    assert page.evaluate(_CUT) == []
    named = {title: {line["name"] for line in lines} for title, lines in found.items()}
    assert named["Requests by their end"] == {"stop", "length", "abort"}
    assert named["Time to the first token"] == {"half", "19 of 20"}
    for title, form in {"Cache in use": r"[\d.]+%", "Time in the queue": r"[\d.]+ m?s"}.items():
        assert [row["last"] for row in found[title] if not re.fullmatch(form, row["last"])] == []
