"""How the role host_base writes the site's proxy down, and takes it away again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from plan_inputs import plan
from role_templates import ROOT, filled

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
    tmp_path: Path, document: dict[str, Any], kimi: Mapping[str, Any], *options: str
) -> subprocess.CompletedProcess[str]:
    """The role's part on a machine whose /etc/kimi is a folder here."""
    etc = f"{tmp_path}/etc"
    places = {"etc": etc, "apt_proxy": f"{etc}/apt-proxy.conf"}
    places |= {"forward_proxy": f"{etc}/forward-proxy.env"}
    document["paths"] |= places
    part = {"name": "host_base", "tasks_from": "forward_proxy"}
    book = {"hosts": "localhost", "connection": "local", "gather_facts": False}
    book["tasks"] = [{"ansible.builtin.include_role": part}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump([book]))
    variables = {"kimi_plan": document, "kimi_facts": {"kimi": kimi}, "kimi_http_proxy": URL}
    (tmp_path / "vars.json").write_text(json.dumps(variables))
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
    done = run(tmp_path, plan(), {"forward_proxy": True})
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in etc.iterdir()] == ["apt.conf"]
    assert (etc / "apt.conf").read_text() == '// ours\nAPT::Sandbox::User "root";\n'
    assert "changed=2" in done.stdout
    again = run(tmp_path, plan(), {"forward_proxy": True})
    assert "changed=0" in again.stdout


def test_a_check_says_that_it_would_be_written_and_shows_no_password(tmp_path: Path) -> None:
    """Also where the account is the site's own, and no apply made /etc/kimi yet."""
    document = plan(http_proxy=URL)
    done = run(tmp_path, document, {"user": True}, "--check", "--diff", "-vvv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=1" in done.stdout
    assert "canary-word" not in done.stdout + done.stderr
