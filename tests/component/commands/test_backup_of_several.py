"""An archive that is one file is refused for several hosts: by our own plugins, from the wheel."""

import pytest

# Our own plugin, on machines that have no code of ours.
BACKUP = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_backup:
        work: "{{ backup_work }}"
        file: "{{ backup_file }}"
        recipients: "{{ backup_recipients | default([]) }}"
"""


WEB = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_web_data: {work: "{{ web_work }}", file: "{{ web_file }}"}
"""


@pytest.mark.parametrize(
    ("playbook", "text", "words"),
    [
        ("backup", BACKUP, ["backup", "HOSTS", "--to", "one"]),
        ("web", WEB, ["web", "restore", "HOSTS", "one.tar.gz", "--yes"]),
    ],
)
def test_one_file_is_not_for_several_hosts(installed, local, playbook, text, words):
    (installed.home / "one.tar.gz").write_bytes(b"\x1f\x8b of a kind")
    installed.playbook(playbook, text)
    hosts = local("one", "two")
    done = installed.run(*(hosts if word == "HOSTS" else word for word in words))
    assert done.returncode == 2
    assert "is one file for 2 hosts" in done.stderr
    assert "--limit" in done.stderr
