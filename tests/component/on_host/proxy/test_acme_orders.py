from __future__ import annotations

import os
import pwd
import stat
import time
from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.proxy import acme, converge
from kimi_prov.on_host.system.files import read_json

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {
    "directory_url": "https://ca.example.com/dir",
    "contact": "admin@example.com",
    "names": ["a.example.com", "b.example.com"],
    "challenge": "http-01",
    "port": 8002,
    "dns_hook": None,
    "ca_bundle": None,
}


def test_certbot_answers_by_http_on_the_loopback_alone():
    argv = " ".join(acme.build_command(SETTINGS, "/var/lib/kimi/acme/client"))
    assert "--standalone --http-01-address 127.0.0.1 --http-01-port 8002" in argv
    assert "--domain a.example.com --domain b.example.com" in argv
    assert "--server https://ca.example.com/dir --email admin@example.com" in argv
    assert "--config-dir /var/lib/kimi/acme/client/config" in argv


def test_certbot_calls_the_hook_for_dns_and_registers_without_a_contact():
    settings = {**SETTINGS, "challenge": "dns-01", "port": None, "contact": None}
    argv = acme.build_command(settings, "/home")
    assert argv[argv.index("--manual-auth-hook") + 1] == "/var/lib/kimi/acme/dns-hook auth"
    assert argv[argv.index("--manual-cleanup-hook") + 1] == "/var/lib/kimi/acme/dns-hook cleanup"
    assert "--standalone" not in argv
    assert "--register-unsafely-without-email" in argv


def test_a_self_signed_certificate_serves_until_the_first_is_issued(tmp_path):
    paths = acme.Paths(tmp_path)
    paths.proxy.mkdir(parents=True)
    wish = {"mode": "acme", "names": ["kimi.example.com"]}
    first = tls.ensure(paths, wish)
    assert first["changed"]
    assert not tls.ensure(paths, wish)["changed"]
    issued = tls.make_self_signed(["issued.example.com"])
    paths.acme_pem.write_text(issued)
    found = tls.ensure(paths, wish)
    assert found == {"changed": True, "fingerprint": tls.compute_fingerprint(issued)}
    assert paths.tls_pem.read_text() == issued
    assert not tls.ensure(paths, wish)["changed"]
    # and goes when the operator wants none of it
    again = tls.ensure(paths, {**wish, "mode": "self-signed"})
    assert again["fingerprint"] not in (found["fingerprint"], "")
    assert paths.acme_pem.exists()


def test_a_refused_order_of_other_names_is_forgotten_once_nothing_is_left_to_order(tmp_path):
    paths = acme.Paths(tmp_path)
    paths.state.mkdir(parents=True)
    issued = {"directory_url": SETTINGS["directory_url"], "names": SETTINGS["names"]}
    acme.save_record(paths, {"tried": 1, "problem": {"kind": "refused"}, "issued": issued})
    acme.settle_record(paths)
    assert read_json(paths.acme_state) == {"tried": 1, "problem": None, "issued": issued}


