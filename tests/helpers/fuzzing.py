"""Makes inputs that nobody should write, each from a seed, and runs the command line on them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import unicodedata
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kimi_prov.cli import cli
from kimi_prov.show.exit_handling import run_guarded

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

ROOT = Path(__file__).resolve().parents[2]
FACTS = ROOT / "tests" / "data" / "facts" / "lab-nspawn.json"
RECORDINGS = ROOT / "tests" / "data" / "recordings"
CODES = {0, 1, 2, 3, 4}
# A hang guard: machines that test are busy. What takes this long takes forever.
PATIENCE_S = 20
INTERNAL = re.compile(
    r"unexpected:|Traceback|crash\.log|<class '|object at 0x|\w+Error\b(?!s)|base 10|NoneType"
)
# What steers a terminal or hides text, and what no encoding can write.
POISON = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\x9b31m",
    "\u202egnp.exe",
    "\u2066",
    "\u200b",
    "\u2028",
    "\U000e0041",
    "\x7f",
    "\x00",
    "\x85",
    "\ufeff",
    "\udcff",
]
NUMBERS: list[Any] = [
    0,
    -1,
    1,
    2,
    3,
    0.5,
    -0.0,
    1e-300,
    1e18,
    1e19,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    10**400,
    1 << 63,
    1 << 64,
    999_999_999,
    4_000_000_000,
    True,
]
TEXTS = [
    "",
    " ",
    "nan",
    "inf",
    "1e999",
    "26.5626.562",
    "²",
    "٣",
    "0x10",
    "1_000",
    "-",
    "~",
    "{{ 1 }}",
]
TEXTS += [
    "9" * 5000,
    "../../etc/passwd",
    "a" * 5000,
    "%s%n",
    "null",
    "2026-99-99",
    "Größe",
    "'\"<&>",
]
TOKENS = [
    "[",
    "]",
    "{",
    "}",
    ": ",
    "- ",
    "? ",
    "\t",
    "'",
    '"',
    "|",
    ">",
    "&a ",
    "*a",
    "<<: ",
    "!!int ",
]
TOKENS += [
    "!!bool ",
    "!!timestamp ",
    "!!binary ",
    "!!set ",
    "!!python/name:os.system ",
    "%",
    "#",
    "---\n",
]
TOKENS += [
    "...\n",
    "\r",
    "\\",
    ",",
    "nan",
    ".nan",
    ".inf",
    "1e999",
    "NaN",
    "Infinity",
    "0x",
    "1:1:1",
]
Value = Any


def nasty(random: Random) -> Value:
    """A value of any kind that fits nowhere, or only just."""
    kinds: list[Callable[[], Value]] = [
        lambda: random.choice(NUMBERS),
        lambda: random.choice(NUMBERS),
        lambda: random.choice(TEXTS),
        lambda: "x" + random.choice(POISON) + "y",
        lambda: None,
        list,
        dict,
        lambda: [nasty(random) for _ in range(random.randrange(4))],
        lambda: {random.choice(TEXTS)[:50]: nasty(random)},
        lambda: _nest(random.choice([5, 90, 300])),
        lambda: random.choice([[0] * 3000, ["x"] * 300]),
    ]
    return random.choice(kinds)()


def _nest(depth: int) -> Value:
    found: Value = 1
    for level in range(depth):
        found = [found] if level % 2 else {"a": found}
    return found


def places(document: Value) -> list[tuple[Any, Any]]:
    """Every container in a document with each key of it."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        part = waiting.pop()
        keys = part if isinstance(part, dict) else range(len(part))
        for key in list(keys):
            found.append((part, key))
            if isinstance(part[key], (dict, list)):
                waiting.append(part[key])
    return found


