"""Cases of real people, each with the answer that a good tool gives: tests/data/cases/README.md."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.helpers import command_line

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = Path(__file__).resolve().parents[1] / "data" / "cases"
_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[\*\]|\[([\w-]+)=([^\]]*)\]")


def names(kind: str) -> list[str]:
    """Name the cases of a kind."""
    return [folder for folder in sorted(p.name for p in CASES.iterdir() if p.is_dir())
            if read(folder)["kind"] == kind]  # fmt: skip


def read(name: str) -> dict[str, Any]:
    """Read a case."""
    case: dict[str, Any] = yaml.safe_load((CASES / name / "case.yaml").read_text())
    return case


def find_faults(name: str, out: Path) -> list[str]:
    """Run a case's command in this process, and return what its expectations miss."""
    case, folder = read(name), CASES / name
    places = {"input": folder / (*case.get("input", ()), "")[0], "case": folder, "out": out}
    program, *words = shlex.split(case["run"])
    assert program == "kimi-prov"
    words = [re.sub(r"\{(\w+)\}", lambda m: str(places[m[1]]), word) for word in words]
    answer = _Answer(command_line.run(*words), folder)
    return [fault for want in case["expect"] for fault in answer.judge(want)]


class _Answer:
    """What a command answered; the folder of the case is no part of it."""

    def __init__(self, done: command_line.Done, folder: Path) -> None:
        out, err = (text.replace(str(folder), folder.name) for text in (done.stdout, done.stderr))
        self.code, self.text = done.returncode, _flatten(f"{out}\n{err}")
        try:
            self.document = json.loads(out)
        except ValueError:
            self.document = None
        found = self.document.get("findings", []) if isinstance(self.document, dict) else []
        self.answers = {
            "cause": [_flatten(f"{one.get('title')}. {one.get('cause')}") for one in found],
            "fix": [_flatten(one.get("fix") or "") for one in found],
        }

    def judge(self, want: dict[str, Any]) -> list[str]:
        """Return what an expectation misses; of alternatives one has to hold."""
        if "any_of" in want:
            faults = [self.judge(one) for one in want["any_of"]]
            return [] if [] in faults else [f"none of: {faults}"]
        if "all_of" in want:
            return [fault for one in want["all_of"] for fault in self.judge(one)]
        if "exit" in want:
            codes = want["exit"] if isinstance(want["exit"], list) else [want["exit"]]
            return [] if self.code in codes else [f"exit {self.code}, not {codes}: {self.text}"]
        if "json" in want:
            held = list(_select(self.document, want["json"]))
            return [] if _holds(held, want) else [f"{want}: {_flatten(json.dumps(held))[:400]}"]
        ((key, pattern),) = want.items()
        part, _, how = key.rpartition("_")
        texts = [self.text] if part == "text" else self.answers[part]
        held = any(_found(pattern, text) for text in texts)
        return [] if held == {"matches": True, "absent": False}[how] else [f"{want}: {texts}"]


def _holds(values: list[Any], want: dict[str, Any]) -> bool:
    texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    if "matches" in want:
        return any(_found(want["matches"], _flatten(text)) for text in texts)
    if "not_matches" in want:
        return not any(_found(want["not_matches"], _flatten(text)) for text in texts)
    if not values:
        return False
    if "between" in want:
        low, high = want["between"]
        return isinstance(values[0], (int, float)) and low <= values[0] <= high
    if "length" in want:
        return len(values[0]) == want["length"]
    return bool(values[0] == want["equals"])


def _select(document: Any, path: str) -> Iterator[Any]:
    """Yield the values at a path: a.b[0].c, a[*].b, a[id=x].b, a[severity=warning,blocker]."""
    step = _STEP.match(path)
    if step is None:
        assert not path, f"not a path: {path}"
        yield document
        return
    name, number, key, wanted = step.groups()
    rest = path[step.end() :]
    if name is not None:
        chosen = [document[name]] if isinstance(document, dict) and name in document else []
    elif not isinstance(document, list):
        chosen = []
    elif number is not None:
        chosen = document[int(number) :][:1]
    else:
        chosen = [row for row in document if not key or str(row.get(key)) in wanted.split(",")]
    for value in chosen:
        yield from _select(value, rest)


def _found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None


def _flatten(text: str) -> str:
    """Put a text on one line: what is wrapped at 80 columns still matches."""
    return re.sub(r"\s+", " ", text)
