"""`make locks-check` as a program: what it writes, and that it can say no."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kimi_prov.catalog.loader import LOCKS, load_catalogue

ROOT = Path(__file__).resolve().parents[3]
CHECK = ROOT / "tests" / "locks" / "check.py"


DIGEST = "0" * 64


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("locks_check", CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check = _module()
MADE = {recipe.name: recipe for recipe in check.recipes()}


def text(name: str) -> str:
    return (LOCKS / f"{name}.txt").read_text()


def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, CHECK, *argv],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_locks_that_are_here_are_what_refresh_makes() -> None:
    done = run("--offline")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{name}: as refresh makes it" for name in MADE]
    assert {f"{name}.txt" for name in MADE} == set(load_catalogue().locks)


def stand_in(folder: Path, program: str) -> str:
    """A PATH whose uv is a program of this test."""
    uv = folder / "uv"
    uv.write_text(f"#!/bin/bash\n{program}\n")
    uv.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_an_index_that_does_not_answer_is_a_failure(tmp_path: Path) -> None:
    path = stand_in(tmp_path, "echo 'error: no route to the index' >&2; exit 2")
    done = run("uv", PATH=path)
    assert done.returncode == 1
    assert done.stdout == "uv: FAILED: refresh uv: error: no route to the index\n"


def test_what_is_pinned_is_kept_and_what_is_newer_is_told(tmp_path: Path) -> None:
    """A resolver that begins from the file it is given, as uv does, and else knows a newer one."""
    wheel = next(d for d in text("uv").split() if d.startswith("--hash=sha256:"))[14:]
    program = f"""
made=${{@: -1}}
case " $* " in
  *pylock.toml\\ --*)
    printf '[[packages]]\\nname = "uv"\\nwheels = [{{ hashes = {{ sha256 = "{wheel}" }} }}]\\n' \\
      > "$made" ;;
  *)
    if [[ -f $made ]]; then sed -i '/^#/d' "$made"
    else printf 'uv==9.9.9 --hash=sha256:{DIGEST}\\n' > "$made"; fi ;;
esac"""
    done = run("uv", PATH=stand_in(tmp_path, program))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == (
        "uv: resolves to the same, every wheel is there; newer: uv 0.13.8 -> 9.9.9\n"
    )


def test_an_unknown_name_is_refused() -> None:
    done = run("--offline", "vllm-cuda-9.9.9-cp311")
    assert done.returncode == 2
    assert "refresh makes no such lock" in done.stderr
