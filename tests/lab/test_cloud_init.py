"""A bare host that cloud-init brings up from its first boot, with a restart in the middle.

cloud-init is Debian's own, its data source NoCloud. The cloud is stood in for: moto is the bucket,
and a server at 169.254.169.254 tells the machine's role and that it is about to be taken. What ends
the machine is its own power, as on AWS.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bucket_servers
import pytest
import stand_in_python
import yaml
from machines import kimi_prov, make_lab
from waiting import until

from kimi_prov.lab import files, settings
from kimi_prov.lab import operations as commands
from kimi_prov.on_host.lifecycle import session_history
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.rclone import AbsentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bucket_servers import Cloud
    from machines import Host, Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]
NETWORK = "10.93.58"
GATEWAY = f"{NETWORK}.1"
# Of a unit that installs an engine on a machine with other work: only a hang takes as long.
HANGS_S = 3000.0
IDLE = "240s"
SEED = "/var/lib/cloud/seed/nocloud"
# What an image of a cloud has, and what this host has to keep to be reached by the test.
OF_IMAGE = """
datasource_list: [NoCloud]
network: {config: disabled}
preserve_hostname: true
ssh_deletekeys: false
disable_root: false
users: []
"""
# The metadata server's address and the bucket's, forwarded to the stand-ins.
FORWARD = """
[Unit]
Description=The test's stand-in for {what}
[Socket]
ListenStream={listen}
FreeBind=yes
[Install]
WantedBy=sockets.target
"""
PROXY = """
[Unit]
Description=The test's stand-in for {what}
[Service]
ExecStart=/lib/systemd/systemd-socket-proxyd {to}
"""
ADDRESS = """
[Unit]
Before=network-pre.target sockets.target
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/usr/sbin/ip address replace 169.254.169.254/32 dev lo
[Install]
WantedBy=sysinit.target
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, Cloud]]:
    """A bare host with cloud-init, and a bucket that holds the model."""
    folder = tmp_path_factory.mktemp("cloud")
    links = settings.detect_variables().get("kimi_pip_find_links")
    brought = [{"src": str(links), "dest": str(links)}] if links else []
    # Not below /tmp, which a boot empties; render wants the same path here.
    mirror = Path(tempfile.mkdtemp(dir="/var/tmp"))
    python = stand_in_python.pack_running(mirror)
    python.write_overlay(folder / "catalogue")
    brought.append({"src": str(python.archive), "dest": str(python.archive)})
    made = make_lab(
        folder / "inv",
        NETWORK,
        ["spot1"],
        files=brought,
        kimi_weights_source=f"s3://{bucket_servers.BUCKET}/kimi-k2-lab",
        kimi_bucket_endpoint="http://127.0.0.1:9000",
        kimi_idle_stop=IDLE,
        kimi_hour_usd=26,
        kimi_cloud="aws",
        kimi_cloud_give_up="10h",
        kimi_python_mirror=str(mirror),
    )
    made.up()
    try:
        with bucket_servers.s3(folder, GATEWAY) as cloud:
            _fill(cloud)
            cloud.door.role = bucket_servers.keys(cloud.good)
            yield made, cloud
    finally:
        made.down()
        shutil.rmtree(mirror)


def _fill(cloud: Cloud) -> None:
    model = files.build_model("kimi-k2-lab")
    content = {
        path.relative_to(model).as_posix(): path.read_bytes()
        for path in sorted(model.rglob("*"))
        if path.is_file() and path.name != manifests.NAME
    }
    cloud.put("kimi-k2-lab", {**content, manifests.NAME: _manifest(content)})


