"""How a long job on the managed machine runs and ends: a unit of ours, followed by its progress."""

from __future__ import annotations

from typing import Callable, Optional, TypeVar

from kimi_prov.contract.errors import EXIT_PERMANENT, EXIT_TRANSIENT, Permanent, Transient, plain
from kimi_prov.on_host.system.progress import Progress

Config = TypeVar("Config")


def carry_out(
    phase: str,
    load: Callable[[], Config],
    told: Callable[[Config], Optional[str]],
    work: Callable[[Config, Progress], int],
) -> int:
    """Load the configuration and do the work; the exit status, also of a job that failed.

    `told` names the progress file, None for a job that nobody follows. A fault of either kind, or
    of the machine itself, is one sentence in that file and on standard error.
    """
    progress = Progress(None, phase)
    try:
        config = load()
        progress = Progress(told(config), phase)
        return work(config, progress)
    except Permanent as fault:
        progress.fail(str(fault))
        return EXIT_PERMANENT
    except Transient as fault:
        progress.fail(str(fault), will_retry=True)
        return EXIT_TRANSIENT
    except OSError as error:
        progress.fail(f"{error.filename}: {plain(error)}" if error.filename else plain(error))
        return EXIT_PERMANENT