def test_what_the_unit_reads_is_written_once_and_the_hook_goes_with_its_challenge(tmp_path):
    paths = acme.Paths(tmp_path)
    for folder in (paths.etc, paths.home):
        folder.mkdir(parents=True)
    assert acme.install(paths, SETTINGS, "#!/bin/sh\n", check=True)
    assert not paths.acme_settings.exists()
    assert acme.install(paths, SETTINGS, "#!/bin/sh\n")
    assert not acme.install(paths, SETTINGS, "#!/bin/sh\n")
    assert stat.S_IMODE(paths.acme_settings.stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.acme_hook.stat().st_mode) == 0o750
    assert read_json(paths.acme_settings) == SETTINGS
    assert acme.install(paths, SETTINGS, None)
    assert not paths.acme_hook.exists()
    assert not acme.install(paths, SETTINGS, None)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of files where programs are scripts: the test writes them."""
    paths = acme.Paths(tmp_path)
    for folder in (paths.proxy, paths.state, paths.acme, paths.units, tmp_path / "bin"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    me = pwd.getpwuid(os.geteuid())
    monkeypatch.setattr(acme.pwd, "getpwnam", lambda name: me)
    program(tmp_path, "nft", "exit 0")
    program(tmp_path, "systemctl", "exit 0")
    acme.install(paths, SETTINGS, None)
    return paths


def program(folder: Path, name: str, script: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_port_that_cannot_be_opened_is_recorded_as_the_orders_problem(machine, tmp_path):
    program(tmp_path, "nft", "echo no such table >&2; exit 1")
    with pytest.raises(HostError, match="port 80 could not be opened"):
        acme.order(machine)
    record = read_json(machine.acme_state)
    assert "port 80 could not be opened for the challenge: no such table" in str(record["problem"])
    assert record["tried"]
    assert "kimi-prov apply" in record["problem"]["fix"]


def test_nothing_takes_the_place_of_a_certificate_that_was_set_while_one_was_ordered(machine):
    issued = tls.make_self_signed(["issued.example.com"])
    machine.acme_pem.write_text(issued)
    converge.ensure(machine, {"tls": {"mode": "self-signed", "names": ["own"]}, "api_keys": {}})
    own = machine.tls_pem.read_text()
    assert not acme.use_issued(machine)
    assert machine.tls_pem.read_text() == own


def test_leaving_ends_an_order_under_way_and_what_is_cut_off_is_seen_by_the_next(machine, tmp_path):
    program(tmp_path, "systemctl", f"echo $* >> {tmp_path}/asked")
    for name in (unit_names.ACME, unit_names.ACME_TIMER):
        (machine.units / name).write_text("")
    assert acme.stop_ordering(machine, check=True)
    assert acme.stop_ordering(machine)
    assert "stop kimi-acme.service" in (tmp_path / "asked").read_text().splitlines()
    assert not acme.stop_ordering(machine)


def test_a_unit_whose_file_changed_is_read_again(machine, tmp_path):
    """As when a site's proxy was set: the timer is the same, and the order needs it."""
    show = (
        "printf 'Id=kimi-acme.timer\\nActiveState=active\\nUnitFileState=enabled\\n"
        "NeedDaemonReload=no\\n\\nId=kimi-acme.service\\nActiveState=inactive\\n"
        "NeedDaemonReload=yes\\n'"
    )
    asked = tmp_path / "asked"
    program(tmp_path, "systemctl", f"echo $* >> {asked}; case $1 in show) {show};; esac")
    recent(machine)
    acme.ensure(machine, {"acme": SETTINGS, "hook": None})
    assert "daemon-reload" in asked.read_text().splitlines()


def recent(machine: acme.Paths) -> None:
    """Write down a certificate that was issued for what is wanted."""
    machine.acme_pem.write_text(tls.make_self_signed(SETTINGS["names"]))
    record = {name: SETTINGS[name] for name in ("directory_url", "names", "contact")}
    acme.save_record(machine, {"tried": int(time.time()), "problem": None, "issued": record})


def test_a_certificate_that_is_due_as_soon_as_it_came_tells_of_the_clock(
    machine, tmp_path, monkeypatch
):
    recent(machine)
    later = int(time.time()) + (tls.DAYS - 1) * 86400
    monkeypatch.setattr(acme.time, "time", lambda: later)
    record = read_json(machine.acme_state)
    acme.save_record(machine, {**record, "tried": later})
    with pytest.raises(HostError, match="another order is due") as told:
        acme.ensure(machine, {"acme": SETTINGS, "hook": None})
    assert "date -u" in str(told.value.fix)


def test_what_the_timer_orders_for_names_of_before_is_waited_for_and_ordered_again(
    machine, tmp_path
):
    asked, state = tmp_path / "asked", machine.acme_state
    show = "printf 'Id=kimi-acme.service\\nActiveState=activating\\n'"
    recent(machine)
    ordered = tmp_path / "ordered"
    ordered.write_text(state.read_text().replace('"a.example', '"c.example'))
    wished = {**SETTINGS, "names": ["c.example.com", "b.example.com"]}
    # What the second start brings.
    start = f"echo start >> {asked}; [ $(grep -c start {asked}) = 1 ] || cp {ordered} {state}"
    program(tmp_path, "systemctl", f"case $1 in show) {show};; start) {start};; esac")
    done = acme.ensure(machine, {"acme": wished, "hook": None})
    assert done == {"changed": True, "ordered": "other names are set", "warning": None}
    assert asked.read_text().split() == ["start", "start"]


@pytest.mark.parametrize("damage", ["", "{", "\0" * 9])
def test_a_damaged_account_is_never_replaced_by_another(tmp_path, monkeypatch, damage):
    paths = acme.Paths(tmp_path)
    paths.acme.mkdir(parents=True)
    monkeypatch.setattr(acme.pwd, "getpwnam", lambda _: pwd.getpwuid(os.getuid()))
    folder = paths.acme / "client" / "config" / "accounts" / "ca.test" / "dir" / "abc"
    folder.mkdir(parents=True)
    (folder / "private_key.json").write_text(damage)
    client = acme.Client(paths, SETTINGS)
    with pytest.raises(HostError, match="the ACME account is damaged") as raised:
        client.order({})
    assert "kimi-prov restore" in raised.value.fix
    assert (folder / "private_key.json").read_text() == damage
