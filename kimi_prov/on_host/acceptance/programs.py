"""Programs that the model writes; they run on the managed machine, in a unit made for that."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.acceptance.answers import Answer, Asker, Found, describe_answer
from kimi_prov.on_host.acceptance.verdicts import Verdict, Wrong, judge_answers, make_skip

if TYPE_CHECKING:
    from kimi_prov.on_host.acceptance.target import MachineTarget

_TOKENS = 4096
_BLOCK = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
# Our part of the program writes this before its results, beside any output of the model's part.
_RESULT = "kimi-suite-result:"


@dataclass(frozen=True)
class Task:
    """A requested function, and the results that it must return for some arguments."""

    name: str
    asked: str
    cases: tuple[tuple[list[Any], Any], ...]

    def question(self) -> str:
        """Return the task as a prompt."""
        return (
            f"Write a Python function {self.asked} Use the standard library only. Answer with one "
            "block of code that holds the function, and nothing else."
        )

    def program(self, code: str) -> str:
        """Return the model's code with last lines that call it and write the results."""
        arguments = json.dumps([given for given, _ in self.cases])
        return (
            f"{code}\n\nimport json as _json\n"
            f"_found = [{self.name}(*given) for given in _json.loads({arguments!r})]\n"
            f'print("\\n{_RESULT}" + _json.dumps(_found), flush=True)\n'
        )

    def judge(self, output: str) -> Wrong | None:
        """Compare the program's output with the expected results; None where they are equal."""
        lines = [line for line in output.splitlines() if line.startswith(_RESULT)]
        try:
            found = json.loads(lines[-1][len(_RESULT) :]) if lines else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list):
            return Wrong(self.name, "the function's results", output[-400:] or "no output")
        if len(found) != len(self.cases):
            return Wrong(self.name, f"{len(self.cases)} results", f"{len(found)}: {found}")
        for (given, expected), value in zip(self.cases, found):
            # Compared as text: to Python 1 equals True.
            if json.dumps(value) != json.dumps(expected):
                called = f"{self.name}({json.dumps(given)[1:-1]})"
                return Wrong(called, json.dumps(expected), json.dumps(value))
        return None


TASKS: tuple[Task, ...] = (
    Task(
        "roman",
        "roman(n) that returns the Roman numeral of a whole number from 1 to 3999.",
        (([4], "IV"), ([9], "IX"), ([1994], "MCMXCIV"), ([2026], "MMXXVI"), ([3999], "MMMCMXCIX")),
    ),
    Task(
        "merge",
        "merge(intervals) that takes a list of [start, end] pairs and returns them sorted by "
        "start, with those that overlap or touch merged into one.",
        (
            ([[[1, 3], [2, 6], [8, 10], [15, 18]]], [[1, 6], [8, 10], [15, 18]]),
            ([[[5, 6], [1, 4], [4, 5]]], [[1, 6]]),
            ([[]], []),
        ),
    ),
    Task(
        "balanced",
        "balanced(text) that returns True where each of the brackets ()[]{} in the text is closed "
        "in the right order, else False.",
        ((["a(b[c]{d})"], True), (["(]"], False), (["(("], False), ([""], True), (["]["], False)),
    ),
)


def check_programs(asker: Asker, target: MachineTarget) -> Verdict:
    """Let the model write functions, and run them where they have no access."""
    tried = target.request("code", source="print('ready')")
    output = str(tried.get("out") or "")
    if tried["reason"] or output.strip() != "ready":
        why = tried["reason"] or f"{tried.get('ended')}: {output}"
        return make_skip(f"there is no unit to run it in: {why}")
    found = asker.many([asker.body(task.question(), _TOKENS) for task in TASKS])
    judged = [_judge_program(task, answer, target) for task, answer in zip(TASKS, found)]
    wrong = [item for item in judged if item]
    return judge_answers(len(TASKS), wrong, "programs right, run in a unit without network")


def _judge_program(task: Task, found: Found, target: MachineTarget) -> Wrong | None:
    code = extract_code(found.text, task.name) if isinstance(found, Answer) else None
    if code is None:
        return Wrong(task.name, "a block of Python code", describe_answer(found))
    done = target.request("code", source=task.program(code))
    if done["reason"]:
        return Wrong(task.name, "a program that ends", done["reason"])
    output, ended = str(done.get("out") or ""), str(done.get("ended") or "")
    wrong = task.judge(output)
    return replace(wrong, observed=f"{ended}; {wrong.observed}") if wrong and ended else wrong


def extract_code(text: str, name: str) -> str | None:
    """Return the code of an answer: its blocks with the function, or all of it without blocks.

    It is not compiled here: the unit does that too.
    """
    defined = re.compile(rf"^\s*def {re.escape(name)}\s*\(", re.MULTILINE)
    blocks = _BLOCK.findall(text) or [text]
    # The last block: an earlier one is often a first try.
    chosen = [block for block in blocks if defined.search(block)]
    return chosen[-1] if chosen else None
