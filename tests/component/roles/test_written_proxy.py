"""How the role host_base writes the site's proxy down, and takes it away again."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2.nativetypes
import pytest
import yaml
from plan_inputs import plan
from role_templates import ROOT, filled

from kimi_prov.ansible.plugins.filter.kimi import FilterModule
from kimi_prov.contract import paths

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
URL = "http://user:canary-word@proxy.example.com:3128"


@pytest.mark.parametrize(
    ("given", "http", "https"),
    [
        ({"http_proxy": URL}, URL, "DIRECT"),
        ({"https_proxy": URL}, "DIRECT", URL),
        ({"http_proxy": URL, "https_proxy": URL}, URL, URL),
    ],
)
def test_one_kind_of_address_alone_leaves_the_other_without_a_proxy(
    given: dict[str, str], http: str, https: str
) -> None:
    """Of apt too, which would take the proxy for http for both."""
    variables = {f"kimi_{name}": url for name, url in given.items()}
    written = filled("host_base", "apt-proxy.conf.j2", plan(**given), **variables)
    settings = [line for line in written.splitlines() if not line.startswith("//")]
    assert settings == [f'Acquire::http::Proxy "{http}";', f'Acquire::https::Proxy "{https}";']


def run(
    tmp_path: Path, document: dict[str, Any], kimi: Mapping[str, Any], *options: str, times: int = 1
) -> subprocess.CompletedProcess[str]:
    """The role's part on a machine whose /etc/kimi is a folder here, so often in a run."""
    etc = f"{tmp_path}/etc"
    places = {"etc": etc, "apt_proxy": f"{etc}/apt-proxy.conf"}
    places |= {"forward_proxy": f"{etc}/forward-proxy.env"}
    document["paths"] |= places
    part = {"name": "host_base", "tasks_from": "forward_proxy"}
    book = {"hosts": "localhost", "connection": "local", "gather_facts": False}
    book["tasks"] = [{"ansible.builtin.include_role": part}] * times
    (tmp_path / "play.yml").write_text(yaml.safe_dump([book]))
    variables = {"kimi_plan": document, "kimi_facts": {"kimi": kimi}, "kimi_http_proxy": URL}
    (tmp_path / "vars.json").write_text(json.dumps(variables))
    return played(tmp_path, *options)


def played(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PLAYBOOK, str(tmp_path / "play.yml"), "-e", f"@{tmp_path / 'vars.json'}", *options],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_ROLES_PATH": str(ROOT / "roles"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_with_the_proxy_goes_what_names_it(tmp_path: Path) -> None:
    """apt refuses a configuration that includes a file which is not there."""
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("forward-proxy.env", "apt-proxy.conf"):
        (etc / name).write_text("x")
    mirror = f'// ours\n#include "{etc}/apt-proxy.conf";\nAPT::Sandbox::User "root";\n'
    (etc / "apt.conf").write_text(mirror)
    done = run(tmp_path, plan(), {"forward_proxy": True}, times=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in etc.iterdir()] == ["apt.conf"]
    assert (etc / "apt.conf").read_text() == '// ours\nAPT::Sandbox::User "root";\n'
    # Both of the first time: the second changes nothing.
    assert done.stdout.count("include_role") == 2
    assert "changed=2" in done.stdout


MIRROR = "https://mirror.example.com/debian"


def written(tmp_path: Path, *, files: Mapping[str, Any]) -> Path:
    """The folder to which the role writes the mirror's settings where the facts tell no such files.

    Of the role's files these alone, for the others belong to the machine.
    """
    etc = tmp_path / "etc"
    etc.mkdir(exist_ok=True)
    document = plan(apt_mirror=MIRROR)
    document["paths"]["etc"] = str(etc)
    system = {"id": "debian", "codename": "bookworm"}
    facts = {"host": {"os": system}, "packages": {"installed": {}, "needrestart": False}}
    facts["kimi"] = {"files": files}
    names = [f"{etc}/apt.conf", f"{etc}/apt.sources"]
    role = ROOT / "roles" / "host_base"
    if not (tmp_path / "templates").exists():
        (tmp_path / "templates").symlink_to(role / "templates")
    wanted = f"__host_base_files | selectattr('dest', 'in', {names}) | differing_files(kimi_facts)"
    copied = {"content": "{{ item.content }}", "dest": "{{ item.dest }}", "mode": "{{ item.mode }}"}
    book = {"hosts": "localhost", "connection": "local", "gather_facts": False}
    book["vars_files"] = [str(role / part / "main.yml") for part in ("defaults", "vars")]
    book["tasks"] = [{"ansible.builtin.copy": copied, "loop": "{{ " + wanted + " }}"}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump([book]))
    variables = {"kimi_plan": document, "kimi_facts": facts}
    (tmp_path / "vars.json").write_text(json.dumps(variables))
    done = played(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return etc


def test_a_mirror_is_written_where_no_package_is_missing(tmp_path: Path) -> None:
    """A change of the driver reads it, and one that was set later."""
    etc = written(tmp_path, files={})
    assert f"URIs: {MIRROR}\n" in (etc / "apt.sources").read_text()
    assert f'"{etc}/apt.sources"' in (etc / "apt.conf").read_text()
    there = {
        str(file): {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "owner": "root",
            "group": "root",
            "mode": "0644",
        }
        for file in etc.iterdir()
    }
    for file in etc.iterdir():
        file.unlink()
    assert not [*written(tmp_path, files=there).iterdir()]


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({}, None),
        ({"http_proxy": URL}, paths.APT_PROXY),
        ({"apt_mirror": MIRROR}, paths.APT_CONFIG),
        ({"apt_mirror": MIRROR, "http_proxy": URL}, paths.APT_CONFIG),
    ],
)
@pytest.mark.parametrize("role", ["host_base", "monitor"])
def test_every_role_s_apt_asks_the_site_s_mirror_by_its_proxy(
    role: str, given: dict[str, str], settings: str | None
) -> None:
    tasks = [
        task
        for file in (ROOT / "roles" / role / "tasks").glob("*.yml")
        for task in yaml.safe_load(file.read_text())
        if "ansible.builtin.apt" in task
    ]
    environment = jinja2.nativetypes.NativeEnvironment()
    environment.filters.update(FilterModule().filters())
    for task in tasks:
        template = environment.from_string(task["environment"])
        seen = template.render(kimi_plan=plan(**given))
        assert seen.get("APT_CONFIG") == settings
        assert ("no_proxy" in seen) is ("http_proxy" in given)
        # A host that only watches has no plan.
        assert role != "monitor" or "APT_CONFIG" not in template.render()
    assert tasks


def test_a_check_says_that_it_would_be_written_and_shows_no_password(tmp_path: Path) -> None:
    """Also where the account is the site's own, and no apply made /etc/kimi yet."""
    document = plan(http_proxy=URL)
    done = run(tmp_path, document, {"user": True}, "--check", "--diff", "-vvv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=1" in done.stdout
    assert "canary-word" not in done.stdout + done.stderr
