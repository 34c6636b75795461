"""Troubles that are really caused on a served host with a real engine: `diagnose` names each.

Each is caused by what lies on the host, as a person or a machine may cause it; engine, download,
proxy and systemd write the lines themselves. Between two troubles all is as it was applied, and the
journal is empty.
"""

from __future__ import annotations

import ssl
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from machines import HANGS_S, kimi_prov, make_lab
from made_certificates import certificate
from sick_host import ENGINE, OTHER, SickHost
from upgrades import chats
from waiting import until

from kimi_prov.contract import unit_names
from kimi_prov.lab import model as lab_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.98"
GATEWAY = f"{NETWORK}.1"
# Built for the instructions that -mxop allows, which no processor of today has.
KERNEL = """
#include <x86intrin.h>
__attribute__((constructor)) static void load(void) {
    volatile __m128i one = _mm_set1_epi8(1);
    one = _mm_rot_epi8(one, one);
}
"""


@dataclass(frozen=True)
class Trouble:
    """How a trouble is caused, which finding names it, and the unit whose line `seen` tells it."""

    cause: str
    provoke: Callable[[SickHost], None]
    seen: str = "Failed with result"
    unit: str = ENGINE


def kill_worker(sick: SickHost) -> None:
    sick.serve()
    sick.forget()
    sick.host.signal(ENGINE, "VLLM::Worker", "KILL")


def use_foreign_instructions(sick: SickHost) -> None:
    """A library of the engine that was built for another processor."""
    built = sick.host.inventory.with_name("kernels.so")
    words = ["gcc", "-mxop", "-shared", "-fPIC", "-x", "c", "-", "-o", str(built)]
    subprocess.run(words, input=KERNEL.encode(), check=True)
    sick.write("/srv/kimi/kernels.so", built.read_bytes(), "755")
    line = sick.do(f"systemctl cat {ENGINE} | sed -n 's/^ExecStart=//p' | tail -1").strip()
    told = f"ExecStart=/usr/bin/env LD_PRELOAD=/srv/kimi/kernels.so {line}"
    sick.set("ExecStart=", told)
    sick.start()


def limit_memory(sick: SickHost) -> None:
    sick.set("LimitAS=3G")
    sick.start()


def take_port(sick: SickHost) -> None:
    hold = 'python3 -c \'import socket, time; s = socket.create_server(("127.0.0.1", 8001)); '
    sick.do(f"systemctl stop {ENGINE}")
    sick.do(f"systemd-run -q --unit=holder {hold}time.sleep(9999)'", undo="systemctl stop holder")
    sick.start()


def take_port_of_proxy(sick: SickHost) -> None:
    hold = 'python3 -c \'import socket, time; s = socket.create_server(("0.0.0.0", 8000)); '
    sick.do(f"systemctl stop {unit_names.PROXY}", undo=f"systemctl start {unit_names.PROXY}")
    sick.do(f"systemd-run -q --unit=holder {hold}time.sleep(9999)'", undo="systemctl stop holder")
    sick.start(unit_names.PROXY)


def cut_shard(sick: SickHost) -> None:
    shard = f"{sick.model}/model-00002-of-00004.safetensors"
    sick.replace(shard, f"truncate -s 1M {shard}")
    sick.start()


def remove_shard(sick: SickHost) -> None:
    shard = f"{sick.model}/model-00002-of-00004.safetensors"
    sick.replace(shard, f"rm {shard}")
    sick.start()


def break_template(sick: SickHost) -> None:
    file = f"{sick.model}/chat_template.jinja"
    sick.replace(file, f"sed -i '1i {{% for turn in messages %}}' {file}")
    sick.start()


def exceed_context(sick: SickHost) -> None:
    sick.set_options("--max-model-len", "10000000")
    sick.start()


def misspell_option(sick: SickHost) -> None:
    sick.set_options("--enable-expert-paralel")
    sick.start()


