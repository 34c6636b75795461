"""One error on its way from the machine to the operator: its message once, its fix once."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.ansible import remote, send, unit_status
from kimi_prov.packaging.zipapp import build_zipapp
from kimi_prov.runner import failure_reasons
from kimi_prov.runner.events import TaskFinished

if TYPE_CHECKING:
    from pathlib import Path


def on_terminal(command: str) -> dict[str, Any]:
    """Run a command as ssh does where nothing is sent: on a terminal, its streams in one."""
    ours, theirs = os.openpty()
    with subprocess.Popen(["sh", "-c", command], stdin=theirs, stdout=theirs, stderr=theirs) as run:
        os.close(theirs)
        read = b""
        # Linux ends a terminal that nobody writes to any more with an error.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 65536):
                read += part
        os.close(ours)
    return {"rc": run.returncode, "stdout": read.decode(), "stderr": ""}


class Machine:
    """An action plugin's view of a machine: commands run here, as Ansible would run them there."""

    class _Context:
        no_log = False

    class _Connection:
        _play_context: Any

    def __init__(self) -> None:
        self._connection = self._Connection()
        self._connection._play_context = self._Context()

    def _low_level_execute_command(self, command: str, in_data: bytes | None) -> dict[str, Any]:
        if in_data is None:
            return on_terminal(command)
        done = subprocess.run(
            ["sh", "-c", command], input=in_data, capture_output=True, check=False
        )
        return {
            "rc": done.returncode,
            "stdout": done.stdout.decode(),
            "stderr": done.stderr.decode(),
        }


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_zipapp(tmp_path_factory.mktemp("lib") / "kimi-target.pyz"))


def older(folder: Path, answer: dict[str, Any]) -> str:
    """A zipapp of another version, which answers with this."""
    path = folder / "older.pyz"
    path.write_text(f"print({json.dumps(answer)!r})\n")
    return str(path)


def shown(result: dict[str, Any]) -> failure_reasons.Failure:
    """What the operator sees of a plugin's failure."""
    return failure_reasons.explain_failed(
        TaskFinished("box", "p", "Task", "kimi_x", "failed", 1.0, result), "a"
    )


def asked(zipapp: str, *arguments: str, stdin: object = None) -> remote.RemoteError:
    with pytest.raises(remote.RemoteError) as raised:
        remote.call(Machine(), *arguments, stdin=stdin, zipapp=zipapp)  # type: ignore[arg-type]
    return raised.value


def test_an_error_of_the_machine_brings_its_own_fix_and_no_second_one(zipapp: str) -> None:
    error = asked(zipapp, "smoke-test", "0")
    seen = shown(remote.build_failure(error))
    assert seen.cause == "nothing is applied on this machine"
    assert seen.fix == "run `kimi-prov apply` first"


def test_the_fix_of_the_machine_goes_before_the_plugins_general_one(zipapp: str) -> None:
    result = remote.build_failure(asked(zipapp, "smoke-test", "0"), "see the journal")
    assert result["msg"].count("fix:") == 1
    assert shown(result).fix == "run `kimi-prov apply` first"


def test_where_the_machine_knows_no_fix_the_plugins_is_shown(tmp_path: Path) -> None:
    error = asked(older(tmp_path, {"error": {"message": "it broke", "fix": None}}), "serve-ensure")
    assert shown(remote.build_failure(error, "see the journal")).fix == "see the journal"


def test_a_wrong_use_of_a_subcommand_is_an_error_like_any_other(zipapp: str) -> None:
    assert asked(zipapp, "keys", "burn").message.startswith("usage: keys")
    assert asked(zipapp, "no-such").message.startswith("unknown subcommand 'no-such'")


@pytest.mark.parametrize(
    ("answer", "message", "fix"),
    [
        ({"ok": False, "error": "the disk is full"}, "the disk is full", None),
        ({"error": "apt is locked"}, "apt is locked", None),
        ({"refused": "two drivers", "fix": "remove one"}, "two drivers", "remove one"),
    ],
)
def test_a_machine_that_has_an_older_version_is_understood(
    tmp_path: Path, answer: dict[str, Any], message: str, fix: str | None
) -> None:
    error = asked(older(tmp_path, answer), "driver", "key")
    assert (error.message, error.fix) == (message, fix)


def test_a_status_that_is_not_ok_is_an_answer_and_no_error(tmp_path: Path) -> None:
    told = {"ok": False, "provisioned": False, "detail": "not provisioned"}
    zipapp = older(tmp_path, told)
    assert remote.call(Machine(), "status", zipapp=zipapp) == told  # type: ignore[arg-type]


def test_code_that_is_sent_along_fails_in_the_same_words() -> None:
    with pytest.raises(remote.RemoteError) as raised:
        send.call_sent(Machine(), "smoke-test", "0")  # type: ignore[arg-type]
    assert raised.value.message == "nothing is applied on this machine"
    assert raised.value.fix == "run `kimi-prov apply` first"


def test_a_job_that_failed_tells_followers_message_and_fix_apart(
    zipapp: str, tmp_path: Path
) -> None:
    progress = tmp_path / "progress" / "fetch.json"
    weights = {"source": "ftp://x/y", "dir": str(tmp_path / "m"), "progress": str(progress)}
    config = tmp_path / "weights.json"
    config.write_text(json.dumps(weights))
    command = [*remote.PYTHON, zipapp, "fetch", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    told = json.loads(progress.read_text())
    assert told["message"].startswith("kimi_weights_source 'ftp://x/y'")
    unit = {"LoadState": "loaded", "ActiveState": "failed", "SubState": "failed"}
    verdict = unit_status.classify("kimi-fetch.service", {"unit": unit, "progress": told})
    result = remote.build_failure(verdict.message, verdict.fix)
    assert result["msg"].count("fix:") == 1
    assert "hf://owner/repository@revision" in str(verdict.fix)
    assert str(verdict.fix) not in verdict.message
