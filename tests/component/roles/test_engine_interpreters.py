"""How the role engine brings an interpreter, and which ones it takes away again."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible.template import Templar, trust_as_template
from golden import planned
from plan_inputs import LAB_SETTINGS, lab_facts

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.catalog.pythons import BASE_URL
from kimi_prov.contract import paths
from kimi_prov.packaging import python_archives
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLE = Path(__file__).resolve().parents[3] / "roles" / "engine"
UV = Path(sys.executable).parent / "uv"
ARCHIVE = "cpython-3.12.99+20300101-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
ROW = {
    "version": "3.12.99",
    "build": "20300101",
    "arch": "x86_64",
    "glibc": "2.17",
    "url": f"{BASE_URL}/20300101/{ARCHIVE.replace('+', '%2B')}",
    "bytes": 1,
    "installed_bytes": 1,
    "source": "this test",
    "confidence": "low",
}
# The builds are made for a directory /install, and that is what they say of themselves.
SYSCONFIG = "lib/python3.12/_sysconfigdata__linux_x86_64-linux-gnu.py"
FILES = {
    "bin/python3.12": b"#!/bin/sh\n",
    "include/python3.12/Python.h": b"",
    SYSCONFIG: b"# system configuration generated and used by the sysconfig module\n"
    b"build_time_vars = {'CC': 'clang', 'INCLUDEPY': '/install/include/python3.12'}\n",
}
PLAN = planned("dgx-h200")
NOW = PLAN["engine"]["env_name"]
HERE, NEWER, OLD = "3.12.16-a", "3.12.17-b", "3.11.2-c"


def evaluated(expression: str, **variables: object) -> Any:
    """What Ansible makes of an expression of the role."""
    return Templar(variables=variables).template(trust_as_template(expression))


def build(mirror: Path) -> str:
    """Pack what has the form of an interpreter's archive, and give its digest."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in FILES.items():
            info = tarfile.TarInfo(f"python/{name}")
            info.mode, info.size = 0o775, len(content)
            tar.addfile(info, io.BytesIO(content))
    (mirror / "20300101").mkdir(parents=True)
    (mirror / "20300101" / ARCHIVE).write_bytes(packed.getvalue())
    return hashlib.sha256(packed.getvalue()).hexdigest()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The mirror's URL."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path / "mirror"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def brought(
    folder: Path, mirror: str, digest: str
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Run uv as the role does, on a plan whose machine lies in `folder`."""
    (folder / "rows").mkdir()
    rows = {"pythons": [{**ROW, "sha256": digest}]}
    (folder / "rows" / "pythons.yaml").write_text(yaml.safe_dump(rows))
    facts = lab_facts()
    facts["python"] |= {"path": "/usr/bin/python3", "version": "3.13.5", "others": []}
    given = LAB_SETTINGS | {"kimi_python_mirror": mirror}
    # The engine that is pinned for 3.12 whatever else is.
    given |= {"kimi_model": "kimi-k2.5", "kimi_weights_source": "hf://a/b", "kimi_engine": "vllm"}
    facts["gpus"] = [
        {"index": 0, "vendor": "nvidia", "model": "NVIDIA H200", "memory_total_bytes": 143771 << 20,
         "uuid": None, "pci": None, "compute_capability": "9.0"}
    ]  # fmt: skip
    made = make_plan(facts, parse_settings(given, host="h1"), load_catalogue(folder / "rows"))
    plan = json.loads(json.dumps(made).replace(paths.ROOT, str(folder / "root")))
    python = plan["installation"]["python"]
    Path(python["dir"]).mkdir(parents=True)
    Path(python["list"]).parent.mkdir(parents=True)
    Path(python["list"]).write_text(json.dumps(python["downloads"]))
    if python["archive"]:
        found = python_archives.find(Path(mirror), python)
        Path(python["archive"]).write_bytes(found.read_bytes())
    tasks = yaml.safe_load((ROLE / "tasks" / "python.yml").read_text())
    [task] = [task for task in tasks if "ansible.builtin.command" in task]
    given = {"kimi_plan": plan, "__engine_run": []}
    given["__engine_uv_environment"] = {**plan["installation"]["uv_environment"]}
    argv = evaluated(task["ansible.builtin.command"]["argv"], **given)
    environment = evaluated(task["environment"], **given)
    words = [word for word in argv if not word.startswith("--setenv=")]
    done = subprocess.run(
        [UV, *words[1:]],
        env={**environment, "HOME": str(folder), "UV_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=False,
        umask=0o022,
    )
    return plan, done


@pytest.mark.parametrize("how", ["directory", "url"])
def test_what_the_plan_says_is_what_uv_unpacks(tmp_path: Path, served: str, how: str) -> None:
    digest = build(tmp_path / "mirror")
    mirror = str(tmp_path / "mirror") if how == "directory" else served
    plan, done = brought(tmp_path, mirror, digest)
    assert done.returncode == 0, done.stderr
    executable = Path(plan["engine"]["python"])
    assert executable.stat().st_mode & 0o7777 == 0o755
    # What compiles when an engine starts finds the headers where they are now.
    told: dict[str, Any] = {}
    exec((executable.parents[1] / SYSCONFIG).read_text(), told)  # noqa: S102
    assert told["build_time_vars"]["CC"] == "cc"
    include = Path(told["build_time_vars"]["INCLUDEPY"])
    assert include.is_relative_to(plan["installation"]["python"]["dir"])
    assert (include / "Python.h").is_file()


def test_other_bytes_than_the_catalogue_s_are_refused_in_words(tmp_path: Path) -> None:
    build(tmp_path / "mirror")
    plan, done = brought(tmp_path, str(tmp_path / "mirror"), "ab" * 32)
    assert done.returncode != 0
    assert "Hash mismatch" in done.stderr
    assert not Path(plan["engine"]["python"]).exists()


def unused(facts: dict[str, Any], *, python: str | None, keep_old: bool) -> list[str]:
    """What the role's own expression gives for a machine that tells these facts."""
    role = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    named = {"name": python} if python else None
    plan = {**PLAN, "installation": {**PLAN["installation"], "python": named}}
    given = {"kimi_plan": plan, "kimi_facts": {"kimi": facts}, "engine_keep_old": keep_old}
    given["__engine_unused"] = evaluated(role["__engine_unused"], **given)
    return sorted(evaluated(role["__engine_unused_pythons"], **given))


