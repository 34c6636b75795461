"""What is wrong with a command line, as a message and a command that can be pasted."""

from __future__ import annotations

import difflib
import re
import shlex
from typing import TYPE_CHECKING

import click

from kimi_prov.commands.common import command as commands
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

# How like a word has to be to be the one that was meant.
_NEAR = 0.7
# What users of other tools type, and the option that does it here.
_OPTIONS = {
    "--dry-run": "--check",
    "--dryrun": "--check",
    "--what-if": "--check",
    "--json": "--format json",
    "--host": "--limit",
    "--hosts": "--limit",
    "--tail": "--lines",
    "-n": "--lines",
    "--identity": "--private-key",
}
# Likewise, and the command that does it here. None proposes to destroy anything.
_COMMANDS = {
    "ps": "status INVENTORY",
    "top": "status INVENTORY --watch",
    "ls": "status INVENTORY",
    "list": "status INVENTORY",
    "get": "status INVENTORY",
    "describe": "status INVENTORY",
    "serve": "apply INVENTORY",
    "run": "apply INVENTORY",
    "up": "apply INVENTORY",
    "deploy": "apply INVENTORY",
    "install": "apply INVENTORY",
    "launch": "apply INVENTORY",
    "converge": "apply INVENTORY",
    "upgrade": "apply INVENTORY",
    "pull": "apply INVENTORY --tags weights",
    "down": "stop INVENTORY",
    "kill": "stop INVENTORY",
    "models": "catalog models",
    "gpus": "catalog gpus",
    "show": "catalog",
    "search": "catalog",
    "ask": "chat INVENTORY",
    "test": "verify INVENTORY",
    "doctor": "diagnose INVENTORY",
    "diff": "drift INVENTORY",
    "dry-run": "apply INVENTORY --check",
    "cost": "check SHEET",
    "estimate": "check SHEET",
    "keys": "key INVENTORY --list",
    "token": "key INVENTORY",
    "config": "init DIR --profile NAME",
    "new": "init DIR --profile NAME",
}


def explain(error: click.ClickException, words: Sequence[str]) -> UserError:
    """Return the message and the fix of an error that click found in the command line, `words`."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "kimi-prov"
    fix = f"{path} --help"
    if isinstance(error, click.exceptions.NoSuchCommand):
        return _explain_command(error, path, words)
    if isinstance(error, click.NoSuchOption):
        return _explain_option(error, path, words)
    message = error.format_message().rstrip(".")
    missing: Sequence[str] = ()
    if isinstance(error, commands.MissingError):
        missing = error.words
    elif isinstance(error, click.MissingParameter) and error.param is not None and context:
        missing = [commands.describe_parameter(error.param, context)]
        message = f"{missing[0]} is missing"
    if missing:
        first = [word.partition("|")[0] for word in missing]
        fix = " ".join(["kimi-prov", *map(shlex.quote, words), *first])
    return UserError(f"{path}: {message}", fix=fix)


def _explain_command(
    error: click.exceptions.NoSuchCommand, path: str, words: Sequence[str]
) -> UserError:
    name = error.command_name
    after = words[words.index(name) + 1 :] if name in words else ()
    message = f"{path} has no command {name!r}"
    other = _COMMANDS.get(name) if path == "kimi-prov" else None
    if other:
        first = next(iter(after), "")
        return UserError(message, fix=f"kimi-prov {_fill(other, first)}")
    near = difflib.get_close_matches(name, error.possibilities or (), 1, _NEAR)
    if near:
        return UserError(message, fix=shlex.join([path, near[0], *after]))
    return UserError(message, fix=f"{path} --help")


def _explain_option(error: click.NoSuchOption, path: str, words: Sequence[str]) -> UserError:
    name = error.option_name
    message = f"{path} has no option {name}"
    command = error.ctx.command if error.ctx else None
    known = {text for param in command.params for text in param.opts} if command else set()
    other = _OPTIONS.get(name, "")
    if other.split(" ")[0] not in known:
        near = difflib.get_close_matches(name, error.possibilities or (), 1, _NEAR)
        other = near[0] if near else ""
    if other and name in words:
        at = words.index(name)
        retyped = [*words[:at], *other.split(" "), *words[at + 1 :]]
        return UserError(message, fix=shlex.join(["kimi-prov", *retyped]))
    return UserError(message, fix=f"{path} --help")


def _fill(command: str, target: str) -> str:
    """Put what was named into a command, in place of the word in capitals."""
    if not target or target.startswith("-"):
        return command
    return re.sub(r"INVENTORY|SHEET|DIR\b", lambda _: shlex.quote(target), command)
