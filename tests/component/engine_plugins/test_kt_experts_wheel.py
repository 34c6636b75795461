"""The plugin's wheel, installed by pip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kimi_prov.packaging import engine_plugins


def test_pip_takes_the_wheel(tmp_path: Path) -> None:
    path = engine_plugins.write("kt-experts", tmp_path)
    before = path.stat().st_mtime_ns
    assert engine_plugins.write("kt-experts", tmp_path).stat().st_mtime_ns == before
    uv = Path(sys.executable).parent / "uv"
    done = subprocess.run(
        [uv, "pip", "install", "-q", "--no-deps", "--offline", "--target", tmp_path / "t", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "t" / "kimi_kt_experts" / "pool.py").exists()
