"""The command line in this process, for what needs no Ansible and no terminal."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from functools import partial

from kimi_prov.cli import cli
from kimi_prov.show.exit_handling import run_guarded


def here(*words: object) -> tuple[int, str, str]:
    """Run a command; give its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        line = [str(word) for word in words]
        code = run_guarded(partial(cli.main, line, standalone_mode=False))
    return int(code), out.getvalue(), err.getvalue()
