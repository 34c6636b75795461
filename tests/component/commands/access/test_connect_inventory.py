"""`connect INVENTORY` and `chat INVENTORY`: real Ansible and TLS, and a stand-in of ssh."""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import ssl
import subprocess
import urllib.request
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import check_inputs
import closed_form
import forked
import psutil
import pytest
from chat_stand_in import Engine, serving
from command_line import Done, gives, surroundings, task
from group_hosts import planned
from made_certificates import certificate, signed
from on_terminal import CTRL_C, CTRL_D, PROMPT, OnTerminal
from ssh_stand_in import Machine
from waiting import until

from kimi_prov.acceptance import suite
from kimi_prov.clients.server import describe_server
from kimi_prov.commands.access.connect_inventory import sort_hosts
from kimi_prov.contract import gateways
from kimi_prov.on_host.endpoint import tls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from command_line import Asked, CommandLine

    from kimi_prov.runner.run import FinishedRun

KEY = "sk-kimi-canary-of-an-inventory"
HELLO = "Hello from the stand-in."


class Site:
    """The command line, an inventory of one host behind ssh, and the server of that host."""

    def __init__(self, kimi: CommandLine, machine: Machine, engine: Engine) -> None:
        self.kimi, self.machine, self.engine = kimi, machine, engine
        self.inventory = kimi.home / "hosts.yml"
        kimi.plays(task("kimi_connect", self.describe))

    @property
    def environment(self) -> dict[str, str]:
        """What a process gets that runs Ansible itself."""
        home = {"HOME": str(self.kimi.home), "XDG_STATE_HOME": str(self.kimi.home / "state")}
        return {**home, "PATH": self.machine.path, "ANSIBLE_SSH_RETRIES": "0"}

    def describe(self, asked: Asked) -> dict[str, Any]:
        """Answer as the action does: it is run itself where a test is `whole`."""
        rows = json.loads(self.inventory.read_text())
        hosts = {k: v for group in rows.values() for k, v in group["hosts"].items()}
        files = self.machine.folder / "etc" / "kimi"
        certificate = (files / "proxy" / "tls.crt").read_text()
        plan = json.loads((files / "plan.json").read_text())
        found = describe_server(plan, certificate) | {"login": None}
        found["stand_ins"] = suite.list_stand_ins(plan, {})
        address = found.get("shared") or hosts[asked.host]["ansible_host"]
        return gives({**found, "address": address})

    def run(
        self, *words: object, key: str | None = KEY, whole: bool = False, given: str = ""
    ) -> Done:
        """Run a command; where it is `whole` Ansible asks the machine through ssh's stand-in."""
        env = {"KIMI_API_KEY": key} if key else {}
        done: Done
        if whole:
            ran = forked.run(
                *words, env={**self.environment, **env}, cwd=self.kimi.home, given=given
            )
            done = Done(ran.returncode, ran.stdout, ran.stderr)
        else:
            with surroundings({**os.environ, **env}):
                done = self.kimi.run(*words, given=given)
        assert "Traceback" not in done.stderr
        assert KEY not in done.stdout + done.stderr
        return done

    def host(
        self, *words: object, key: str | None = KEY, code: int = 0, whole: bool = False
    ) -> dict[str, Any]:
        """Give the entry of the one host."""
        line = ("connect", self.inventory, "--format", "json", *words)
        done = self.run(*line, key=key, whole=whole)
        assert done.returncode == code, done.stderr
        assert done.stdout, done.stderr
        document = json.loads(done.stdout)
        closed_form.validate(document, "connect")
        (found,) = document["hosts"].values()
        assert document["ok"] is found["ok"] is (code == 0)
        return found  # type: ignore[no-any-return]


def write(site: Site, **more: Any) -> None:
    """Write the inventory with variables of its one host."""
    row = {"ansible_host": "127.0.0.1", "ansible_python_interpreter": "/python3", **more}
    site.inventory.write_text(json.dumps({"kimi": {"hosts": {"node1": row}}}))


@contextmanager
def served(kimi: CommandLine, folder: Path, pem: str, chain: str | None = None) -> Iterator[Site]:
    engine = Engine(KEY)
    with serving(folder, pem, engine) as port:
        plan = copy.deepcopy(check_inputs.lab()["plan"])
        plan["model"] |= {"name": "kimi-k2.5", "served_names": ["kimi-k2.5", "kimi"]}
        plan["model"] |= {"context": 262144}
        plan["proxy"]["port"] = port
        plan["web"] = {"port": 8443}
        machine = Machine(folder / "machine", plan, chain or tls.extract_certificates(pem))
        site = Site(kimi, machine, engine)
        write(site)
        yield site


@pytest.fixture
def site(kimi: CommandLine, tmp_path: Path) -> Iterator[Site]:
    with served(kimi, tmp_path, tls.make_self_signed(["node1"])) as found:
        yield found


