"""A fault of the program on the machine reaches the control side in the form of every error."""

from __future__ import annotations

import io
import json
import sys

import pytest

from kimi_prov.on_host.__main__ import main


@pytest.mark.parametrize(
    ("sent", "told"), [("[]", "settled: AttributeError: "), ("{", "settled: JSONDecodeError: ")]
)
def test_what_nobody_foresaw_is_one_error_with_its_kind(
    sent: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(sent))
    assert main(["settled"]) != 0
    printed = capsys.readouterr()
    error = json.loads(printed.out.splitlines()[-1])["error"]
    assert error["message"].startswith(told)
    assert error["retryable"] is False
    assert "Traceback" in printed.err


def test_a_subcommand_that_this_version_lacks_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["levitate"]) != 0
    message = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]["message"]
    assert message.startswith("unknown subcommand 'levitate'; there are: ")
