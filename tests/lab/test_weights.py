"""Weights on a real machine: a cut network, a flipped byte, a reboot, a hub with a token."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from machines import CHECKOUT, make_lab, run
from waiting import until
from weights_server import HubHandler, Server

from kimi_prov.lab import model as lab_model
from kimi_prov.lab import operations as commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from subprocess import CompletedProcess

    from machines import Host, Lab

pytestmark = pytest.mark.lab

NETWORK = "10.93.33"
TAGS = ("--tags", "host_base,weights,ram_disk")
MODELS = "/srv/kimi/models/kimi-k2-lab"
PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("model") / "kimi-k2-lab"
    lab_model.make_model(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A machine of this module's own: its link is pulled and its disk is damaged."""
    made = make_lab(tmp_path_factory.mktemp("weights") / "weights", NETWORK, ["shelf"])
    made.up()
    yield made
    made.down()


@pytest.fixture(scope="module")
def shelf(lab: Lab) -> Host:
    return lab.hosts["shelf"]


@pytest.fixture
def serve(lab: Lab) -> Iterator[Callable[..., Server]]:
    """Servers on this computer as the machine sees it."""
    servers = []

    def start(files: dict[str, bytes], *handler: type) -> Server:
        servers.append(Server(files, *handler, host=f"{NETWORK}.1"))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def bring(host: Host, *args: str, **wishes: object) -> CompletedProcess[str]:
    """Bring the weights, and nothing that comes after them, to the machine."""
    done = run(
        *(PLAYBOOK, "-i", str(host.inventory), str(CHECKOUT / "playbooks" / "site.yml")),
        *TAGS,
        *("-e", json.dumps(wishes)),
        *args,
        cwd=CHECKOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def flip(host: Host, path: str) -> None:
    """Change one bit of a file in its middle and leave its times as they were."""
    host.ssh(
        f"""python3 - <<'EOF'
import os
stat = os.stat("{path}")
with open("{path}", "r+b") as stream:
    stream.seek(stat.st_size // 2)
    byte = stream.read(1)[0]
    stream.seek(stat.st_size // 2)
    stream.write(bytes([byte ^ 1]))
os.utime("{path}", ns=(stat.st_atime_ns, stat.st_mtime_ns))
EOF"""
    )


def times(host: Host, folder: str) -> dict[str, str]:
    """When each shard was written: a file that was fetched again is younger."""
    lines = host.ssh(f"cd {folder} && stat -c '%n %.9Y' *.safetensors").splitlines()
    return dict(line.split() for line in lines)


def fetched_again(host: Host, folder: str, before: dict[str, str]) -> set[str]:
    return {name for name, written in times(host, folder).items() if written != before[name]}


def test_a_network_cut_for_twenty_seconds_starts_nothing_over(
    shelf: Host, lab: Lab, serve: Callable[..., Server], files: dict[str, bytes]
) -> None:
    server = serve(files)
    server.behaviour.rate = 100_000
    total = sum(map(len, files.values()))

    def cut() -> None:
        until(lambda: sum(server.behaviour.served.values()) >= total // 4, 300)
        commands.link(lab.inventory, "shelf", up=False)
        time.sleep(20)
        commands.link(lab.inventory, "shelf", up=True)
        server.behaviour.rate = 2_000_000

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        bring(shelf, kimi_weights_source=server.url)
    finally:
        cutter.join()
    asked: dict[str, list[int]] = {}
    for path, headers in server.behaviour.requests:
        offset = headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        asked.setdefault(path.lstrip("/"), []).append(int(offset))
    shards = {name: starts for name, starts in asked.items() if name.endswith(".safetensors")}
    assert any(len(starts) > 1 for starts in shards.values()), shards
    for name, starts in shards.items():
        assert starts[0] == 0, name
        # a shard was at a fifth or more when the link went: none may begin again
        assert all(start > len(files[name]) // 10 for start in starts[1:]), (name, starts)
    assert sum(server.behaviour.served.values()) < total * 1.3
    told = shelf.ssh("journalctl -u kimi-fetch -o cat --no-pager")
    assert "trying again" in told
    rows = shelf.ssh(f"cd {MODELS}/* && sha256sum *.safetensors").splitlines()
    assert {name: digest for digest, name in map(str.split, rows)} == {
        name: hashlib.sha256(content).hexdigest()
        for name, content in files.items()
        if name.endswith(".safetensors")
    }


def test_one_flipped_byte_is_found_and_only_its_shard_is_fetched_again(
    shelf: Host, serve: Callable[..., Server], files: dict[str, bytes]
) -> None:
    server = serve(files)
    bring(shelf, kimi_weights_source=server.url)
    folder = shelf.ssh(f"ls -d {MODELS}/*").strip()
    before = times(shelf, folder)
    shard = sorted(before)[1]
    flip(shelf, f"{folder}/{shard}")
    server.behaviour.served.clear()
    bring(shelf, kimi_weights_source=server.url, weights_reverify=True)
    assert fetched_again(shelf, folder, before) == {shard}
    bodies = {name: size for name, size in server.behaviour.served.items() if name in before}
    assert bodies == {shard: len(files[shard])}
    again = bring(shelf, kimi_weights_source=server.url)
    assert "changed=0" in again.stdout


def test_a_reboot_fills_the_ram_disk_and_mends_what_the_disk_has_lost(
    shelf: Host, lab: Lab, serve: Callable[..., Server], files: dict[str, bytes]
) -> None:
    server = serve(files)
    bring(shelf, kimi_weights_source=server.url)
    folder = shelf.ssh(f"ls -d {MODELS}/*").strip()
    staged = folder.replace("/models/", "/ram/")
    before = times(shelf, folder)
    shard = sorted(before)[2]
    flip(shelf, f"{folder}/{shard}")
    server.behaviour.served.clear()
    commands.restart_host(lab.inventory, "shelf")
    state = "systemctl is-active kimi-stage.service || true"
    assert until(lambda: "inactive" not in shelf.ssh(state))
    shelf.ssh("systemctl start kimi-stage.service")  # waits for the job that is under way
    assert shelf.ssh("stat -f -c %T /srv/kimi/ram").strip() == "tmpfs"
    assert fetched_again(shelf, folder, before) == {shard}
    told = shelf.ssh("journalctl -b -u kimi-stage -o cat --no-pager")
    assert f"{shard} in {folder}" in told
    both = shelf.ssh(f"cd {folder} && sha256sum * && cd {staged} && sha256sum *").splitlines()
    assert len(both) == 2 * len(set(both))
    shelf.ssh(f"test -f {staged}/.kimi-verified")


def test_without_a_ram_disk_the_page_cache_is_warmed_and_the_mount_goes(
    shelf: Host, serve: Callable[..., Server], files: dict[str, bytes]
) -> None:
    server = serve(files)
    wishes = {"kimi_weights_source": server.url}
    bring(shelf, **wishes)
    bring(shelf, kimi_ram_disk="never", **wishes)
    units = shelf.ssh("systemctl list-units --plain --no-legend 'kimi-*' 'srv-kimi*'")
    assert "kimi-warm.service" in units
    assert "kimi-stage.service" not in units
    assert "srv-kimi-ram.mount" not in units
    assert "changed=0" in bring(shelf, kimi_ram_disk="never", **wishes).stdout


def test_a_source_that_is_not_there_is_told_in_one_sentence(
    shelf: Host, serve: Callable[..., Server]
) -> None:
    server = serve({})
    site = str(CHECKOUT / "playbooks" / "site.yml")
    wishes = json.dumps({"kimi_weights_source": server.url})
    done = run(PLAYBOOK, "-i", str(shelf.inventory), site, *TAGS, "-e", wishes, cwd=CHECKOUT)
    assert done.returncode == 2
    assert "kimi-manifest.json: there is no such file" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_hub_is_fetched_from_with_a_token_that_is_seen_nowhere(
    shelf: Host, serve: Callable[..., Server], files: dict[str, bytes], tmp_path: Path
) -> None:
    canary = "hf_canary_4711"
    storage = serve(files)
    handler = type("Here", (HubHandler,), {"storage": storage.url})
    hub = serve(files, handler)
    hub.behaviour.token = canary
    token = tmp_path / "token"
    token.write_text(canary)
    # A token is sent over http within one machine alone: the hub answers on the machine's loopback.
    port = hub.server_address[1]
    shelf.ssh(
        "systemd-run --quiet --collect --unit=lab-hub "
        f"systemd-socket-activate --listen=127.0.0.1:{port} "
        f"/lib/systemd/systemd-socket-proxyd {NETWORK}.1:{port}"
    )
    done = bring(
        shelf,
        "-vvv",
        "--diff",
        kimi_weights_source=f"hf://{HubHandler.repository}@main",
        kimi_hf_endpoint=f"http://127.0.0.1:{port}",
        kimi_hf_token_file=str(token),
    )
    shelf.ssh("systemctl stop lab-hub.service")
    assert canary not in done.stdout + done.stderr
    # the test before left the page cache warmed: the RAM disk is back in its place
    assert shelf.ssh("systemctl is-active kimi-stage.service").strip() == "active"
    assert "kimi-warm" not in shelf.ssh("systemctl list-unit-files 'kimi-*'")
    assert storage.behaviour.served.keys() >= {n for n in files if n.endswith(".safetensors")}
    assert all("Authorization" not in headers for _, headers in storage.behaviour.requests)
    assert canary not in shelf.ssh("journalctl --no-pager -o cat")
    left = shelf.ssh(f"grep -rlF {canary} /etc /srv/kimi /run/kimi /var /root /tmp || true").split()
    assert left == ["/etc/kimi/keys/hub-token"]
    assert shelf.ssh("stat -c %a:%U /etc/kimi/keys/hub-token").strip() == "600:root"
