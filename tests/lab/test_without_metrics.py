"""A host whose inventory wishes for no metrics has nothing of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from machines import Host


def test_nothing_of_metrics_is_there(served_host: Host) -> None:
    left = served_host.ssh(
        "ls -d /var/lib/kimi/metrics/kimi.prom /etc/kimi/keys/metrics.key "
        "/etc/kimi/proxy/metrics-keys.map /etc/kimi-monitor /var/lib/kimi-monitor 2>/dev/null; "
        "ls /etc/systemd/system | grep -E 'kimi-(metrics|node-exporter|prometheus|alertmanager)'; "
        "dpkg-query -W -f='${Package} ${db:Status-Status}\\n' 'prometheus*' 2>/dev/null "
        "| grep ' installed'; ss -Hltn | grep ':9443'; "
        "grep -l metrics /etc/kimi/proxy/haproxy.cfg; "
        "nft list table inet kimi | grep 9443; true"
    )
    assert left == ""


def test_the_collector_writes_none_there_and_says_why(served_host: Host) -> None:
    told = served_host.ssh("python3 -I /srv/kimi/lib/kimi-target.pyz metrics || true")
    assert "no metrics are planned on this machine" in told
    # The watchdog writes its own there, whoever reads it.
    assert "kimi.prom" not in served_host.ssh("ls /var/lib/kimi/metrics 2>/dev/null || true")
