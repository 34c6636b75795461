"""Measures the served model: the engine's own bench client, and what the engine says meanwhile."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Dict, List

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.bench import client, results
from kimi_prov.on_host.bench import engine as bench_engine
from kimi_prov.on_host.bench import load as bench_load
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from kimi_prov.contract.paths import Paths
    from kimi_prov.on_host.bench.environment import Engine, Say

_BAR = re.compile(r"(\d+)/(\d+) \[")


def serve(
    plan: Dict[str, Any], paths: Paths, engine: Engine, say: Say, asked: Dict[str, Any]
) -> Dict[str, Any]:
    """Run the engine's own bench client through the opened port, with the load that was asked.

    `asked` is what the control machine sent: `load`, and `prompts` where they are of a file.
    """
    load = bench_load.of(asked.get("load") or {})
    shape = bench_load.lengths(load, plan["throughput"], int(plan["model"]["context"]))
    say("starting the engine's bench client")
    runs = client.runs(plan, load, shape, int(time.time()) % 1_000_000)
    found = engine.run(
        "client",
        {
            "runs": runs,
            "prompts": asked.get("prompts") or [],
            "secrets": {"OPENAI_API_KEY": read_text(paths.verify_key).strip()},
            "certificate": read_text(paths.tls_crt),
        },
        _ClientProgress(say, runs),
    )
    texts = found.get("results") or []
    if len(texts) != len(runs):
        raise HostError("the bench client left no result")
    read = [results.read(run, str(text)) for run, text in zip(runs, texts)]
    levels = results.levels(runs, read)
    return {
        "input_tokens": shape[0] or _mean(levels, "input_tokens"),
        "output_tokens": shape[1] or _mean(levels, "output_tokens"),
        "load": bench_load.told(load, shape),
        "warm_up": results.warm_up(runs, read),
        "levels": levels,
    }


def _mean(levels: List[Dict[str, Any]], name: str) -> int:
    """Give tokens a request, over all loads."""
    asked: int = sum(row["requests"] for row in levels)
    return round(float(sum(row[name] for row in levels)) / asked)


class _ClientProgress:
    """Turns the client's output into the progress line: load, round, and requests done."""

    def __init__(self, say: Say, runs: List[Dict[str, Any]]) -> None:
        self._say = say
        self._runs = runs
        self._rounds = max(run["round"] for run in runs)
        self._at = ""

    def __call__(self, text: str) -> None:
        number = text[len(bench_engine.RUN) :] if text.startswith(bench_engine.RUN) else ""
        if number.isdigit() and int(number) < len(self._runs):
            self._at = self._called(self._runs[int(number)])
            self._say(f"{self._at}: preparing")
        bar = _BAR.search(text)
        if bar and self._at:
            self._say(f"{self._at}: {bar.group(1)} of {bar.group(2)} requests")

    def _called(self, run: Dict[str, Any]) -> str:
        if not run["round"]:
            return client.WARM_UP
        turn = f", round {run['round']} of {self._rounds}" if self._rounds > 1 else ""
        return f"{run['level']} at once{turn}"
