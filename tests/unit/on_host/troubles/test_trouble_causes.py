"""What is told of several troubles: causes, what followed from them, and what is harmless."""

from __future__ import annotations

from dataclasses import replace

from kimi_prov.contract.troubles import Effect, Kind, Trouble
from kimi_prov.on_host.troubles.causes import Diagnosis, find_causes
from kimi_prov.on_host.troubles.scan import Patterns, Scanner


def row(
    name: str,
    kind: Kind = "fault",
    effect: Effect | None = None,
    *leads_to: Effect,
    unknown: dict[str, str] | None = None,
    fix: str = "",
) -> Trouble:
    return Trouble(
        id=f"diagnose.{name}",
        kind=kind,
        title=f"{name} <value>",
        match=(f"{name} happened(?: with (?P<value>\\w+))?",),
        cause=f"{name} was there.",
        effect=effect,
        leads_to=leads_to,
        unknown=unknown or {},
        fix=fix,
    )


GPU = row("gpu_memory_bad", "fault", None, "hardware_error")
FOLLOW_UP = row("channel_removed", "symptom", "xid_follow_up", "cuda_error")
HANG = row("waiting_long", "symptom", "hang", "hang")
SHORT_WAIT = row("short_wait", "harmless", "hang")
ENGINE = row("engine_gone", "consequence", "engine_end", "engine_end")
WORKER = row("worker_gone", "consequence", "worker_end", "engine_end", fix="Read before it.")
NETWORK = row("network_gone", "fault", "network_error", "network_error")
DOWNLOAD = row("file_late", "symptom", "download_error", "load_error")
REFUSED = row("path_refused", "general", None, "worker_end")
ALL = (REFUSED, DOWNLOAD, GPU, FOLLOW_UP, HANG, SHORT_WAIT, ENGINE, WORKER, NETWORK)


def diagnose(*logs: str) -> Diagnosis:
    scanner = Scanner(Patterns(ALL))
    for number, log in enumerate(logs):
        scanner.begin(f"{number}.log")
        for line in log.splitlines():
            scanner.read(line.strip().encode())
    return find_causes(scanner)


def told(found: Diagnosis) -> dict[str, list[str]]:
    return {
        cause.hit.row.id.partition(".")[2]: [
            hit.row.id.partition(".")[2] for hit in cause.followed_by
        ]
        for cause in found.causes
    }


def test_what_a_cause_brings_is_told_with_it_however_far_it_is() -> None:
    found = diagnose("gpu_memory_bad happened\nwaiting_long happened\nengine_gone happened")
    assert told(found) == {"gpu_memory_bad": ["waiting_long", "engine_gone"]}


def test_a_symptom_without_a_cause_is_told_itself_and_an_end_that_says_where_to_read() -> None:
    assert told(diagnose("waiting_long happened\nengine_gone happened")) == {
        "waiting_long": ["engine_gone"]
    }
    assert told(diagnose("engine_gone happened")) == {}
    assert told(diagnose("engine_gone happened\nworker_gone happened")) == {"worker_gone": []}
    assert told(diagnose("worker_gone happened\nApplication startup complete.")) == {}


def test_two_independent_troubles_are_two_causes() -> None:
    assert set(told(diagnose("gpu_memory_bad happened\nnetwork_gone happened"))) == {
        "gpu_memory_bad",
        "network_gone",
    }


def test_what_came_hours_before_its_cause_is_no_consequence_of_it() -> None:
    early = "May 14 01:00:00 a k: waiting_long happened"
    late = "May 14 09:00:00 a k: network_gone happened"
    cause = diagnose(f"{early}\n{late}").causes
    assert {one.hit.row.id: len(one.followed_by) for one in cause} == {"diagnose.network_gone": 0}


def test_times_join_two_files() -> None:
    engine = "(E) ERROR 05-14 09:00:30 [a] waiting_long happened"
    kernel = "May 14 09:00:00 a kernel: gpu_memory_bad happened"
    assert told(diagnose(engine, kernel)) == {"gpu_memory_bad": ["waiting_long"]}


def test_a_line_of_the_kernel_that_is_printed_a_little_late_is_the_cause() -> None:
    lines = "\n".join(
        [
            "May 14 09:00:00 a kimi: waiting_long happened",
            "May 14 09:00:04 a kernel: gpu_memory_bad happened",
        ]
    )
    assert told(diagnose(lines)) == {"gpu_memory_bad": ["waiting_long"]}


def test_a_harmless_line_is_told_unless_a_cause_explains_it() -> None:
    assert [hit.row.id for hit in diagnose("short_wait happened").harmless] == [
        "diagnose.short_wait"
    ]
    assert diagnose("gpu_memory_bad happened\nshort_wait happened").harmless == []


def test_it_is_told_that_the_engine_answered_again() -> None:
    back = diagnose("waiting_long happened\nINFO: Application startup complete.")
    assert back.causes[0].cause == (
        "waiting_long was there. The engine answered again afterwards (line 2)."
    )
    gone = diagnose("INFO: Application startup complete.\nwaiting_long happened")
    assert gone.causes[0].cause == "waiting_long was there."


def test_a_value_of_the_line_stands_in_the_title() -> None:
    assert diagnose("gpu_memory_bad happened with v80").causes[0].title == "gpu_memory_bad v80"


def test_a_file_that_came_late_is_no_cause_where_the_engine_answered_afterwards() -> None:
    late = "file_late happened\nINFO: Application startup complete.\n"
    assert told(diagnose(late)) == {}
    assert told(diagnose("file_late happened\n")) == {"file_late": []}


def test_a_file_that_ended_the_engine_is_a_cause_though_a_later_start_went_well() -> None:
    found = diagnose("file_late happened\nengine_gone happened\nApplication startup complete.\n")
    assert told(found) == {"file_late": ["engine_gone"]}


def test_what_the_system_refused_counts_where_nothing_else_is_known() -> None:
    refused = "path_refused happened\nworker_gone happened"
    assert told(diagnose(refused)) == {"path_refused": ["worker_gone"]}
    assert set(told(diagnose(refused + "\nnetwork_gone happened"))) == {"network_gone"}
    assert set(told(diagnose(refused + "\nwaiting_long happened"))) == {"waiting_long"}
    assert told(diagnose("path_refused happened\nApplication startup complete.")) == {}


def test_a_trouble_of_one_device_follows_from_no_other_device() -> None:
    start = replace(row("start_failed", "symptom", "xid_follow_up"), same="value")

    def tell(device: str) -> dict[str, list[str]]:
        scanner = Scanner(Patterns([GPU, start]))
        scanner.begin("kernel.log")
        scanner.read(b"gpu_memory_bad happened with 07")
        scanner.read(f"start_failed happened with {device}".encode())
        return told(find_causes(scanner))

    assert tell("07") == {"gpu_memory_bad": ["start_failed"]}
    assert tell("0a") == {"gpu_memory_bad": [], "start_failed": []}