def mutated(document: Value, random: Random) -> Value:
    """A copy with one to three values changed, added, renamed or removed."""
    document = json.loads(json.dumps(document))
    for _ in range(random.choice([1, 1, 2, 3])):
        spots = places(document)
        if not spots:
            break
        part, key = random.choice(spots)
        how = random.randrange(10)
        if how == 0:
            del part[key]
        elif how == 1 and isinstance(part, dict):
            part[random.choice(["x", "schema", f"a{random.choice(POISON)}"])] = nasty(random)
        elif how == 2 and isinstance(part, dict):
            part[f"{key}{random.choice(['s', '', *POISON])}"] = part.pop(key)
        elif how == 3 and isinstance(part[key], (int, float)):
            part[key] = part[key] * random.choice([-1, 0, 1e-9, 1e9, 1e300, 10**30])
        elif how == 4 and isinstance(part[key], list) and part[key]:
            part[key] = part[key] * random.choice([2, 50])
        else:
            part[key] = nasty(random)
    return document


def torn(content: bytes, random: Random) -> bytes:
    """The content with a span cut, doubled or put in, some bytes changed, or its end missing."""
    for _ in range(random.choice([1, 1, 2, 4])):
        at, length = random.randrange(len(content) + 1), random.randrange(40)
        put = random.choice([*TOKENS, *TEXTS, *POISON]).encode("utf-8", "surrogatepass")
        how = random.randrange(6)
        if how == 0:
            content = content[:at]
        elif how == 1:
            content = content[:at] + content[at + length :]
        elif how == 2:
            content = content[:at] + content[at : at + length] * 50 + content[at + length :]
        elif how == 3:
            content = content[:at] + random.randbytes(random.randrange(1, 5)) + content[at + 1 :]
        else:
            content = content[:at] + put + content[at + length :]
    return content


def as_json(document: Value) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def as_yaml(document: Value) -> bytes:
    try:
        text = yaml.dump(document, Dumper=yaml.CSafeDumper, allow_unicode=True, sort_keys=False)
    except (ValueError, RecursionError):
        return as_json(document)
    return text.encode("utf-8", "surrogatepass")


@dataclass
class Ended:
    """How a command ended."""

    words: list[str]
    code: int
    out: str
    err: str
    faults: list[str] = field(default_factory=list)


class Hang(BaseException):
    """Nothing of ours catches it."""


def run(words: list[str], state: Path) -> Ended:
    """Run the command line in this process as `main` does, with a watch over its time."""

    def late(*_: object) -> None:
        raise Hang

    out, err = _Stream(), _Stream()
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_guarded(partial(cli.main, args=words, standalone_mode=False))
    except Hang:
        code = -1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.environ.pop("KIMI_PROV_CATALOG", None)
    ended = Ended(words, int(code), out.text(), err.text())
    crash = state / "kimi-prov" / "crash.log"
    if crash.exists():
        ended.faults.append("crash: " + crash.read_text()[-3000:])
        crash.unlink()
    return ended


class _Stream(io.TextIOWrapper):
    """Standard output or error as a terminal in UTF-8 has it."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="backslashreplace")

    def text(self) -> str:
        self.flush()
        content: bytes = self.buffer.getvalue()  # type: ignore[attr-defined]
        return content.decode()


def leaks(text: str) -> set[str]:
    """Characters that must not reach a reader: control, format, separators, halves."""
    return {
        char
        for char in set(text)
        if char not in "\n" and unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp", "Cs", "Co")
    }


def faults(ended: Ended) -> list[str]:
    """What is wrong with how it ended."""
    found = list(ended.faults)
    if ended.code not in CODES:
        found.append(f"code {ended.code}" if ended.code != -1 else "hang")
    if ended.code in (1, 4):
        found.append(f"code {ended.code} for bad input")
    if INTERNAL.search(ended.err):
        found.append("internal words")
    form = ended.words[ended.words.index("--format") + 1] if "--format" in ended.words else "text"
    found += _of_streams(ended, form)
    for door, text in (("stderr", ended.err), (form, ended.out)):
        if leaks(text):
            found.append(f"{door} leaks {sorted(map(ascii, leaks(text)))}")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _of_streams(ended: Ended, form: str) -> list[str]:
    found = []
    if ended.code == 2:
        if ended.out:
            found.append("output beside an error")
        if not ended.err.startswith(("error: ", "Usage: ", "Error: ")):
            found.append("no error line")
    elif form == "json":
        try:
            json.loads(ended.out, parse_constant=_refuse)
        except ValueError as error:
            found.append(f"no JSON: {error}")
    return found