def _manifest(content: dict[str, bytes]) -> bytes:
    rows = [
        {"path": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
        for name, body in content.items()
    ]
    return json.dumps({"files": rows}).encode()


@pytest.fixture(scope="module")
def host(lab: tuple[Lab, Cloud]) -> Host:
    return lab[0].hosts["spot1"]


def put(host: Host, path: str, text: str) -> None:
    host.ssh(f"mkdir -p $(dirname {path}) && : >{path}")
    packed = base64.b64encode(text.encode()).decode()
    # As much as a command line takes at a time: 57 KiB, whole groups of three bytes.
    for at in range(0, len(packed), 77_824):
        host.ssh(f"echo {packed[at : at + 77_824]} | base64 -d >>{path}")


def as_image(host: Host, cloud: Cloud, user_data: str) -> None:
    """Make of the host what an image of a cloud is, with the user data of its first boot."""
    host.ssh(
        "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y"
        " --no-install-recommends cloud-init >/dev/null",
        timeout=HANGS_S,
    )
    put(host, "/etc/cloud/cloud.cfg.d/99-image.cfg", OF_IMAGE)
    to = cloud.door.url.removeprefix("http://")
    for name, listen in (("metadata", "169.254.169.254:80"), ("bucket", "127.0.0.1:9000")):
        put(host, f"/etc/systemd/system/{name}.socket", FORWARD.format(what=name, listen=listen))
        put(host, f"/etc/systemd/system/{name}.service", PROXY.format(what=name, to=to))
    put(host, "/etc/systemd/system/metadata-address.service", ADDRESS)
    host.ssh("systemctl enable -q metadata-address.service metadata.socket bucket.socket")
    put(host, f"{SEED}/user-data", user_data)
    put(host, f"{SEED}/meta-data", "instance-id: first\n")
    host.ssh("cloud-init clean --logs")


def journal(host: Host, unit: str) -> str:
    return host.ssh(f"journalctl -u {unit} --no-pager -o cat", check=False)


def state(host: Host, unit: str) -> str:
    return host.ssh(f"systemctl show -P ActiveState {unit}", check=False).strip()


def rendered(lab: Lab, folder: Path) -> str:
    words = ["render", "cloud-init", "--inventory", lab.inventory, "--output", folder]
    catalogue = lab.inventory.parent / "catalogue"
    done = kimi_prov(*words, "--catalog", catalogue, timeout=HANGS_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "user-data").read_text()


def upload(folder: Path, cloud: Cloud) -> None:
    """Put the wheel into the bucket, at the place that upload.sh names."""
    (wheel,) = folder.glob("*.whl")
    content = wheel.read_bytes()
    below = f"kimi-prov/{hashlib.sha256(content).hexdigest()}"
    assert (
        f"s3://{bucket_servers.BUCKET}/{below}/{wheel.name}" in (folder / "upload.sh").read_text()
    )
    cloud.put(below, {wheel.name: content})


def test_from_the_first_boot_to_an_answer_over_a_restart_and_to_the_end(
    lab: tuple[Lab, Cloud], host: Host, tmp_path: Path
) -> None:
    made, cloud = lab
    user_data = rendered(made, tmp_path / "folder")
    assert yaml.safe_load(user_data)["write_files"]
    upload(tmp_path / "folder", cloud)
    as_image(host, cloud, user_data)
    assert "Valid" in host.ssh(f"cloud-init schema --config-file {SEED}/user-data")
    commands.restart_host(made.inventory, "spot1")
    # It is at work when the engine's environment grows.
    assert until(lambda: host.ssh("ls /srv/kimi/engines", check=False), HANGS_S, 2), journal(
        host, "kimi-up"
    )
    commands.restart_host(made.inventory, "spot1")
    assert until(lambda: _done(host), HANGS_S, 5), journal(host, "kimi-up")
    assert host.ssh("cloud-init status --wait", check=False).strip().endswith("done")
    answered = chat(host)
    assert '"choices"' in answered, answered
    # Only the role opened the bucket.
    assert host.ssh("ls /etc/kimi/keys").find("bucket-credentials") < 0
    at = host.ssh("stat -c %a /etc/kimi-up/inventory/group_vars/kimi.yml").strip()
    assert at == "644"

    # What the session costs is in the bucket while the machine is there, written by its own unit.
    assert until(lambda: sessions(cloud), HANGS_S, 5), journal(host, "kimi-sessions")
    (going_on,) = sessions(cloud)
    assert (going_on["machine"], going_on["end"]) == ("spot1", None)

    cloud.door.notice = '{"action": "terminate", "time": "2026-11-24T16:00:00Z"}'
    assert until(lambda: "all answers have ended" in journal(host, "kimi-preemption")), journal(
        host, "kimi-preemption"
    )
    assert "AWS will terminate the machine" in journal(host, "kimi-preemption")
    (taken,) = sessions(cloud)
    assert "AWS will terminate the machine" in taken["end"]
    told = chat(host, "-o", "/dev/null", "-w", "%{http_code}%{errormsg}")
    assert told == "503", (told, journal(host, "kimi-rest"), journal(host, "kimi-proxy"))

    assert until(lambda: not host.ssh("echo up", check=False).strip(), HANGS_S, 2)
    # And when it is gone.
    (ended,) = sessions(cloud)
    assert (ended["since"], ended["end"]) == (going_on["since"], "nobody asked")
    assert ended["usd"] > going_on["usd"] > 0


def sessions(cloud: Cloud) -> list[dict[str, Any]]:
    """What the bucket tells of them, read as the next machine reads it."""
    try:
        return session_history.read(cloud.bucket("kimi-sessions"))
    except AbsentError:
        return []


def _done(host: Host) -> bool:
    assert state(host, "kimi-up") != "failed", journal(host, "kimi-up")
    return bool(host.ssh("ls /var/lib/kimi-up/done", check=False).strip())


def chat(host: Host, *more: str) -> str:
    """What the opened port answers to this computer, which is allowed."""
    asked = [{"role": "user", "content": "Hi"}]
    body = json.dumps({"model": "kimi-k2-lab", "max_tokens": 4, "messages": asked})
    key = host.ssh("cat /etc/kimi/keys/verify.key").strip()
    headers = ("-H", "Content-Type: application/json", "-H", f"Authorization: Bearer {key}")
    url = f"https://{host.address}:8000/v1/chat/completions"
    words = ["curl", "-sk", "--noproxy", "*", *more, *headers, "-d", body, url]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout
