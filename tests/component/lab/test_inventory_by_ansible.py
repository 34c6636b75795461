"""The lab's inventories, read by Ansible itself."""

import pytest

from kimi_prov.errors import UserError
from kimi_prov.lab import inventory


def test_a_malformed_inventory_is_refused_in_ansibles_words(tmp_path):
    (tmp_path / "hosts.yml").write_text("kimi: [\n")
    with pytest.raises(UserError, match="Ansible cannot read this inventory"):
        inventory.load_lab(tmp_path)


def test_ansibles_own_loader_reads_group_variables_and_ranges(tmp_path):
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "kimi.yml").write_text("lab_kind: qemu\nlab_memory_mb: 2048\n")
    (tmp_path / "hosts.ini").write_text("[kimi]\nn[1:2]\n[kimi:vars]\nlab_network=10.9.8.0/24\n")
    (tmp_path / "host_vars").mkdir()
    for number in (1, 2):
        (tmp_path / "host_vars" / f"n{number}.yml").write_text(f"lab_address: 10.9.8.1{number}\n")
    lab = inventory.load_lab(tmp_path)
    assert [(h.name, h.address, h.memory_mb) for h in lab.hosts] == [
        ("n1", "10.9.8.11", 2048),
        ("n2", "10.9.8.12", 2048),
    ]
