"""Run a long job on the managed machine, with a progress file and an exit status."""

from __future__ import annotations

from typing import Callable, TypeVar

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.progress import Progress

Config = TypeVar("Config")


def run_job(
    phase: str,
    load: Callable[[], Config],
    progress_path: Callable[[Config], str | None],
    work: Callable[[Config, Progress], int],
) -> int:
    """Load the configuration and do the work; return the exit status, also of a job that failed.

    `progress_path` returns the progress file, None for a job without one. An error is written to
    that file, and as one line to standard error.
    """
    progress = Progress(None, phase)
    try:
        config = load()
        progress = Progress(progress_path(config), phase)
        return work(config, progress)
    except (HostError, OSError) as error:
        failed = HostError.from_system(error) if isinstance(error, OSError) else error
        progress.fail(failed)
        return failed.exit_status
