"""What stands before a message in the logs of people."""

from __future__ import annotations

import pytest

from kimi_prov.on_host.troubles.lines import read_line

MAY_14 = read_line("May 14 23:00:20 gpu-1 kernel: x").time_s


@pytest.mark.parametrize(
    ("text", "process", "message", "timed"),
    [
        ("May 14 23:00:20 gpu-1 kernel: NVRM: x", "kernel", "NVRM: x", True),
        ("May 14 23:00:20 gpu-1 kimi-serve@0[13]: (W) x", "kimi-serve@0", "(W) x", True),
        ("2026-05-14T23:00:20+0200 gpu-1 systemd[1]: x: y", "systemd", "x: y", True),
        ("2026-05-14T23:00:20.123456789Z ERROR: x", "", "ERROR: x", True),
        ("2026-05-14T23:00:20.1Z stderr F ERROR: x", "", "ERROR: x", True),
        ("2026-05-14 23:00:20,123 INFO x", "", "INFO x", True),
        ("[Thu May 14 23:00:20 2026] NVRM: x", "kernel", "NVRM: x", True),
        ("[12345.678901] NVRM: x", "kernel", "NVRM: x", False),
        ("kern  :err   : [ 1345.678901] NVRM: x", "kernel", "NVRM: x", False),
        ("[pod/kimi-0/engine] 2026-05-14T23:00:20Z x", "", "x", True),
        ("engine-1  | ERROR 05-14 23:00:20 [a:1] x", "", "ERROR 05-14 23:00:20 [a:1] x", True),
        ("0: slurmstepd: error: x", "", "slurmstepd: error: x", False),
        ("[2026-05-14 23:00:20 TP0] x", "", "[2026-05-14 23:00:20 TP0] x", True),
        ("\x1b[36m(W pid=1)\x1b[0;0m x", "", "(W pid=1) x", False),
        ('{"log":"ERROR x\\n","time":"2026-05-14T23:00:20.1Z"}', "", "ERROR x", True),
        ('{"MESSAGE":"x","_SYSTEMD_UNIT":"a.service"}', "a.service", "x", False),
        ('{"model": "x"}', "", '{"model": "x"}', False),
        ("", "", "", False),
    ],
)  # fmt: skip
def test_time_and_process_are_told_from_the_message(
    text: str, process: str, message: str, timed: bool
) -> None:
    line = read_line(text)
    assert (line.process, line.message) == (process, message)
    assert line.time_s == (MAY_14 if timed else None)


def test_times_of_several_forms_are_in_one_order() -> None:
    texts = ["Feb 28 23:59:59 a b: x", "2026-03-01T00:00:00Z x", "[2026-03-01 00:00:01 TP0] x"]
    times = [read_line(text).time_s for text in texts]
    assert times == sorted(time for time in times if time is not None)


def test_what_would_steer_a_terminal_is_spelt_out() -> None:
    assert "\x1b" not in read_line("\x1b]0;title\x07 x").full_text
    assert "\x07" not in read_line("\x1b]0;title\x07 x").message
