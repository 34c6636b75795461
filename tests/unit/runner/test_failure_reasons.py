import pytest

from kimi_prov.errors import ExitCode
from kimi_prov.runner import failure_reasons
from kimi_prov.runner.events import TaskFinished


def ended(status="failed", **result):
    return TaskFinished("box", "plan", "Ask", "kimi_plan", status, 1.0, result)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("root@192.0.2.1: Permission denied (publickey).", "wrong user or key"),
        ("connect to host 192.0.2.1 port 22: Connection refused", "no SSH server"),
        ("connect to host 192.0.2.1 port 22: No route to host", "no route"),
        ("connect to host 192.0.2.1 port 22: Connection timed out", "did not answer in time"),
        ("Host key verification failed.", "host key"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "host key"),
        (
            "ssh: Could not resolve hostname 192.0.2.1: Name or service not known",
            "cannot be resolved",
        ),
        ("WARNING: UNPROTECTED PRIVATE KEY FILE! Permission denied", "may be read by others"),
        ("kex_exchange_identification: Connection closed by remote host", "cut the SSH"),
        ("Data could not be sent to remote host 'x': [Errno 32] Broken pipe", "reason was lost"),
        ("something nobody has seen before", "something nobody has seen before"),
    ],
)
def test_each_way_not_to_reach_a_host_has_its_sentence(said, expected):
    failure = failure_reasons.explain_unreachable(
        ended("unreachable", msg=f"Failed: {said}"), "192.0.2.1"
    )
    assert expected in failure.cause
    assert "\n" not in failure.cause
    assert "192.0.2.1" in failure.cause + failure.fix
    assert failure.exit_code is ExitCode.UNREACHABLE


@pytest.mark.parametrize(
    "said",
    [
        "ssh: connect to host 198.51.100.7 port 22: Connection refused",
        "ssh: connect to host 198.51.100.7 port 22: Connection timed out",
        "root@198.51.100.7: Permission denied (publickey,password).",
        "Connection closed by 198.51.100.7 port 22",
    ],
)
def test_the_address_that_was_tried_is_named_not_the_inventorys(said):
    failure = failure_reasons.explain_unreachable(
        ended("unreachable", msg=f"Failed: {said}"), "192.0.2.1"
    )
    assert "198.51.100.7" in failure.cause
    assert "192.0.2.1" not in failure.cause + failure.fix


@pytest.mark.parametrize(
    "said",
    [
        "Host key verification failed.",
        "root@{}: Permission denied (publickey).",
        "connect to host {} port 22: Connection refused",
        "Could not resolve hostname {}: no such name",
        "Connection closed by {} port 22",
        "something else about {}",
    ],
)
@pytest.mark.parametrize("where", ["$(touch${IFS}x)", "`id`", "a;id", "evil.example"])
def test_a_command_to_paste_has_the_inventorys_address_or_none(said, where):
    told = ended("unreachable", msg=f"Failed: {said.format(where)}")
    for address in ("192.0.2.1", "$(id)"):
        fix = failure_reasons.explain_unreachable(told, address).fix
        assert where not in fix
        assert "$(" not in fix.replace("'$(id)'", "")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"msg": "Missing sudo password"}, "may not become root"),
        ({"msg": "x", "module_stderr": "sudo: a password is required\n"}, "may not become root"),
        (
            {"msg": "sudo: a password is required", "kimi": {"code": "failed"}},
            "may not become root",
        ),
        ({"msg": "ana is not in the sudoers file."}, "may not become root"),
        ({"msg": "/bin/sh: 1: sudo: not found"}, "no sudo on box"),
    ],
)
def test_an_account_that_may_not_manage_the_host_is_bad_input(result, expected):
    failure = failure_reasons.explain_failed(ended(**result), "192.0.2.1")
    assert expected in failure.cause
    assert failure.exit_code is ExitCode.BAD_INPUT


def test_a_host_without_python_counts_as_unreachable():
    said = {"msg": "/bin/sh: 1: /usr/bin/python3: not found", "rc": 127}
    failure = failure_reasons.explain_failed(ended(**said), "192.0.2.1")
    assert "no /usr/bin/python3" in failure.cause
    assert failure.exit_code is ExitCode.UNREACHABLE


def test_a_unit_that_failed_speaks_for_itself():
    """Its journal may name any program of the machine, which was reached and has Python."""
    said = "kimi-serve@0.service: Failed at step NAMESPACE spawning /usr/bin/python3: No such file"
    ours = {"code": "unit", "message": said, "fix": "see its log"}
    failure = failure_reasons.explain_failed(ended(msg=said, kimi=ours), "192.0.2.1")
    assert failure.cause == said
    assert failure.exit_code is ExitCode.FAILED


def test_a_module_speaks_for_itself():
    failure = failure_reasons.explain_failed(ended(msg="Destination /x not writable\nmore"), "a")
    assert failure.cause == "Destination /x not writable"
    assert failure.exit_code is ExitCode.FAILED


def test_a_loop_is_explained_by_what_failed_in_it():
    items = [{"msg": "fine"}, {"failed": True, "msg": "the second broke"}]
    failure = failure_reasons.explain_failed(
        ended(msg="One or more items failed", results=items), "a"
    )
    assert failure.cause == "the second broke"


@pytest.mark.parametrize(
    ("said", "cause", "fix"),
    [
        (
            "E:Could not get lock /var/lib/apt/lists/lock. It is held by process 812 (apt-get)",
            "another program on box is installing packages",
            "fuser -v /var/lib/dpkg/lock-frontend",
        ),
        (
            "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct it",
            "packages on box are half installed",
            "dpkg --configure -a",
        ),
    ],
)
def test_what_keeps_apt_from_its_work_is_recognised(said, cause, fix):
    failure = failure_reasons.explain_failed(ended(msg=said), "a")
    assert cause in failure.cause
    assert fix in failure.fix


def test_a_full_disk_is_recognised():
    failure = failure_reasons.explain_failed(
        ended(msg="OSError: [Errno 28] No space left on device"), "a"
    )
    assert "disk of box is full" in failure.cause
