"""Drift on a served host: each kind made by hand and found with its cause, then mended as told."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from machines import KIMI_PROV, kimi_prov, run

if TYPE_CHECKING:
    from pathlib import Path

    from machines import Host

pytestmark = pytest.mark.lab

OWN = "/etc/systemd/system/kimi-serve@0.service.d/50-own.conf"
# By hand, each a kind of its own. OVERRIDE and WEIGHTS are paths; the flipped byte leaves size and
# times as they were.
HARM = r"""
set -e
exec >/dev/null 2>&1
cd /root
echo '# by hand' >> /etc/kimi/firewall.nft
chmod 0666 /etc/tmpfiles.d/kimi.conf
rm /etc/kimi/stage.json
touch /etc/kimi/plan.json.bak
printf '[Service]\nExecStart=\nExecStart=/bin/sleep 9\n' > OVERRIDE
systemctl daemon-reload
systemctl mask kimi-serve@0.service
systemctl disable kimi-proxy.service
systemctl stop kimi-fetch.service
nft insert rule inet kimi guard ip saddr 10.9.9.9 accept
usermod -s /bin/bash kimi
gpasswd -a operator kimi
echo $(echo eve | sha256sum | cut -d ' ' -f 1) eve >> /etc/kimi/proxy/keys.map
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -subj /CN=eve \
  -keyout k -out c
cat c k > /etc/kimi/proxy/tls.pem
cp c /etc/kimi/proxy/tls.crt
ln -sfn /srv/kimi/engines /srv/kimi/engine
touch -r WEIGHTS times
printf '\001' | dd of=WEIGHTS bs=1 seek=9000 conv=notrunc
touch -r times WEIGHTS
umount -l /srv/kimi/ram
apt-get -qq update
apt-get -qq download numactl
dpkg-deb -R numactl_*.deb n
sed -i 's/^Version: .*/&+own/' n/DEBIAN/control
dpkg-deb -b n own.deb
mv own.deb /opt/own.deb
su operator -s /bin/bash -c 'cd / && sudo -n apt-get install -y -q /opt/own.deb'
rm -rf k c n numactl_*.deb times /opt/own.deb
"""
FOUND = {
    ("drift.file", "/etc/kimi/firewall.nft"),
    ("drift.file", "/etc/tmpfiles.d/kimi.conf"),
    ("drift.file_missing", "/etc/kimi/stage.json"),
    ("drift.file_added", "/etc/kimi/plan.json.bak"),
    ("drift.unit_override", OWN),
    ("drift.process", "kimi-serve@0.service"),
    ("drift.unit_masked", "kimi-serve@0.service"),
    ("drift.unit_disabled", "kimi-proxy.service"),
    ("drift.unit_stopped", "kimi-fetch.service"),
    ("drift.firewall", "table inet kimi"),
    ("drift.account", "kimi"),
    ("drift.account", "group kimi"),
    ("drift.key_added", "eve"),
    ("drift.certificate", "/etc/kimi/proxy/tls.crt"),
    ("drift.certificate", "/etc/kimi/proxy/tls.pem"),
    # It serves the certificate of before still.
    ("drift.process", "kimi-proxy.service"),
    ("drift.link", "/srv/kimi/engine"),
    ("drift.weights", "WEIGHTS"),
    ("drift.mount", "/srv/kimi/ram"),
    ("drift.package", "numactl"),
}


def drift(host: Host, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and what is told of the host, held against the schema."""
    done = kimi_prov("drift", host.inventory, "--limit", host.name, "--format", "json", *options)
    document = json.loads(done.stdout)
    closed_form.validate(document, "drift")
    found: dict[str, Any] = document["hosts"][host.name]
    assert document["complete"] is found["complete"]
    return done.returncode, found


def clean(host: Host, *options: str) -> None:
    code, found = drift(host, *options)
    assert (code, found["drift"], found["unseen"]) == (0, [], []), json.dumps(found, indent=1)
    assert found["would_change"] == []


def weights_of(host: Host) -> str:
    return host.ssh("ls /srv/kimi/models/*/*/*.safetensors | head -1").strip()


def test_an_untouched_host_has_none(served_host: Host) -> None:
    clean(served_host, "--weights")
    text = kimi_prov("drift", served_host.inventory, "--limit", served_host.name).stdout
    assert "no drift" in text
    assert "would plan the same" in text


def test_keys_a_rotated_log_and_a_certificate_made_anew_are_none(served_host: Host) -> None:
    rotated = kimi_prov("key", served_host.inventory, "--limit", served_host.name, "--rotate")
    assert rotated.returncode == 0, rotated.stderr
    served_host.ssh("journalctl --rotate; mv /var/log/dpkg.log /var/log/dpkg.log.1")
    clean(served_host)


def test_a_host_that_does_not_answer_was_not_looked_at(served_host: Host, tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(
        "kimi: {vars: {kimi_model: kimi-k2-lab}, "
        "hosts: {gone: {ansible_host: 127.0.0.1, ansible_port: 9}}}\n"
    )
    done = run(KIMI_PROV, "drift", str(tmp_path), "--format", "json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["complete"], document["ok"]) == (1, False, False)
    assert [row["what"] for row in document["hosts"]["gone"]["unseen"]] == ["the machine"]


# It harms the host that others share: what it left would fail them.
@pytest.mark.slow
def test_each_kind_is_found_and_mended_by_its_command(served_host: Host) -> None:
    host = served_host
    weights = weights_of(host)
    host.ssh(HARM.replace("WEIGHTS", weights).replace("OVERRIDE", OWN), timeout=600)
    code, found = drift(host, "--weights")
    wanted = {(name, subject.replace("WEIGHTS", weights)) for name, subject in FOUND}
    rows = {(row["id"], row["subject"]): row for row in found["drift"]}
    assert (code, set(rows), found["unseen"]) == (1, wanted, [])
    assert ("drift.weights", weights) not in {
        (row["id"], row["subject"]) for row in drift(host)[1]["drift"]
    }

    by = rows["drift.package", "numactl"]["by"]
    assert by.startswith("apt-get install /opt/own.deb, by operator (upgrade ")
    # Each by its own tool, though the second names the account too.
    assert rows["drift.account", "kimi"]["by"].startswith("usermod, while root from ")
    assert rows["drift.account", "group kimi"]["by"].startswith("gpasswd, while root from ")
    assert rows["drift.firewall", "table inet kimi"]["observed"] == "ip saddr 10.9.9.9 accept"
    assert rows["drift.process", "kimi-serve@0.service"]["expected"] == "/bin/sleep 9"
    told = {key for key, row in rows.items() if row["since"]}
    # nft leaves no trace.
    assert wanted - told <= {("drift.firewall", "table inet kimi")} | {
        key for key in wanted if key[0] == "drift.process"
    }

    for row in found["drift"]:
        for step in row["fix"].split(" && "):
            if step.startswith("kimi-prov "):
                # The inventory has others.
                assert f" --limit {host.name}" in step
            if step.startswith("kimi-prov key"):
                assert run(KIMI_PROV, *shlex.split(step)[1:]).returncode == 0, step
            elif not step.startswith("kimi-prov") and "restart" not in step:
                host.ssh(step, timeout=300)
    done = host.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    clean(host, "--weights")
