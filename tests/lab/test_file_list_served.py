"""Every file on a served machine is in the docs' list, with its owner and mode; secrets are where
the list says and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from file_list import row_of, rows

if TYPE_CHECKING:
    from machines import Host

pytestmark = pytest.mark.lab

LISTED = rows(managed=True)
OURS = (
    "find /etc/kimi /var/lib/kimi /srv/kimi $(ls -d /run/kimi*) -printf '%y %u:%g %m %p\\n'; "
    "find /etc /usr/local -path /etc/kimi -prune -o -name '*kimi*' -printf '%y %u:%g %m %p\\n'"
)
# In its own code the words stand as words.
SECRETS = (
    "grep -rlE 'sk-kimi-[A-Za-z0-9_-]{20}|BEGIN [A-Z ]*PRIVATE KEY-----$' /etc/kimi /var/lib/kimi "
    "/run/kimi /srv/kimi/cache /etc/systemd /etc/apt /var/log /tmp /var/tmp || true"
)


def test_every_file_is_listed_with_its_owner_and_mode(served_host: Host) -> None:
    wrong = []
    for line in served_host.ssh(OURS).splitlines():
        kind, owner, mode, path = line.split(" ", 3)
        row = row_of(path, LISTED)
        # A link has no mode of its own.
        if row is None or not row.allows(owner, int(mode, 8) & ~(0o022 if kind == "l" else 0)):
            wrong.append(line)
    assert wrong == []


def test_secrets_are_only_where_the_list_says(served_host: Host) -> None:
    holding = served_host.ssh(SECRETS).split()
    assert "/etc/kimi/keys/verify.key" in holding
    unlisted = [path for path in holding if not getattr(row_of(path, LISTED), "secret", False)]
    assert unlisted == []
