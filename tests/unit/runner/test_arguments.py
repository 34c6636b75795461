from pathlib import Path

from kimi_prov.runner import arguments
from kimi_prov.runner.arguments import PrivateFolder, Request
from kimi_prov.runner.connection import Access

PRIVATE = PrivateFolder(Path("/run/p"))
PLAIN = Access(Path("/b/ansible.cfg"), (), ())
BOOK, HOSTS = Path("/b/site.yml"), Path("/i/hosts.yml")


def test_a_plain_request_needs_nothing_but_inventory_and_playbook():
    request = Request("apply", BOOK, HOSTS, (HOSTS,))
    assert arguments.make_playbook_arguments(request, PRIVATE, PLAIN) == [
        "-i",
        "/i/hosts.yml",
        "/b/site.yml",
    ]


def test_everything_passes_through_in_a_fixed_order():
    request = Request(
        "apply",
        BOOK,
        Path("/i"),
        (HOSTS, Path("/i/more.yml")),
        limit="a,b",
        tags="engine",
        skip_tags="firewall",
        check=True,
        diff=True,
        vars_files=(Path("/v/one.yml"), Path("/v/two.json")),
        variables={"kimi_key_rotate": True},
    )
    access = Access(Path("/run/p/ansible.cfg"), ("--user=ops", "--forks=2"), ())
    assert arguments.make_playbook_arguments(request, PRIVATE, access) == [
        "-i",
        "/i/hosts.yml",
        "-i",
        "/i/more.yml",
        "--user=ops",
        "--forks=2",
        "--limit",
        "a,b",
        "--tags",
        "engine",
        "--skip-tags",
        "firewall",
        "--check",
        "--diff",
        "-e",
        "@/v/one.yml",
        "-e",
        "@/v/two.json",
        "-e",
        "@/run/p/vars.json",
        "/b/site.yml",
    ]


def test_no_variable_is_on_the_command_line():
    request = Request("key", BOOK, HOSTS, (HOSTS,), variables={"secret": "sk-kimi-canary"})
    assert "canary" not in " ".join(arguments.make_playbook_arguments(request, PRIVATE, PLAIN))


def test_the_environment_is_exactly_this():
    given = arguments.make_environment(
        {},
        config=Path("/b/ansible.cfg"),
        plugins=Path("/k/plugins"),
        private=PRIVATE,
        run_id="r1",
        inventory=Path("/i"),
    )
    assert given == {
        "ANSIBLE_CONFIG": "/b/ansible.cfg",
        "ANSIBLE_ACTION_PLUGINS": "/k/plugins/action",
        "ANSIBLE_FILTER_PLUGINS": "/k/plugins/filter",
        "ANSIBLE_LOCAL_TEMP": "/run/p/tmp",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": "/run/p/s",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_INVENTORY_ENABLED": "script,host_list,auto,yaml,ini,toml",
        # What is to be asked was asked before.
        "ANSIBLE_ASK_PASS": "False",
        "ANSIBLE_BECOME_ASK_PASS": "False",
        "ANSIBLE_ASK_VAULT_PASS": "False",
        "MAX_EVENT_RES": "50000000",
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "KIMI_PROV_RUN": "r1",
        "KIMI_PROV_PROGRESS": "/run/p/progress",
        "KIMI_PROV_KEY_OUT": "/run/p/key",
    }


def test_an_operator_may_still_turn_the_host_key_check_off():
    given = arguments.make_environment(
        {"ANSIBLE_HOST_KEY_CHECKING": "False"},
        config=Path("/c"),
        plugins=Path("/p"),
        private=PRIVATE,
        run_id="r",
        inventory=Path("/i"),
    )
    assert given["ANSIBLE_HOST_KEY_CHECKING"] == "False"