def models(url: str, certificate_file: str) -> int:
    """What a client gets that trusts this file alone."""
    trusted = ssl.create_default_context(cafile=certificate_file)
    request = urllib.request.Request(  # noqa: S310
        f"{url}/models", headers={"Authorization": f"Bearer {KEY}"}
    )
    with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:  # noqa: S310
        return int(answer.status)


def test_a_client_gets_through_with_what_is_told(site: Site) -> None:
    found = site.host(whole=True)
    assert found == site.host()
    assert found["base_url"].startswith("https://127.0.0.1:")
    assert found["model"] == "kimi-k2.5"
    assert found["models"] == ["kimi-k2.5", "kimi"]
    assert (found["answers"], found["messages_api"], found["context"]) == (True, True, 262144)
    assert found["engine"] == {"name": "vllm", "variant": "cpu", "version": "0.32.0"}
    assert found["page_url"] == "https://127.0.0.1:8443/"
    assert found["stand_ins"] == [
        "the model has random weights: its answers have form and no meaning"
    ]
    assert models(found["base_url"], found["certificate_file"]) == 200
    # Without a key nothing fails, and it is said how one gets it.
    text = site.run("connect", site.inventory, key=None).stdout
    assert f"kimi-prov key {site.inventory}" in "".join(text.splitlines())
    assert "--for NAME" in text
    # The private key was asked for by nobody.
    assert not any("tls.pem" in call for call in site.machine.calls)
    # A snippet of it is pasted as it is.
    snippet = site.run("connect", site.inventory, "--for", "curl")
    env = {**site.environment, "KIMI_API_KEY": KEY}
    done = subprocess.run(
        ["bash", "-c", snippet.stdout], capture_output=True, text=True, env=env, check=True
    )
    assert HELLO in done.stdout


def test_what_is_wrong_with_the_way_is_told(site: Site) -> None:
    assert site.host(key="sk-wrong-key", code=1)["detail"].endswith("HTTP 401")
    # Another server at the port than the machine's own.
    site.machine.folder.joinpath("etc/kimi/proxy/tls.crt").write_text(
        tls.extract_certificates(tls.make_self_signed(["node1"]))
    )
    assert "another certificate was shown" in site.host(code=1)["detail"]
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        plan = site.machine.folder / "etc/kimi/plan.json"
        told = json.loads(plan.read_text())
        told["proxy"]["port"] = nobody.getsockname()[1]
        plan.write_text(json.dumps(told))
        done = site.run("connect", site.inventory, "--format", "json", key=None)
        assert done.returncode == 4
        assert "--tunnel" in done.stderr
        assert json.loads(done.stdout)["hosts"]["node1"]["ok"] is False
    plan.unlink()
    done = site.run("connect", site.inventory, whole=True)
    assert done.returncode == 1
    assert "nothing is applied" in done.stderr
    assert f"run `kimi-prov apply {site.inventory}` first" in done.stderr


def test_a_head_serves_for_its_group(site: Site) -> None:
    plan = site.machine.folder / "etc/kimi/plan.json"
    plan.write_text(json.dumps(planned(json.loads(plan.read_text()), 1)))
    found = site.host()
    assert found == {"ok": True, "detail": "it is in a group: clients reach a", "elsewhere": "a"}
    done = site.run("connect", site.inventory, "--for", "curl")
    assert done.returncode == 2
    assert "--limit a" in done.stderr


def gateway_of(site: Site, **more: Any) -> dict[str, Any]:
    """Make the host a gateway, of the address at which the stand-in answers."""
    file = site.machine.folder / "etc/kimi/plan.json"
    plan = json.loads(file.read_text())
    made = {
        "schema": gateways.SCHEMA,
        "gateway": {"name": "node1", "first": "node1", "address": None, "hosts": [], **more},
        "model": {"name": "kimi-k2.5", "served_names": ["kimi-k2.5"]},
        "proxy": plan["proxy"],
        "web": None,
    }
    file.write_text(json.dumps(made))
    # Its own name leads nowhere: ssh's stand-in takes any.
    write(site, ansible_host="gateway.example.com")
    row = json.loads(site.inventory.read_text())["kimi"]["hosts"]["node1"]
    groups = {"kimi": {"hosts": {"gpu1": row}}, "kimi_gateway": {"hosts": {"node1": row}}}
    site.inventory.write_text(json.dumps(groups))
    return plan


def test_a_gateway_answers_at_the_shared_address(site: Site) -> None:
    gateway_of(site, address="127.0.0.1")
    found = site.host("--limit", "node1")
    assert found["base_url"].startswith("https://127.0.0.1:")
    assert (found["answers"], found["engine"], found["context"]) == (True, None, None)
    done = site.run("connect", site.inventory, "--for", "curl", "--limit", "node1")
    assert done.returncode == 0, done.stderr


