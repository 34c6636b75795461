"""Measures the served model with the engine's own bench client, and samples the engine."""

from __future__ import annotations

import re
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.bench import client, results, sampler
from kimi_prov.on_host.bench import engine as bench_engine
from kimi_prov.on_host.bench import load as bench_load
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.paths import Paths
    from kimi_prov.on_host.bench.environment import Engine, Say
    from kimi_prov.on_host.bench.load import Load

_BAR = re.compile(r"(\d+)/(\d+) \[")
_NO_PROMPT = (
    f"no prompt of the file is one that the bench client takes ({client.LIMITS})",
    "give a file with such prompts, or another --answer-tokens",
)


def measure_service(
    plan: MachinePlan, paths: Paths, engine: Engine, say: Say, asked: dict[str, Any]
) -> dict[str, Any]:
    """Run the engine's own bench client through the opened port, with the requested load.

    `asked` is the request of the control machine: `load`, and `prompts` where they are of a file.
    """
    done = run_client(plan, paths, engine, say, asked)
    load, shape, runs, read = done.load, done.shape, done.runs, done.results
    levels = results.group_by_level(runs, read)
    for level in levels:
        rounds = _list_rounds(level, runs, read, done.began)
        windows = [(began, began + one["seconds"]) for began, one in rounds]
        tokens = sum(one["output_tokens"] for _, one in rounds)
        level["engine"] = sampler.describe_engine(done.samples, windows)
        level["power"] = sampler.describe_power(
            done.samples, windows, sampler.list_gpus(plan), tokens, alone=not plan.get("group")
        )
    return {
        "input_tokens": shape[0] or _compute_mean(levels, "input_tokens"),
        "output_tokens": shape[1] or _compute_mean(levels, "output_tokens"),
        "load": bench_load.describe_load(load, shape),
        "warm_up": results.describe_warm_up(runs, read),
        "levels": levels,
    }


class ClientRuns(NamedTuple):
    """What the client was asked and has measured: `results` has a row for each of `runs`."""

    load: Load
    shape: client.Shape
    runs: list[client.Run]
    results: list[dict[str, Any]]
    began: Mapping[int, float]
    samples: list[sampler.Sample]


def run_client(
    plan: MachinePlan,
    paths: Paths,
    engine: Engine,
    say: Say,
    request: dict[str, Any],
    behind: tuple[str, str] | None = None,
) -> ClientRuns:
    """Run the engine's own bench client.

    `behind`: the URL and key of an engine behind the opened port, where that is to be asked itself.
    """
    load = bench_load.from_document(request.get("load") or {})
    shape = bench_load.choose_lengths(load, plan["throughput"], int(plan["model"]["context"]))
    say("starting the engine's bench client")
    # Far from the seeds of every earlier bench: the engine's cache may still have their prompts.
    url, key = behind or (None, read_text(paths.verify_key).strip())
    runs = client.list_runs(plan, load, shape, secrets.randbelow(1 << 31), url)
    gpus = sampler.list_gpus(plan)
    meter = sampler.Meter(
        partial(sampler.read_engine_state, plan), partial(sampler.read_watts, gpus)
    )
    heard = ClientOutput(say, runs, meter.look)
    meter.start()
    try:
        found = engine.run(
            "client",
            {
                "runs": runs,
                "prompts": request.get("prompts") or [],
                "secrets": {"OPENAI_API_KEY": key},
                "certificate": read_text(paths.tls_crt),
            },
            heard,
        )
    except HostError as error:
        # Both clients read the first of the prompts that they took.
        if load.form and "IndexError" in error.message:
            raise HostError(*_NO_PROMPT) from None
        raise
    finally:
        meter.stop()
    texts = found.get("results") or []
    if len(texts) != len(runs):
        raise HostError("the bench client left no result")
    read = [
        results.read_result(run, str(text), heard.sampled.get(number))
        for number, (run, text) in enumerate(zip(runs, texts))
    ]
    return ClientRuns(load, shape, runs, read, heard.began, meter.samples)


def _list_rounds(
    level: Mapping[str, Any],
    runs: list[client.Run],
    read: list[dict[str, Any]],
    began: Mapping[int, float],
) -> list[tuple[float, dict[str, Any]]]:
    """Give the results of a load's rounds, each with the time at which it began to measure."""
    return [
        (began[number], one)
        for number, (run, one) in enumerate(zip(runs, read))
        if run["round"] and run["level"] == level["concurrency"] and number in began
    ]


def _compute_mean(levels: list[dict[str, Any]], name: str) -> int:
    """Return tokens a request, over all loads."""
    asked: int = sum(row["requests"] for row in levels)
    return round(float(sum(row[name] for row in levels)) / asked)


class ClientOutput:
    """Writes the client's progress, and records when each run begins to measure.

    `began` has this time for each run. `look` has a sample taken: then, and between two runs.
    `sampled` has how many requests the client announced.
    """

    def __init__(self, say: Say, runs: list[client.Run], look: Callable[[], None]) -> None:
        self._say, self._runs, self._look = say, runs, look
        self._rounds = max(run["round"] for run in runs)
        self._number: int | None = None
        self._starting = False
        self.began: dict[int, float] = {}
        self.sampled: dict[int, int] = {}

    def __call__(self, text: str) -> None:
        """Handle a line of it."""
        number = text[len(bench_engine.RUN) :] if text.startswith(bench_engine.RUN) else ""
        if number.isdigit() and int(number) < len(self._runs):
            self._number = int(number)
            self._starting = False
            self._look()
            self._say(f"{self._get_run_name()}: preparing")
        if self._number is None:
            return
        bar = _BAR.search(text)
        if sampler.BEGINS in text:
            self._starting = True
        # sglang's client prints this and sleeps a second; with its bar its clock starts.
        sleeps = self._runs[self._number]["module"].startswith("sglang")
        if self._starting and (bar or not sleeps) and self._number not in self.began:
            self.began[self._number] = time.monotonic()
            self._look()
        if bar:
            if self._starting:
                self.sampled[self._number] = int(bar.group(2))
            self._say(f"{self._get_run_name()}: {bar.group(1)} of {bar.group(2)} requests")

    def _get_run_name(self) -> str:
        run = self._runs[self._number or 0]
        if not run["round"]:
            return client.WARM_UP
        turn = f", round {run['round']} of {self._rounds}" if self._rounds > 1 else ""
        return f"{run['level']} at once{turn}"
