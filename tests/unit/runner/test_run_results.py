"""What a run came to: exit codes by their order, and what plugins list."""

import pytest

from kimi_prov.errors import ExitCode
from kimi_prov.runner.events import TaskFinished
from kimi_prov.runner.outcome import Outcome


def test_what_a_plugin_changes_is_listed_below_its_task():
    outcome = Outcome({})
    told = {"changed": True, "changes": ["kimi-serve@0.service restarts: environment: X=1 added"]}
    outcome.add(TaskFinished("one", "serve", "Run the engine", "kimi_serve", "changed", 1.0, told))
    outcome.add(TaskFinished("one", "serve", "Copy", "copy", "changed", 1.0, {"changes": 4}))
    assert outcome.changes == [
        ("one", "serve", "Run the engine"),
        ("one", "serve", "  kimi-serve@0.service restarts: environment: X=1 added"),
        ("one", "serve", "Copy"),
    ]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({ExitCode.BLOCKED, ExitCode.UNREACHABLE}, ExitCode.UNREACHABLE),
        ({ExitCode.BLOCKED, ExitCode.UNREACHABLE, ExitCode.FAILED}, ExitCode.FAILED),
        ({ExitCode.FAILED, ExitCode.BAD_INPUT}, ExitCode.BAD_INPUT),
        ({ExitCode.BAD_INPUT, ExitCode.INTERRUPTED}, ExitCode.INTERRUPTED),
        ({ExitCode.BLOCKED}, ExitCode.BLOCKED),
        (set(), ExitCode.OK),
    ],
)
def test_where_several_codes_apply_the_documented_order_decides(codes, expected):
    assert Outcome({}).exit_code(*codes) is expected
