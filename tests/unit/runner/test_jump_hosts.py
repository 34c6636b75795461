"""Behind a jump host the reason keeps its name. The texts are OpenSSH 9.2's, by Debian 12."""

from __future__ import annotations

import pytest

from kimi_prov.errors import ExitCode
from kimi_prov.runner import failure_reasons
from kimi_prov.runner.events import TaskFinished
from kimi_prov.runner.jump_hosts import read_hops

# One failed hop: it ended before ssh read, while ssh read, or before ssh wrote its first line.
CUTS = (
    (
        "kex_exchange_identification: Connection closed by remote host\r\n"
        "Connection closed by UNKNOWN port 65535"
    ),
    (
        "kex_exchange_identification: read: Connection reset by peer\r\n"
        "Connection reset by UNKNOWN port 65535"
    ),
    "banner exchange: Connection to UNKNOWN port 65535: Broken pipe",
)
JUMP = "-o ProxyJump=ops@bastion.example.com:2222"
COMMAND = '-o ProxyCommand="ssh -W %h:%p -q ops@bastion.example.com"'


@pytest.mark.parametrize(
    ("arguments", "hops"),
    [
        (JUMP, {"bastion.example.com": "ssh -p 2222 ops@bastion.example.com"}),
        ("-J ops@bastion", {"bastion": "ssh ops@bastion"}),
        ("-Jbastion", {"bastion": "ssh bastion"}),
        (
            "-o StrictHostKeyChecking=no -J a@one,b@two:22",
            {"one": "ssh a@one", "two": "ssh -J a@one -p 22 b@two"},
        ),
        ("-o 'ProxyJump bastion'", {"bastion": "ssh bastion"}),
        ("-J [2001:db8::1]:22", {"2001:db8::1": "ssh -p 22 2001:db8::1"}),
        (COMMAND, {"bastion.example.com": "ssh -q ops@bastion.example.com"}),
        ("-o ProxyCommand='nc -x proxy:1080 %h %p'", {}),
        ("-o 'ProxyJump", {}),
        ("", {}),
    ],
)
def test_the_hops_are_read_from_the_arguments(arguments: str, hops: dict[str, str]) -> None:
    assert {hop.name: hop.command for hop in read_hops(arguments)} == hops


def explain(said: str, arguments: str = JUMP, cut: str = CUTS[0]) -> failure_reasons.Failure:
    result = {"msg": f"Failed to connect to the host via ssh: {said}\r\n{cut}"}
    event = TaskFinished("box", "plan", "Ask", "kimi_plan", "unreachable", 1.0, result)
    failure = failure_reasons.explain_unreachable(event, "10.0.0.5", arguments)
    assert failure.exit_code is ExitCode.UNREACHABLE
    return failure


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("arguments", [JUMP, COMMAND], ids=["ProxyJump", "ProxyCommand"])
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "ssh: connect to host bastion.example.com port 2222: Connection refused",
            "refused the connection",
        ),
        (
            "ssh: connect to host bastion.example.com port 2222: Connection timed out",
            "did not answer in time",
        ),
        (
            "ssh: Could not resolve hostname bastion.example.com: Name or service not known",
            "cannot be resolved",
        ),
        ("ops@bastion.example.com: Permission denied (publickey).", "wrong user or key"),
        ("Host key verification failed.", "unknown SSH host key"),
    ],
)
def test_a_jump_host_that_fails_is_named_with_what_it_said(
    said: str, words: str, arguments: str, cut: str
) -> None:
    failure = explain(said, arguments, cut)
    assert "10.0.0.5 is behind the jump host bastion.example.com" in failure.cause
    assert words in failure.cause
    assert read_hops(arguments)[0].command in failure.fix
    assert "ansible_host of" not in failure.fix


@pytest.mark.parametrize(
    "said", ["Connection refused", "No route to host", "Name or service not known"]
)
def test_a_jump_host_that_was_reached_is_not_blamed_for_what_lies_behind_it(said: str) -> None:
    failure = explain(f"channel 0: open failed: connect failed: {said}\r\nstdio forwarding failed")
    assert f"cannot reach 10.0.0.5 from there: {said}" in failure.cause
    assert "bastion.example.com was reached" in failure.cause
    assert "ssh -p 2222 ops@bastion.example.com" in failure.fix


def test_a_jump_host_that_may_not_forward_is_told() -> None:
    failure = explain("channel 0: open failed: administratively prohibited: open failed")
    assert "administratively prohibited" in failure.cause
    assert "AllowTcpForwarding" in failure.fix


def test_the_second_of_two_hops_is_tried_through_the_first() -> None:
    said = "ssh: connect to host two port 22: Connection refused"
    failure = explain(said, "-J a@one,b@two")
    assert "the jump host two, which refused" in failure.cause
    assert "ssh -J a@one b@two" in failure.fix


@pytest.mark.parametrize("cut", CUTS)
def test_a_missing_program_of_a_proxy_command_is_told(cut: str) -> None:
    failure = explain("/bin/bash: line 1: exec: nc: not found", "-o ProxyCommand='nc %h %p'", cut)
    assert "its program nc is not on this computer" in failure.cause


def test_the_host_itself_is_blamed_where_it_answered() -> None:
    result = {"msg": "Failed: root@10.0.0.5: Permission denied (publickey)."}
    event = TaskFinished("box", "plan", "Ask", "kimi_plan", "unreachable", 1.0, result)
    failure = failure_reasons.explain_unreachable(event, "10.0.0.5", JUMP)
    assert "10.0.0.5 refused the SSH login" in failure.cause


def test_no_word_of_a_message_is_pasted() -> None:
    said = "ssh: connect to host evil.example port 22: Connection refused"
    assert "evil.example" not in explain(said).fix
