"""tests/bench/whole_steps.py on a host that `apply` has served: its engine's Python and kernel.

`KIMI_PROV_GPU_LLAMA` names llama.cpp's source with `build/bin/llama-batched-bench` in it, compiled
for this processor; without it llama.cpp is not among the ways.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths

if TYPE_CHECKING:
    from machines import Host

ROOT = Path(__file__).resolve().parents[2]
PLACE = "/opt/steps"
# Kimi's layers, one dense and two of 64 experts: as large as any cache of a processor.
SIZES = "--full --layers 3 --experts 64"


def gather_files(into: Path) -> dict[str, str]:
    """Bring together what the benchmark needs, for `lab_files`."""
    away = shutil.ignore_patterns("__pycache__", "*.so", "*.o")
    shutil.copytree(ROOT / "kimi_prov", into / "kimi_prov", ignore=away)
    shutil.copytree(ROOT / "tests" / "bench", into / "tests" / "bench", ignore=away)
    source = os.environ.get("KIMI_PROV_GPU_LLAMA")
    if source:
        (into / "llama" / "build" / "bin").mkdir(parents=True)
        program = Path("build/bin/llama-batched-bench")
        shutil.copy2(Path(source) / program, into / "llama" / program)
        shutil.copytree(Path(source) / "gguf-py", into / "llama" / "gguf-py", ignore=away)
    return {"src": str(into), "dest": PLACE}


def measure(host: Host, ways: str, limit_s: float) -> dict[str, Any]:
    """Measure whole steps there: the rows' medians, and each row that failed."""
    llama = f"--llama {PLACE}/llama" if os.environ.get("KIMI_PROV_GPU_LLAMA") else ""
    python = f"{paths.ENGINE}/bin/python"
    host.ssh(
        f"cd {PLACE} && rm -f rows && PYTHONPATH=.:kimi_prov/engine_plugins/kt_experts "
        f"timeout {limit_s:.0f} {python} tests/bench/whole_steps.py {SIZES} --turns 1 "
        f"--ways {ways} {llama} --folder /dev/shm --output rows > said 2>&1",
        check=False,
        timeout=limit_s + 60,
    )
    text = host.ssh(f"cat {PLACE}/rows", check=False)
    rows = [json.loads(row) for row in text.splitlines()]
    said = host.ssh(f"tail -c 1500 {PLACE}/said", check=False)
    return {"rows": rows, **({} if rows else {"said": said})}
