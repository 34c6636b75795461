"""Whether a process lives."""

import os


def is_alive(pid: object) -> bool:
    """Return whether a process has this number; False for anything but a number."""
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # It runs, as another user.
        return True
    return True