def fill_shared_memory(sick: SickHost) -> None:
    sick.set("TemporaryFileSystem=/dev/shm:size=64k,mode=1777")
    sick.start()


def remove_interpreter(sick: SickHost) -> None:
    interpreter = f"{sick.plan['engine']['env_dir']}/bin/python"
    sick.do(f"mv {interpreter} /root/python", undo=f"mv /root/python {interpreter}")
    sick.start()


def close_model(sick: SickHost) -> None:
    file = f"{sick.model}/config.json"
    sick.replace(file, f"chmod 600 {file}")
    sick.start()


def limit_files(sick: SickHost) -> None:
    sick.set("LimitNOFILE=24")
    sick.start()


def limit_tasks(sick: SickHost) -> None:
    sick.set("LimitNPROC=1")
    sick.start()


def refuse_token(sick: SickHost) -> None:
    server = sick.serve_files()
    server.behaviour.token = "another"
    sick.fetch(server.url)


def fetch_over_tls(sick: SickHost, days_ago: float, days_left: float, *, trusted: bool) -> None:
    pem = certificate(["weights.example"], days_ago, days_left, (GATEWAY,))
    server = sick.serve_files()
    file = sick.host.inventory.with_name("authority.pem")
    file.write_text(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    sick.write("/root/authority.pem", pem.encode())
    more = {"ca_bundle": "/root/authority.pem"} if trusted else {}
    sick.fetch(server.url.replace("http:", "https:"), **more)


def lack_file(sick: SickHost) -> None:
    kept = {name: data for name, data in sick.files.items() if "00002-of" not in name}
    sick.fetch(sick.serve_files(kept).url)


def cut_file(sick: SickHost) -> None:
    cut = {
        name: data[: len(data) // 2] if "00002-of" in name else data
        for name, data in sick.files.items()
    }
    sick.fetch(sick.serve_files(cut).url)


def cut_network(sick: SickHost) -> None:
    rules = "add table inet cut; add chain inet cut out { type filter hook output priority 0; }; "
    rules += f"add rule inet cut out ip daddr {GATEWAY} tcp sport != 22 ct state new drop"
    server = sick.serve_files()
    sick.do(f"nft '{rules}'", undo="nft delete table inet cut")
    sick.fetch(server.url, stall_s=5)


def fill_disk(sick: SickHost) -> None:
    mount = f"mkdir -p {OTHER} && mount -t tmpfs -o size=4m full {OTHER}"
    sick.do(mount, undo=f"umount {OTHER}; rmdir {OTHER}")
    sick.fetch(sick.serve_files().url, dir=f"{OTHER}/lab")


def lose_name(sick: SickHost) -> None:
    sick.fetch("http://weights.invalid/kimi")


LACKS = "The processor lacks an instruction"
FETCH = unit_names.FETCH
TROUBLES = {
    "killed worker": Trouble("diagnose.worker_died", kill_worker, "died|ended"),
    "SIGILL": Trouble("diagnose.illegal_instruction", use_foreign_instructions),
    "memory": Trouble("diagnose.host_allocation", limit_memory),
    "port": Trouble("diagnose.api_port_taken", take_port, "already in use"),
    "port of the proxy": Trouble(
        "diagnose.proxy_port_taken", take_port_of_proxy, unit=unit_names.PROXY
    ),
    "cut shard": Trouble("diagnose.weights_file_damaged", cut_shard),
    "lost shard": Trouble("diagnose.shard_missing", remove_shard),
    "template": Trouble("diagnose.chat_template_syntax", break_template, "Syntax"),
    "context": Trouble("diagnose.context_above_model", exceed_context),
    "option": Trouble("diagnose.argument_unknown", misspell_option),
    "shared memory": Trouble("diagnose.vllm_shared_memory", fill_shared_memory),
    "interpreter": Trouble("diagnose.unit_exec", remove_interpreter),
    "rights": Trouble("diagnose.engine_file_permission", close_model),
    "open files": Trouble("diagnose.open_files", limit_files),
    "threads": Trouble("diagnose.torch_threads", limit_tasks),
    "token": Trouble("diagnose.source_token_refused", refuse_token, unit=FETCH),
    "clock": Trouble(
        "diagnose.certificate_not_yet_valid",
        lambda sick: fetch_over_tls(sick, -1, 10, trusted=True),
        unit=FETCH,
    ),
    "expired": Trouble(
        "diagnose.source_certificate_expired",
        lambda sick: fetch_over_tls(sick, 10, -1, trusted=True),
        unit=FETCH,
    ),
    "authority": Trouble(
        "diagnose.source_untrusted_certificate",
        lambda sick: fetch_over_tls(sick, 1, 10, trusted=False),
        unit=FETCH,
    ),
    "missing file": Trouble("diagnose.source_file_missing", lack_file, unit=FETCH),
    "cut file": Trouble("diagnose.source_other_bytes", cut_file, unit=FETCH),
    "network": Trouble("diagnose.source_unreachable", cut_network, "trying again", FETCH),
    "disk": Trouble("diagnose.weights_disk_space", fill_disk, unit=FETCH),
    "name": Trouble("diagnose.source_name_resolution", lose_name, "trying again", FETCH),
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SickHost]:
    """The host, served."""
    folder = tmp_path_factory.mktemp("troubles")
    lab_model.make_model(folder / "model")
    files = {file.name: file.read_bytes() for file in (folder / "model").iterdir()}
    lab = make_lab(folder / "inv", NETWORK, ["sick"])
    with lab.running():
        done = lab.hosts["sick"].apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield SickHost(lab.hosts["sick"], GATEWAY, files)


@pytest.fixture
def sick(machine: SickHost) -> Iterator[SickHost]:
    """The same for one trouble; all is taken back at its end."""
    with ExitStack() as undo:
        machine.undo = undo
        yield machine
        # Else it starts again and again while nobody looks.
        machine.do(f"systemctl is-active -q {ENGINE} || systemctl stop {ENGINE}")


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_diagnose_names_what_was_caused(sick: SickHost, trouble: Trouble, tmp_path: Path) -> None:
    trouble.provoke(sick)
    tells = f"journalctl -u '{trouble.unit}' -o cat | grep -qE '{trouble.seen}' && echo yes"
    assert until(lambda: sick.host.ssh(tells, check=False), HANGS_S, 1), sick.journal(trouble.unit)
    told = [row for row in sick.diagnose(tmp_path) if "confidence" in row]
    own = [row for row in told if row["id"] == trouble.cause]
    assert own, (told, sick.journal(trouble.unit))
    assert own[0]["cause"]
    assert own[0]["fix"]
    assert {row["id"] for row in told if row["confidence"] == "certain"} <= {trouble.cause}, told


def test_apply_start_and_verify_answer_with_the_cause(sick: SickHost) -> None:
    """In place of a quoted line, where it happens: of what `apply` cannot repair by itself."""
    host = sick.host
    use_foreign_instructions(sick)
    applied = host.apply()
    assert applied.returncode == 1, applied.stdout + applied.stderr
    assert LACKS in " ".join(applied.stderr.split())
    stopped = kimi_prov("stop", host.inventory, "--limit", host.name)
    assert stopped.returncode == 0, stopped.stderr
    started = kimi_prov("start", host.inventory, "--limit", host.name)
    assert started.returncode == 1, started.stdout + started.stderr
    assert LACKS in " ".join(started.stderr.split())
    host.ssh(f"systemctl stop {ENGINE}")
    asked = kimi_prov("verify", host.inventory, "--limit", host.name)
    assert asked.returncode == 1, asked.stdout + asked.stderr
    assert LACKS in " ".join((asked.stdout + asked.stderr).split())


def test_afterwards_it_serves_as_it_was_applied(machine: SickHost) -> None:
    machine.serve()
    done = machine.host.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=0" in done.stdout.replace("0 changed", "changed=0")
    chats(machine.host)