def test_a_host_behind_gateways_and_the_second_of_them_name_the_first(site: Site) -> None:
    plan = gateway_of(site, name="node1", first="gw1")
    told = {"ok": True, "detail": "it is behind a gateway: clients reach gw1", "elsewhere": "gw1"}
    assert site.host("--limit", "node1") == told
    behind = {"gateways": [{"host": "gw1", "address": "10.0.9.1", "key_name": "gateway.gw1"}]}
    (site.machine.folder / "etc/kimi/plan.json").write_text(json.dumps(plan | behind))
    assert site.host("--limit", "gpu1") == told


def test_what_a_gateway_answers_with_is_told_by_who_is_behind_it(site: Site) -> None:
    plan = gateway_of(site, address="127.0.0.1")
    gateway = json.loads((site.machine.folder / "etc/kimi/plan.json").read_text())
    behind = {"gateways": [{"host": "gw1", "address": "10.0.9.1", "key_name": "gateway.gw1"}]}
    found = {
        name: {**describe_server(document, "PEM"), "stand_ins": [name]}
        for name, document in (("gpu1", plan | behind), ("gw1", gateway))
    }
    finished = SimpleNamespace(outcome=SimpleNamespace(documents=found, failures=[]))
    serving, report = sort_hosts(cast("FinishedRun", finished))
    assert list(report.hosts) == ["gpu1"]
    assert serving["gw1"]["context"] == 262144
    assert serving["gw1"]["engine"]["name"] == "vllm"
    assert serving["gw1"]["models"] == ["kimi-k2.5", "kimi"]
    assert serving["gw1"]["stand_ins"] == ["gpu1"]
    assert serving["gw1"]["shared"] == "127.0.0.1"


def test_an_authority_is_held_to_the_certificate(kimi: CommandLine, tmp_path: Path) -> None:
    authority, pem = signed(["kimi.example.com", "localhost"])
    ca, other = tmp_path / "authority.pem", tmp_path / "other.pem"
    ca.write_text(authority)
    other.write_text(tls.extract_certificates(tls.make_self_signed(["kimi.example.com"])))
    with served(kimi, tmp_path, pem) as site:
        write(site, ansible_host="localhost")
        found = site.host("--ca", ca)
        assert found["certificate_file"] == str(ca)
        assert models(found["base_url"], found["certificate_file"]) == 200
        told = site.host("--ca", other, code=1)["detail"]
        assert "does not verify under it as localhost: unable to get local issuer" in told
        other.write_text("no certificate")
        done = site.run("connect", "https://localhost:9", "--ca", other)
        assert (done.returncode, "holds no certificate" in done.stderr) == (2, True)
        # This computer knows the authority no more than a client does.
        done = site.run("connect", site.inventory)
        assert done.returncode == 1
        assert "--ca FILE" in done.stderr


def test_a_certificate_that_is_over_is_told(kimi: CommandLine, tmp_path: Path) -> None:
    pem = certificate(["localhost"], 100, -1)
    with served(kimi, tmp_path, pem) as site:
        write(site, ansible_host="localhost")
        assert "certificate has expired" in site.host(code=1)["detail"]


class Held:
    """`connect --tunnel` while it runs."""

    def __init__(self, site: Site, *words: object) -> None:
        env = {**site.environment, "KIMI_API_KEY": KEY}
        line = ("connect", site.inventory, "--tunnel", "--every", "0.3", *words)
        self.process = forked.Process(*line, env=env, cwd=site.kimi.home)
        self.document: dict[str, Any] = {}
        lines = []
        for text in self.process.stdout or ():
            lines.append(text)
            if text == "}\n":
                self.document = json.loads("".join(lines))
                break

    def end(self) -> tuple[int, str]:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=60)
        return self.process.wait(), err


def forwards(site: Site) -> list[str]:
    return [call for call in site.machine.calls if "-L" in call]


def test_a_tunnel_goes_as_the_inventory_logs_in(site: Site) -> None:
    write(
        site,
        ansible_port=2222,
        ansible_user="operator",
        ansible_ssh_common_args="-o ProxyJump=gate.example.com",
    )
    held = Held(site, "--format", "json")
    try:
        (found,) = held.document["hosts"].values()
        closed_form.validate(held.document, "connect")
        assert models(found["base_url"], found["certificate_file"]) == 200
        assert (found["login"], found["page_url"], found["answers"]) == ("127.0.0.1", None, True)
        (call,) = forwards(site)
        for word in ("Port=2222", 'User="operator"', "ProxyJump=gate.example.com"):
            assert word in call
        # Of an option that is given twice ssh takes the first.
        assert call.index("ControlPath=none") < call.index("ControlPersist")
        (ssh,) = _children(held.process.pid)
        cut = site.machine.folder / "cut"
        cut.touch()
        ssh.kill()
        assert until(lambda: len(forwards(site)) > 2)
        cut.unlink()
        assert until(lambda: _answers(found))
    finally:
        code, told = held.end()
    assert code == 130
    # What ended it, and once why it could not be opened again.
    assert told.count("trying again") == told.count("administratively prohibited") + 1 == 2
    assert KEY not in told


