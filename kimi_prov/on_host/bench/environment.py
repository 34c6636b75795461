"""The engine's environment: parts of `bench-engine` run there, in the sandbox."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.bench.load import LIMIT_S
from kimi_prov.on_host.system import sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.contract.documents.plan import MachinePlan

Say = Callable[[str], None]


class Engine:
    """The engine's environment: runs parts of `bench_engine` there, in the sandbox.

    `limit_s`: after so long a part is ended.
    """

    def __init__(self, plan: MachinePlan, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._python = f"{plan['engine']['env_dir']}/bin/python"
        self._env = plan["instances"][0]["env"]
        self._gpus = has_gpus(plan)

    def run(
        self, part: str, config: dict[str, Any], line: Say, *, before: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Run a part, pass each line of its output to `line`, and return its result.

        `before` is put before the command (numactl). Raises HostError with its last line of output.
        """
        heard, spoken = os.pipe()
        with contextlib.ExitStack() as held:
            held.callback(os.close, heard)
            given, out = (held.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            given.write(json.dumps(config).encode())
            given.seek(0)
            with sandbox.open_process(
                [*before, self._python, layout.ZIPAPP, "bench-engine", part],
                env={"PATH": os.defpath, **self._env},
                limit_s=self._limit_s,
                gpus=self._gpus,
                stdin=given,
                stdout=out,
                stderr=spoken,
            ) as process:
                os.close(spoken)
                last = ""
                for text in _read_lines(heard):
                    last = text
                    line(text)
                process.wait()
            if process.returncode != 0:
                raise HostError(f"{part}: {(last or f'exit status {process.returncode}')[:300]}")
            out.seek(0)
            lines = out.read().decode(errors="replace").strip().splitlines()
        # The output is untrusted data.
        try:
            found = json.loads(lines[-1]) if lines else {}
        except ValueError:
            found = {}
        return found if isinstance(found, dict) else {}


def has_gpus(plan: MachinePlan) -> bool:
    """Whether instances of the plan have GPUs."""
    return any(instance.get("gpus") for instance in plan["instances"])


def _read_lines(descriptor: int) -> Iterator[str]:
    """Yield the output by line; each redraw of a progress bar is a line."""
    rest = b""
    while True:
        data = os.read(descriptor, 65536)
        parts = re.split(rb"[\r\n]", rest + data)
        rest = parts.pop()
        if not data:
            parts.append(rest)
        for part in parts:
            text = part.decode(errors="replace").strip()
            if text:
                yield text
        if not data:
            return
