"""The files by which the control machine leads a tune: its request, its jobs, their results.

They lie in /run: a boot forgets them, as it forgets the candidate.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kimi_prov.contract import paths as layout
from kimi_prov.on_host.system import files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.tune import TuneOutcomeOfHost
    from kimi_prov.contract.documents.tune.jobs import TuneJob, TuneRequest, TuneResult

# So long no poll of the control machine may be away: then what serves comes back. The control
# machine waits for a cut connection for a shorter time.
MAX_SILENCE_S = 180.0
REQUEST, JOB, RESULT = (f"{layout.TUNE_RUN}/{name}.json" for name in ("request", "job", "result"))
OUTCOME, POLLED = f"{layout.TUNE_RUN}/outcome.json", f"{layout.TUNE_RUN}/polled.json"


def write(path: str, document: Mapping[str, object]) -> None:
    """Write one of the files, for root alone."""
    files.make_directory(Path(layout.TUNE_RUN), 0o700)
    files.write_json(path, document, durable=False, mode=0o600)


def read_request() -> TuneRequest:
    """Read the request of the tune that runs; empty where none does."""
    return cast("TuneRequest", files.read_json(REQUEST))


def read_job() -> TuneJob:
    """Read the last job; empty where there was none."""
    return cast("TuneJob", files.read_json(JOB))


def read_result() -> TuneResult | None:
    """Read the result of the last job that is done."""
    return cast("TuneResult", files.read_json(RESULT)) or None


def read_outcome() -> TuneOutcomeOfHost | None:
    """Read how the last tune ended."""
    return cast("TuneOutcomeOfHost", files.read_json(OUTCOME)) or None


def clear() -> None:
    """Remove all of them but the outcome."""
    for path in (REQUEST, JOB, RESULT, POLLED):
        files.remove(path)


def note_poll() -> None:
    """Note that the control machine has asked now."""
    write(POLLED, {"at_s": time.monotonic()})


def measure_silence() -> float:
    """Return the seconds since the control machine asked."""
    at_s = files.read_json(POLLED).get("at_s")
    return time.monotonic() - float(at_s) if at_s is not None else MAX_SILENCE_S