def _children(pid: int) -> list[Any]:
    return [p for p in psutil.Process(pid).children() if "-L" in p.cmdline()]


def _answers(found: dict[str, Any]) -> bool:
    try:
        return models(found["base_url"], found["certificate_file"]) == 200
    except OSError:
        return False


def test_a_name_that_leads_elsewhere_is_told_with_the_tunnel(
    kimi: CommandLine, tmp_path: Path
) -> None:
    authority, pem = signed(["kimi.example.com"])
    ca = tmp_path / "authority.pem"
    ca.write_text(authority)
    with served(kimi, tmp_path, pem) as site:
        held = Held(site, "--format", "json", "--ca", ca)
        (found,) = held.document["hosts"].values()
        port = found["resolve"]["port"]
        assert found["resolve"] == {
            "name": "kimi.example.com",
            "address": "127.0.0.1",
            "port": port,
        }
        assert found["base_url"] == f"https://kimi.example.com:{port}/v1"
        # What is told is what curl needs.
        resolve = ["--resolve", f"kimi.example.com:{port}:127.0.0.1"]
        line = ["curl", "-sS", "--cacert", ca, *resolve, "-H", f"Authorization: Bearer {KEY}"]
        done = subprocess.run(
            [*line, f"{found['base_url']}/models"], capture_output=True, text=True, check=False
        )
        assert "kimi-k2.5" in done.stdout, done.stderr
        assert held.end()[0] == 130


def test_a_password_is_handed_to_ssh_by_a_file_that_goes(site: Site, tmp_path: Path) -> None:
    write(site, ansible_password="tulip-canary")
    program = site.machine.programs / "sshpass"
    program.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    program.chmod(0o755)
    held = Held(site, "--format", "json")
    code, told = held.end()
    assert held.document["ok"] is True
    assert (code, "tulip" in told) == (130, False)
    assert (site.machine.folder / "password").read_text() == "tulip-canary\n"
    assert not any("tulip" in call for call in site.machine.calls)
    kept = [p for p in site.kimi.home.rglob("*") if p.is_file()]
    assert not any("tulip" in p.read_text(errors="replace") for p in kept if p != site.inventory)


def test_what_does_not_fit_a_tunnel_is_refused(site: Site) -> None:
    (site.machine.folder / "cut").touch()
    done = site.run("connect", site.inventory, "--tunnel", whole=True)
    assert done.returncode == 4
    assert "AllowTcpForwarding" in done.stderr
    assert "\x1b" not in done.stderr
    write(site, ansible_connection="local")
    done = site.run("connect", site.inventory, "--tunnel", whole=True)
    assert "nothing is applied" in done.stderr or "is this computer" in done.stderr
    for words, said in (
        (["--login", "x@y"], "--login: belongs to a rendered folder"),
        (["--namespace", "x"], "--namespace: belongs to a rendered folder"),
        (["--for", "python", "--format", "json"], "a snippet is text"),
        (["--api-key-file", "nosuch"], "nosuch"),
    ):
        done = site.run("connect", site.inventory, *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr


@pytest.mark.parametrize("words", [[], ["--tunnel"]])
def test_a_chat_asks_the_model_of_an_inventory(site: Site, words: list[str]) -> None:
    line = ("chat", site.inventory, *words)
    done = site.run(*line, given="Say hello.", whole=True)
    assert (done.returncode, done.stdout) == (0, f"{HELLO}\n"), done.stderr
    assert bool(forwards(site)) is bool(words)
    assert site.engine.asked[0]["temperature"] == 1.0


def test_ctrl_c_in_a_chat_leaves_the_tunnel(site: Site) -> None:
    env = {**site.environment, "KIMI_API_KEY": KEY}
    chat = OnTerminal(["chat", site.inventory, "--tunnel"], site.kimi.home, env)
    try:
        assert chat.shows("Ctrl-D leaves")
        assert chat.shows(PROMPT)
        chat.type("wait\n")
        assert chat.shows("Hello from")
        chat.type(CTRL_C)
        assert chat.shows("interrupted")
        assert chat.shows(PROMPT)
        chat.type("next\n")
        assert chat.shows("tokens")
        chat.type(CTRL_D)
        assert chat.ends() == 0
    finally:
        chat.kill()
    assert len(forwards(site)) == 1