def facts(link: str | None = NOW, page: str | None = None, **environments: str) -> dict[str, Any]:
    """A machine with three interpreters; `environments` names those that were brought for some.

    `page`: the one of an environment of the page's.
    """
    used = {name: {"here": HERE, "old": OLD}[of] for name, of in environments.items()}
    return {
        "pythons": [HERE, NEWER, OLD],
        "web_pythons": {"0.12.4-a": page} if page else {},
        "engine_pythons": {NOW if name == "now" else name: of for name, of in used.items()},
        "engine_envs": [NOW, "former"],
        "engine_link": link,
    }


@pytest.mark.parametrize(
    ("told", "python", "keep_old", "gone"),
    [
        # A former environment that is kept for a rollback keeps its interpreter.
        (facts(now="here", former="old"), HERE, True, [NEWER]),
        (facts(now="here", former="old"), HERE, False, [NEWER, OLD]),
        (facts(former="old"), None, False, [HERE, NEWER, OLD]),
        (facts(former="here"), HERE, False, [NEWER, OLD]),
        # So does one that the page has.
        (facts(now="here", page=OLD), HERE, False, [NEWER]),
        # What runs until the switch still reads from the former environment.
        (facts("former", former="old"), HERE, False, []),
        (facts(None), HERE, False, []),
    ],
)
def test_an_interpreter_goes_with_the_last_environment_that_uses_it(
    told: dict[str, Any], python: str | None, keep_old: bool, gone: list[str]
) -> None:
    assert unused(told, python=python, keep_old=keep_old) == sorted(gone)
