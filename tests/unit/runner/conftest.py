import pytest


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    home = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home / "kimi-prov"


@pytest.fixture
def hosts_file(tmp_path):
    path = tmp_path / "hosts.yml"
    path.write_text("kimi:\n  hosts:\n    one: {}\n  vars: {ansible_connection: local}\n")
    return path
