"""The action behind `verify`: from here or from the machine, in full or not, one document.

The machine is files of a test, and what it runs is run in this process; it answers as its program
does. Of the model a script answers, over TLS.
"""

from __future__ import annotations

import io
import json
import shlex
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
import scripted_machine
from ansible.errors import AnsibleConnectionFailure
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task
from ansible.plugins.loader import connection_loader
from ansible.template import Templar

from kimi_prov.ansible.plugins.action.kimi_verify import ActionModule
from kimi_prov.contract.gateways import SCHEMA
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.acceptance import catalogue, run
from kimi_prov.on_host.endpoint import tls
from kimi_prov.packaging.zipapp import make_zipapp_bytes
from kimi_prov.runner.arguments import PROGRESS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scripted_machine import Served


class Remote(ActionModule):
    """Runs what the machine is told as the machine would; `lost` from the named check on."""

    served: Served
    lost = ""

    def _low_level_execute_command(self, cmd: str, **more: Any) -> dict[str, Any]:
        words, data = shlex.split(cmd), more.get("in_data")
        if "suite" in words:
            request = data[len(make_zipapp_bytes()) :]
            assert self.served.model.key not in cmd + request.decode()
            if self.lost and self.lost in request.decode():
                # As the connection plugin does where ssh ends with 255.
                raise AnsibleConnectionFailure("Connection reset by peer")
            return _answered(words[words.index("suite") + 1 :], request.decode())
        if "runtime" in words:
            return _ok(json.dumps(_runtime(self.served)))
        assert words[:2] == ["cat", "/etc/kimi/keys/verify.key"], cmd
        return _ok(self.served.model.key)


def _ok(text: str) -> dict[str, Any]:
    return {"rc": 0, "stdout": text, "stderr": ""}


def _answered(words: list[str], request: str) -> dict[str, Any]:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.stdin", io.StringIO(request))
        patched.setattr("sys.stdout", out)
        assert run.main(words) == 0
    return _ok(out.getvalue())


def _runtime(served: Served) -> dict[str, Any]:
    return {
        "ok": True,
        "plan": served.plan,
        "certificate": Paths(served.root).tls_crt.read_text(),
        "certificate_standing": None,
        "instances": [{"index": 0, "unit": {}, "processes": []}],
        "listening": {"8001": ["127.0.0.1"]},
    }


@pytest.fixture(scope="module")
def certificate() -> str:
    return tls.make_self_signed(["localhost"])


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: str) -> Iterator[Served]:
    with scripted_machine.machine(tmp_path, monkeypatch, certificate) as found:
        found.exam()
        monkeypatch.setattr(run, "Paths", lambda: Paths(found.root))
        monkeypatch.setenv(PROGRESS, str(tmp_path / "progress"))
        yield found


def ran(
    served: Served,
    *,
    transport: str,
    lost: str = "",
    hostvars: dict[str, Any] | None = None,
    **selection: Any,
) -> dict[str, Any]:
    """What one run of the action came to."""
    context, loader = PlayContext(), DataLoader()
    task = Task()
    task.args = {"outside": [], "selection": selection}
    connection = connection_loader.get("local", context, None)
    connection.transport = transport
    action = Remote(task, connection, context, loader, Templar(loader=loader), None)
    action.served, action.lost = served, lost
    host = {"inventory_hostname": "node1", "ansible_host": "127.0.0.1"}
    done: dict[str, Any] = action.run(task_vars={**host, "hostvars": hostvars or {}})
    return done


def verified(served: Served, **options: Any) -> dict[str, Any]:
    """The host's document of one run of the action."""
    document: dict[str, Any] = ran(served, **options)["kimi_document"]
    whole = {"schema": "kimi-prov/verify/v1", "ok": document["ok"], "hosts": {"node1": document}}
    closed_form.validate(whole, "verify")
    return document


@pytest.mark.parametrize(("transport", "vantage"), [("local", "control"), ("ssh", "machine")])
def test_the_full_suite_runs_from_either_side(
    served: Served, tmp_path: Path, transport: str, vantage: str
) -> None:
    served.model.faults = {"split-think"}
    document = verified(served, transport=transport, suite="full", leave=["placement"])
    assert document["vantage"] == vantage
    assert document["suite"] == "full"
    rows = {row["name"]: row for row in document["checks"]}
    of_model = [name for name in rows if name in catalogue.NAMES or name.startswith("needles-")]
    assert set(of_model) >= set(catalogue.NAMES[:-1]) | {"needles-10k", "needles-22k"}
    assert [name for name in rows if rows[name]["status"] == "fail"] == ["special-tokens"]
    assert rows["code"]["status"] == "ok"
    assert rows["placement"] | {"seconds": 0} == {
        "name": "placement", "status": "skip", "detail": catalogue.LEFT_OUT, "seconds": 0,
    }  # fmt: skip
    told = (tmp_path / "progress").read_text()
    assert '"phase": "verify"' in told
    assert "needles" in told
    assert served.model.key not in told + json.dumps(document)


