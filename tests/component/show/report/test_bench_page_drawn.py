"""The page of a bench, drawn by a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import bench_inputs
import pytest

from kimi_prov.acceptance import bench
from kimi_prov.show.report import bench_html

if TYPE_CHECKING:
    from pathlib import Path

SPEEDS = ((1, 100.0, 95.0), (4, 88.0, 320.0), (16, 60.0, 840.0))


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), "")
MEASURE = """<script>
document.title = JSON.stringify([document.documentElement.scrollWidth,
  document.documentElement.clientWidth, document.querySelectorAll("svg.plot").length]);
</script></body>"""


def sweep(factor: float = 1.0, **asked: Any) -> dict[str, Any]:
    levels = [
        bench_inputs.loaded(bench_inputs.level(n, d * factor, a * factor, 900.0))
        for n, d, a in SPEEDS
    ]
    return bench_inputs.result(*levels, asked=asked or {"rounds": 3})


def document(**hosts: dict[str, Any]) -> dict[str, Any]:
    return {"schema": "kimi-prov/bench/v1", "ok": True, "hosts": hosts}


def twice() -> dict[str, Any]:
    now = sweep()
    return {**now, "last": bench.compare_results(sweep(1.2), now)}


@pytest.mark.skipif(not BROWSER, reason="no chromium here: apt-get install chromium")
@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_fits_its_window(tmp_path: Path, width: int) -> None:
    page = tmp_path / "page.html"
    text = bench_html.render_page(document(node1=twice(), node2=sweep()))
    page.write_text(text.replace("</body>", MEASURE))
    done = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title
    needed, there, plots = json.loads(title[1])
    assert needed <= there
    assert plots == 4
