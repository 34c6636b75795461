"""The HTML report in a real browser: it fits a phone, can be read in light and dark, and prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from check_inputs import document
from check_runs import SHEETS, report

from kimi_prov.show.report.writers import find_writer

if TYPE_CHECKING:
    from pathlib import Path

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
pytestmark = pytest.mark.skipif(not BROWSER, reason="no chromium here: apt-get install chromium")
QUIET = [
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
# Read by the browser itself: widths, and the contrast of every piece of text with what is behind.
MEASURE = """
<script>
const channel = c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
const parse = text => text.match(/[\\d.]+/g).map(Number);
const behind = node => {
  for (; node; node = node.parentElement) {
    const found = parse(getComputedStyle(node).backgroundColor);
    if (found.length < 4 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
const poor = [], cut = [], width = document.documentElement.clientWidth;
for (const node of document.querySelectorAll("body *")) {
  const own = [...node.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  const box = node.getBoundingClientRect();
  if (!own || !box.width || node.closest("title") || node.matches(".skip")) continue;
  const style = getComputedStyle(node), svg = node.namespaceURI.endsWith("svg");
  const [a, b] = [light(parse(svg ? style.fill : style.color)), light(behind(node))];
  const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (contrast < 4.5) poor.push(node.textContent.trim().slice(0, 40) + " " + contrast.toFixed(2));
  if (!node.closest(".scroll") && (box.right > width + 1 || box.left < -1))
    cut.push(node.textContent.trim().slice(0, 40));
}
const met = [];
for (const plot of document.querySelectorAll("svg.plot")) {
  const names = [...plot.querySelectorAll("text.halo")].map(n => [n, n.getBoundingClientRect()]);
  names.forEach(([one, a], at) => names.slice(at + 1).forEach(([other, b]) => {
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    if (wide > 1 && high > 4) met.push(one.textContent + " on " + other.textContent);
  }));
}
const answer = document.querySelector("table.ranking").getBoundingClientRect();
parent.postMessage(JSON.stringify({
  met, answer: { bottom: answer.bottom, right: answer.right },
  width, wide: document.documentElement.scrollWidth, poor, cut,
  dark: matchMedia("(prefers-color-scheme: dark)").matches,
}), "*");
</script>
</body>"""
# A window has a least width of 500 points, a frame in it has none.
FRAMES = """<!DOCTYPE html><html style="color-scheme: light dark"><body><pre id="measured"></pre>
<script>addEventListener("message", e => {
  const frames = [...document.querySelectorAll("iframe")];
  const number = frames.findIndex(frame => frame.contentWindow === e.source);
  document.getElementById("measured").textContent += number + " " + e.data + "\\n";
})</script>
"""
FRAME = '<iframe style="border: 0; width: {width}px; height: 900px" src="{address}"></iframe>\n'


def browse(tmp_path: Path, *options: str) -> str:
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    done = subprocess.run(
        [BROWSER, *QUIET, *root, profile, *options],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


def page(tmp_path: Path, extra: str = "</body>", text: str | None = None) -> str:
    file = tmp_path / "report.html"
    text = find_writer("html")(document()) if text is None else text
    file.write_text(text.replace("</body>", extra), encoding="utf-8")
    return file.as_uri()


def measured(tmp_path: Path, *frames: tuple[int, str], dark: bool = False) -> list[dict[str, Any]]:
    """What pages say of themselves, each in a frame of its width."""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    file = tmp_path / "frames.html"
    rows = [FRAME.format(width=width, address=address) for width, address in frames]
    file.write_text(FRAMES + "".join(rows))
    size = f"--window-size={max(width for width, _ in frames) + 50},900"
    seen = browse(tmp_path, scheme, size, "--virtual-time-budget=5000", "--dump-dom", file.as_uri())
    raw = re.search(r'<pre id="measured">(.+?)</pre>', seen, re.DOTALL)
    assert raw, seen[-500:]
    told = dict(line.split(" ", 1) for line in unescape(raw.group(1)).splitlines())
    return [json.loads(told[str(number)]) for number in range(len(frames))]


@pytest.fixture(scope="module")
def twelve(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a check of all shipped spec sheets."""
    return report(tmp_path_factory.mktemp("twelve"), "html", *SHEETS).read_text()


WIDTHS = (390, 1200)


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_the_window_and_every_text_stands_out(tmp_path: Path, *, dark: bool) -> None:
    address = page(tmp_path, MEASURE)
    seen = measured(tmp_path, *((width, address) for width in WIDTHS), dark=dark)
    for width, found in zip(WIDTHS, seen, strict=True):
        assert found["dark"] is dark
        assert found["width"] == width
        assert found["wide"] <= width
        assert found["cut"] == []
        assert found["poor"] == []


def test_a_picture_of_it_has_the_asked_size(tmp_path: Path) -> None:
    browse(tmp_path, "--window-size=390,844", "--screenshot=shot.png", page(tmp_path))
    header = (tmp_path / "shot.png").read_bytes()[:24]
    assert struct.unpack(">II", header[16:24]) == (390, 844)


def test_many_machines_fit_too_no_label_lies_on_another_and_the_answer_is_one_screen(
    tmp_path: Path, twelve: str
) -> None:
    address, widths = page(tmp_path, MEASURE, twelve), (390, 1280)
    seen = measured(tmp_path, *((width, address) for width in widths))
    for width, found in zip(widths, seen, strict=True):
        assert found["wide"] <= width
        assert found["cut"] == []
        assert found["poor"] == []
        assert found["met"] == []
    answer = seen[-1]["answer"]
    assert answer["bottom"] <= 800
    assert answer["right"] <= 1280


def printed(tmp_path: Path, address: str) -> int:
    """Sheets of paper."""
    browse(tmp_path, "--no-pdf-header-footer", "--print-to-pdf=report.pdf", address)
    paper = (tmp_path / "report.pdf").read_bytes()
    assert paper.startswith(b"%PDF")
    return len(re.findall(rb"/Type\s*/Page\b", paper))


def test_it_prints(tmp_path: Path) -> None:
    assert 2 <= printed(tmp_path, page(tmp_path)) <= 5


def test_many_machines_print_on_few_sheets(tmp_path: Path, twelve: str) -> None:
    assert len(SHEETS) >= 12
    assert printed(tmp_path, page(tmp_path, text=twelve)) <= 8
