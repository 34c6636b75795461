"""How long a server is asked before it counts as one that does not answer."""

from __future__ import annotations

import time

import pytest

from kimi_prov.commands.access import key_check
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.endpoint import api_client

HERE = api_client.Endpoint("127.0.0.1", 8000, "a" * 64)
MODELS = api_client.Reply(200, {}, b'{"data": []}')


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Exception | api_client.Reply]:
    """What is answered, one after the other; the last one again and again. The clock is ours."""
    given: list[Exception | api_client.Reply] = []
    now = [0.0]

    def call(*_: object) -> api_client.Reply:
        answer = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(api_client, "call", call)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    return given


def asked() -> tuple[UserError | None, float]:
    """Return what was wrong, and the seconds that it took to say so."""
    began = time.monotonic()
    try:
        key_check.prove(HERE, "sk-kimi-key", lambda: None)
    except UserError as error:
        return error, time.monotonic() - began
    return None, time.monotonic() - began


def test_a_tunnel_that_opens_late_is_waited_for(
    answers: list[Exception | api_client.Reply],
) -> None:
    answers += [api_client.ApiError("no answer")] * 20 + [MODELS]
    error, seconds = asked()
    assert error is None
    assert 1 < seconds < 30


def test_a_server_that_never_answers_is_given_up(
    answers: list[Exception | api_client.Reply],
) -> None:
    answers.append(api_client.ApiError("no answer at https://127.0.0.1:8000/v1"))
    error, seconds = asked()
    assert error is not None
    assert (error.exit_code, "no answer" in error.message) == (ExitCode.FAILED, True)
    assert 30 < seconds < 32


def test_another_certificate_is_final(answers: list[Exception | api_client.Reply]) -> None:
    answers += [api_client.OtherCertificateError("another certificate was shown"), MODELS]
    error, seconds = asked()
    assert error is not None
    assert (error.exit_code, "another certificate" in error.message) == (ExitCode.FAILED, True)
    assert seconds == 0
