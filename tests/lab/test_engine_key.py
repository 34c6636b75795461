"""An engine is nobody else's: what others on the machine get from it, and where its key is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from machines import newest_run

if TYPE_CHECKING:
    from machines import Host

pytestmark = pytest.mark.lab

KEY_FILE = "/etc/kimi/machine-key.map"
# Prints the HTTP status, or why there is none.
ASK = """
import http.client, json, sys
path, key = (sys.argv[1:] + [""])[:2]
headers = {"Content-Type": "application/json"}
if key:
    headers["Authorization"] = "Bearer " + open(key).read().split()[1]
engine = http.client.HTTPConnection("127.0.0.1", 8001, timeout=60)
try:
    engine.request("GET", path, headers=headers)
    print(engine.getresponse().status)
except OSError as error:
    print(type(error).__name__)
"""


def ask(host: Host, path: str, *key: str, user: str = "root") -> str:
    """What a user of the machine gets from the engine's own port."""
    host.ssh(f"cat > /tmp/ask.py <<'END'\n{ASK}\nEND\nchmod 755 /tmp/ask.py")
    return host.ssh(f"runuser -u {user} -- python3 /tmp/ask.py {path} {' '.join(key)}").strip()


def test_the_engine_refuses_who_has_no_key_and_no_other_user_reaches_it(served_host: Host) -> None:
    closed = ("/v1/models", "/invocations", "/tokenize", "/metrics", "/version", "/docs")
    assert {path: ask(served_host, path) for path in closed} == dict.fromkeys(closed, "401")
    assert ask(served_host, "/health") == "200"
    assert ask(served_host, "/v1/models", KEY_FILE) == "200"
    assert ask(served_host, "/v1/models", user="games") == "ConnectionRefusedError"
    assert ask(served_host, "/health", user="games") == "ConnectionRefusedError"


def test_the_key_is_in_its_file_and_nowhere_else(served_host: Host) -> None:
    assert served_host.ssh(f"stat -c '%a %U %G' {KEY_FILE}").split() == ["640", "root", "kimi"]
    key = served_host.ssh(f"cut -d' ' -f2 {KEY_FILE}").strip()
    assert len(key) >= 43
    # The pattern comes by standard input: no process has it among its arguments.
    search = (
        "journalctl --no-pager > /tmp/journal; "
        f"cut -d' ' -f2 {KEY_FILE} | grep -rslaF -f - /etc /opt /root /run /srv /tmp /var "
        "/proc/[0-9]*/cmdline /proc/[0-9]*/environ; rm /tmp/journal"
    )
    assert served_host.ssh(search, check=False, timeout=300).split() == [KEY_FILE]
    run = newest_run(served_host.inventory)
    assert not [file for file in run.rglob("*") if file.is_file() and key in file.read_text()]
