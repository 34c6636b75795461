"""How a command ends: messages to standard error, the documented exit code, no traceback."""

from __future__ import annotations

import io
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show import streams

if TYPE_CHECKING:
    from collections.abc import Callable


def run_guarded(run: Callable[[], Any]) -> int:
    """Run a command and return its exit code; an exception becomes one message.

    The code is recorded in the folders of the command's runs.
    """
    from kimi_prov.runner import run_folder  # noqa: PLC0415

    streams.prepare()
    code = _run_caught(run)
    run_folder.record_exit_code(code)
    return code


def _run_caught(run: Callable[[], Any]) -> int:
    try:
        result = run()
    except UserError as error:
        return _report_error(error.message, error.exit_code, error.fix)
    except (click.exceptions.Abort, KeyboardInterrupt):
        return _report_error("interrupted", ExitCode.INTERRUPTED)
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        sys.stderr.write(clean_text.clean_block(told.getvalue()))
        return ExitCode.BAD_INPUT
    except BrokenPipeError:
        # The reader of our output has closed it: drop the rest.
        sys.stderr.close()
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - a bug goes to a file, not to the screen
        reason = streams.explain_unwritable(error) if isinstance(error, OSError) else None
        return _report_bug(error) if reason is None else _report_unwritten(reason)
    return int(result) if isinstance(result, int) else ExitCode.OK


def _report_error(message: str, code: ExitCode, fix: str | None = None) -> ExitCode:
    """Write the message and its fix, clean: no text in one can look like the other."""
    prefix = "" if code is ExitCode.INTERRUPTED else "error: "
    fixed = f"  fix: {clean_text.clean_entry(fix)}\n" if fix else ""
    with suppress(OSError):  # without standard error the exit code is enough
        sys.stderr.write(f"{prefix}{clean_text.clean_entry(message)}\n{fixed}")
    return code


def _report_unwritten(reason: str) -> ExitCode:
    fix = "make room there, or name a file with --output"
    return _report_error(f"standard output: cannot be written: {reason}", ExitCode.FAILED, fix)


def _report_bug(error: Exception) -> ExitCode:
    from kimi_prov.runner.redaction import Masker  # noqa: PLC0415
    from kimi_prov.user_dirs import find_state_home, make_private, write_private  # noqa: PLC0415

    summary = Masker().mask(f"{type(error).__name__}: {error}")
    try:
        path = find_state_home() / "crash.log"
        make_private(path.parent)
        told = clean_text.clean_block("".join(traceback.format_exception(error)))
        write_private(path, Masker().mask(told))
    except (OSError, RuntimeError):  # nothing can be written there, or the user has no home
        return _report_error(f"unexpected: {summary}", ExitCode.FAILED)
    return _report_error(f"unexpected: {summary}", ExitCode.FAILED, f"report it with {path}")
