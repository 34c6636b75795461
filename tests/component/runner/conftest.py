import io

import command_line
import pytest

from kimi_prov.packaging import resources
from kimi_prov.runner import inventory as inventories
from kimi_prov.runner import run as runner
from kimi_prov.runner.arguments import Request
from kimi_prov.show.live.plain import PlainScreen


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


def read(_path, sources, _login):
    """List an inventory of simple YAML without a start of Ansible."""
    return command_line.read_inventory(*sources)


@pytest.fixture
def play(tmp_path, hosts_file):
    """Run tasks (YAML text), or whole plays; gives what it came to and what was shown."""

    def run(tasks, **options):
        book = tmp_path / "book.yml"
        indented = "".join(f"    {line}\n" for line in tasks.strip("\n").splitlines())
        play = f"- hosts: kimi\n  gather_facts: false\n  tasks:\n{indented}"
        book.write_text(tasks if tasks.startswith("- hosts:") else play)
        login = options.get("connection")
        path = options.pop("inventory", hosts_file)
        with pytest.MonkeyPatch.context() as patched:
            if login is None and path.is_file():
                # As Ansible has it, which reads it again for the play.
                patched.setattr(inventories, "_list_inventory", read)
            inventory = inventories.load_inventory(path, login)
        shown = io.StringIO()
        request = Request("apply", book, inventory.path, inventory.sources, **options)
        return runner.run_playbook(request, inventory, PlainScreen(shown)), shown.getvalue()

    assert resources.find_root().joinpath("ansible.cfg").is_file()
    return run
