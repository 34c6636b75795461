"""`suite run < REQUEST`, `suite ask < QUESTION`: the full suite's part on the served machine.

`run` tests the model through the port from this machine, by the checks that REQUEST names; `ask`
answers one query of the control machine's own run. Both print one JSON object.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import groups, unit_names
from kimi_prov.contract.errors import NOT_APPLIED, HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.acceptance import catalogue, expectations, machine, needles
from kimi_prov.on_host.acceptance.catalogue import BY_NAME, Check, Exam, Selection
from kimi_prov.on_host.acceptance.target import MachineTarget
from kimi_prov.on_host.acceptance.verdicts import Row, Verdict, make_failure, make_skip
from kimi_prov.on_host.endpoint import checks, tls
from kimi_prov.on_host.endpoint.api_client import ApiError
from kimi_prov.on_host.system import plans, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.contract.documents.plan import MachinePlan

Tell = Callable[[str], None]
_NO_ANSWER = "no answer"


def split_batches(names: Sequence[str]) -> list[list[str]]:
    """Split the checks into batches that run together, in order; sensitive checks run alone."""
    port = [name for name in names if name in catalogue.PORT]
    together = [name for name in names if name in BY_NAME and not BY_NAME[name].alone]
    lengths = [name for name in names if catalogue.is_needle(name)]
    others = {*port, *together, *lengths}
    alone = [[name] for name in names if name not in others]
    return [batch for batch in (port, together, *alone, lengths) if batch]


def run_selection(
    selection: Selection, exam: Exam, batch: Callable[[list[str]], list[Row]]
) -> list[Row]:
    """Return the rows of all checks of a selection, in order; `batch` runs some of them."""
    names = catalogue.expand_needles(selection.names(exam.subject), exam)
    rows: list[Row] = []
    for chosen in split_batches(names):
        taken = [name for name in chosen if selection.includes(name)]
        found = batch(taken) if taken else []
        left = [make_skip(catalogue.LEFT_OUT).row(n, 0.0) for n in chosen if n not in taken]
        rows += sorted([*found, *left], key=lambda row: _find_position(row["name"], chosen))
    return rows


def _find_position(name: str, names: list[str]) -> int:
    """Return the position of a row; the rows of one check keep their own order."""
    return names.index(name) if name in names else len(names)


def run(exam: Exam, names: Sequence[str], tell: Tell) -> list[Row]:
    """Run one batch of checks, one after the other; `tell` is called at the begin and end of each.

    Each has as many requests at once as the engine takes: two checks at once would have more.
    """
    if catalogue.is_needle(names[0]):
        return _run_needles(exam, names, tell)
    if names[0] in catalogue.PORT:
        tell("the checks of the port")
        return checks.run_checks(exam.subject, names)
    rows = []
    for check in (BY_NAME[name] for name in names):
        told = catalogue.explain_skip(check, exam)
        if told:
            rows.append(told.row(check.name, 0.0))
            continue
        tell(check.name)
        rows.append(_run_check(check, exam))
        tell(f"{check.name}: {rows[-1]['status']}")
    return rows


def _run_check(check: Check, exam: Exam) -> Row:
    asker = exam.asker(catalogue.compute_limit_s(check, exam.promise))
    return _time_check(check.name, lambda: check.judge(exam, asker))


def _time_check(name: str, work: Callable[[], Verdict]) -> Row:
    started = time.monotonic()
    try:
        verdict = work()
    except ApiError as error:
        verdict = make_failure(_NO_ANSWER, "an answer", str(error))
    except Exception as error:  # noqa: BLE001 - one check's end is not that of the run
        told = f"{type(error).__name__}: {error}"
        verdict = make_failure(
            "the answer could not be judged", "an answer of the API's form", told
        )
    return verdict.row(name, time.monotonic() - started)


def _run_needles(exam: Exam, names: Sequence[str], tell: Tell) -> list[Row]:
    """Try one length after the other; a length after one that had no answer is not tried."""
    promised = exam.promise
    lengths = [
        length
        for length in needles.list_lengths(promised.context)
        if catalogue.name_needle(length) in names
    ]
    answer_s = catalogue.estimate_answer_s(needles.count_answer_tokens(promised.context), promised)
    if exam.subject.random_weights:
        told = make_skip(catalogue.MEANINGLESS)
        return [told.row(catalogue.name_needle(length), 0.0) for length in lengths]
    rows: list[Row] = []
    scale: list[needles.Scale] = []
    unanswered: str | None = None
    for length in lengths:
        name = catalogue.name_needle(length)
        slow = needles.explain_too_slow(length, exam.promise.prefill_tok_s, catalogue.NEEDLE_S)
        if slow or unanswered:
            told = slow or make_skip(f"{unanswered} was not answered")
            rows.append(told.row(name, 0.0))
            continue
        tell(f"{name} of {catalogue.name_needle(lengths[-1])}")
        asker = exam.asker(catalogue.NEEDLE_S + answer_s)

        def work() -> Verdict:
            if not scale:
                scale.append(needles.measure_scale(asker))  # noqa: B023 - called at once
            return needles.check_needle(asker, length, scale[0])  # noqa: B023

        rows.append(_time_check(name, work))
        if rows[-1]["status"] == "fail" and rows[-1]["detail"] == _NO_ANSWER:
            unanswered = name
    return rows


def _read_plan(paths: Paths) -> MachinePlan:
    plan = plans.read_machine_plan(paths.plan)
    if not plan:
        raise HostError(*NOT_APPLIED)
    return plan


def build_exam(paths: Paths) -> Exam:
    """Return this machine's own model to test. Raises HostError where it serves nothing."""
    plan = _read_plan(paths)
    if not groups.serves_clients(plan):
        raise groups.make_head_only_error(plan, "the model is asked")
    place = machine.MachineFiles(paths, plan)
    subject = checks.build_subject(
        plan,
        "127.0.0.1",
        tls.compute_fingerprint(read_text(paths.tls_crt)),
        read_text(paths.verify_key).strip(),
    )
    target = MachineTarget(lambda question: machine.answer(place, question))
    return Exam(subject, expectations.from_plan(plan), target)


def add_causes(rows: Sequence[Row], engines: Sequence[str], began_s: float) -> None:
    """Add to checks without an answer why: what the engines wrote since the checks began."""
    failed = [row for row in rows if row["status"] == "fail" and _is_unanswered(row)]
    if not failed:
        return
    for unit in engines:
        lines = units.read_journal(unit, units.FAILURE_LINES, began_s)
        cause = units.explain_unit(unit, lines)
        if cause is None:
            continue
        line = units.strip_log_prefix(cause.line)
        for row in failed:
            row["observed"] += f"; {unit}: {cause.title}: {line}; {cause.fix}"


def _is_unanswered(row: Row) -> bool:
    """Whether the engine gave no answer, or failed at it."""
    return row["detail"] == _NO_ANSWER or "HTTP 5" in row.get("observed", "")


def main(argv: list[str]) -> int:
    """Run the checks that the request on standard input names."""
    request: dict[str, Any] = json.load(sys.stdin)
    if argv[:1] == ["ask"]:
        plan = _read_plan(Paths())
        return answer({"ok": True, **machine.answer(machine.MachineFiles(Paths(), plan), request)})
    if argv[:1] == ["run"]:
        names = [str(name) for name in request["names"]]
        began_s = time.time()
        rows = run(build_exam(Paths()), names, lambda _: None)
        engines = [unit_names.get_engine_unit(item) for item in _read_plan(Paths())["instances"]]
        add_causes(rows, engines, began_s)
        return answer({"ok": True, "checks": rows})
    raise HostError("usage: suite run|ask")