def test_plain_ansible_runs_the_basic_suite(served: Served) -> None:
    document = verified(served, transport="local")
    names = [row["name"] for row in document["checks"]]
    assert names == [
        *catalogue.PORT[:-1],
        *("environment", "placement", "engine-on-loopback", "outsider-refused", "certificate"),
    ]
    assert (document["suite"], document["unproven"]) == ("basic", [])


def test_a_machine_that_is_lost_half_way_fails_what_it_did_not_answer(served: Served) -> None:
    document = verified(served, transport="ssh", lost='"code"', suite="full", leave=["needles"])
    rows = {row["name"]: row for row in document["checks"]}
    assert rows["facts"]["status"] == "ok"
    assert rows["code"]["status"] == "fail"
    assert "Connection reset by peer" in rows["code"]["observed"]
    assert rows["prefix-cache"]["status"] == "ok"


def test_a_machine_that_is_lost_at_the_door_leaves_the_rest(served: Served) -> None:
    document = verified(served, transport="local", lost='"code"', suite="full", leave=["needles"])
    rows = {row["name"]: row for row in document["checks"]}
    assert rows["code"]["status"] == "skip"
    assert "the connection was lost: Connection reset by peer" in rows["code"]["detail"]
    assert rows["prefix-cache"]["status"] == "ok"


def test_a_run_of_which_nothing_was_run_has_not_passed(served: Served) -> None:
    document = verified(served, transport="local", suite="basic", only=["certificate"])
    assert {row["status"] for row in document["checks"]} == {"skip"}
    assert document["ok"] is False


def gateway(served: Served) -> None:
    """Make the machine a gateway: it has no engine, and answers for one that has."""
    served.plan |= {"schema": SCHEMA, "instances": [], "gateway": {"hosts": [{"host": "gpu1"}]}}
    served.plan["model"] = {"served_names": ["kimi-test"], "random_weights": False}
    for name in ("engine", "speculative", "tuning", "throughput"):
        del served.plan[name]
    Paths(served.root).plan.write_text(json.dumps(served.plan))


@pytest.mark.parametrize("transport", ["local", "ssh"])
@pytest.mark.parametrize("suite", ["basic", "full"])
def test_a_gateway_is_asked_what_it_changes(served: Served, transport: str, suite: str) -> None:
    gateway(served)
    document = verified(served, transport=transport, suite=suite)
    names = [row["name"] for row in document["checks"]]
    assert names == [
        *("tls", "no-key-refused", "wrong-key-refused", "engine-pages-closed"),
        *("models", "chat", "streaming", "outsider-refused", "certificate"),
    ]
    rows = {row["name"]: row["status"] for row in document["checks"]}
    assert {rows[name] for name in ("no-key-refused", "chat", "streaming")} == {"ok"}
    assert (document["ok"], document["suite"]) == (True, "basic")


def test_a_gateway_says_what_stands_in_on_the_machines_behind_it(served: Served) -> None:
    gateway(served)
    done = {"kimi_document": {"stand_ins": ["a small model stands in"]}}
    document = verified(served, transport="local", hostvars={"gpu1": {"verify_done": done}})
    assert "behind it: a small model stands in" in document["stand_ins"]
    assert verified(served, transport="local", hostvars={"gpu1": {}})["stand_ins"] == []


def test_a_gateway_of_which_nothing_is_chosen_is_not_asked(served: Served) -> None:
    gateway(served)
    done = ran(served, transport="local", suite="full", only=["code"])
    assert done["skipped"]
    assert "kimi_document" not in done


def test_the_other_gateway_is_asked_for_the_page_that_it_hands_on_to(served: Served) -> None:
    gateway(served)
    served.plan["gateway"]["page"] = {"port": served.plan["proxy"]["port"]}
    document = verified(served, transport="local", only=["page"])
    (row,) = [row for row in document["checks"] if row["name"] == "page"]
    # What answers here is an API, and no page.
    assert row["status"] == "fail"
