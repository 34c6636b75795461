"""What is told of a failure, by the lines of what failed and of the kernel."""

from __future__ import annotations

from dataclasses import replace

from kimi_prov.contract.troubles import Trouble
from kimi_prov.on_host.troubles.explain import Explanation, explain_lines
from kimi_prov.on_host.troubles.scan import Patterns

CACHE = Trouble(
    id="diagnose.no_room",
    kind="fault",
    title="The cache fits <fits> tokens",
    match=(r"the estimated maximum length is (?P<fits>\d+)",),
    cause="The lines say so.",
    fix="set kimi_context: <fits>",
    confidence="certain",
)
KILLED = Trouble(
    id="diagnose.killed",
    kind="fault",
    title="The kernel took <name>",
    match=(r"Killed process \d+ \((?P<name>\w+)\)",),
    cause="Memory ran out.",
    fix="free memory",
    leads_to=("host_memory",),
    confidence="certain",
)
ENDED = Trouble(
    id="diagnose.worker_gone",
    kind="symptom",
    title="A worker ended",
    match=("worker died unexpectedly",),
    cause="One of several.",
    fix="look above",
    effect="worker_end",
    confidence="likely",
)


def explain(
    *lines: str, kernel: tuple[str, ...] = (), ended: Trouble = ENDED, unit: str = ""
) -> Explanation | None:
    patterns = Patterns([CACHE, KILLED, ended])
    return explain_lines(lines, kernel, unit=unit, patterns=patterns)


def test_the_surest_cause_is_told_with_its_line_and_fix() -> None:
    found = explain("worker died unexpectedly", "(A pid=7) the estimated maximum length is 83200")
    assert found is not None
    assert (found.title, found.fix) == ("The cache fits 83200 tokens", "set kimi_context: 83200")
    assert found.line == "(A pid=7) the estimated maximum length is 83200"


def test_a_title_says_where_it_is_not_sure_and_a_mere_guess_is_not_told() -> None:
    unsure = replace(ENDED, kind="fault")
    found = explain("worker died unexpectedly", ended=unsure)
    assert found is not None
    assert found.title == "A worker ended (likely)"
    # What happened is sure, although not why.
    symptom = explain("worker died unexpectedly")
    assert symptom is not None
    assert symptom.title == "A worker ended"
    guess = replace(ENDED, confidence="possible")
    assert explain("worker died unexpectedly", ended=guess) is None
    assert explain("nothing that is known") is None
    assert explain() is None


def test_what_an_engine_got_over_did_not_end_it() -> None:
    old = "the estimated maximum length is 83200"
    assert explain(old, "INFO: Application startup complete.", "it ended") is None
    assert explain("INFO: Application startup complete.", old, "it ended") is not None


def test_the_kernel_counts_where_it_is_about_what_failed() -> None:
    killed = ("Out of memory: Killed process 7 (python)",)
    assert explain("port taken", kernel=killed) is None
    followed = explain("worker died unexpectedly", kernel=killed)
    assert followed is not None
    assert (followed.title, followed.line) == ("The kernel took python", killed[0])
    named = ("memcg=/system.slice/kimi-serve@0.service Killed process 7 (python)",)
    assert explain("port taken", kernel=named, unit="kimi-serve@0.service") is not None
    assert explain("port taken", kernel=named, unit="kimi-proxy.service") is None


def test_it_reads_the_rows_that_machines_have() -> None:
    found = explain_lines(
        ["ValueError: No available memory for the cache blocks. Try increasing `x` when starting."]
    )
    assert found is not None
    assert found.fix
    said = found.format_lines()
    assert said[0] == f"cause: {found.title}"
    assert found.line in said[1]


def test_lines_of_any_form_are_read() -> None:
    assert explain("\x00\udcff\x1b[2J" + "x" * 100_000, "") is None
