"""The command line as a user has it: out of the built wheel, in an empty folder.

The playbooks and three of the plugins in it are replaced by small ones that need no machine.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import command_line
import pytest
import slurm_stand_in
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

REPOSITORY = Path(__file__).resolve().parents[3]

ECHO = """
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        return {"changed": False, **self._task.args}
"""
KEY = """
import json
import os

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        host = task_vars["inventory_hostname"]
        key = None if host == "seen" else "sk-kimi-canary-once"
        line = {"host": host, "key": key, "detail": "shown before"}
        with open(os.environ["KIMI_PROV_KEY_OUT"], "a") as stream:
            stream.write(json.dumps(line) + "\\n")
        return {"changed": bool(self._task.args["rotate"])}
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The wheel of this checkout, or where `make dist` asks, the one that is to be handed out."""
    if made := os.environ.get("KIMI_PROV_DIST"):
        return next(Path(made).glob("*.whl"))
    folder = tmp_path_factory.mktemp("wheel")
    return Path(next(iter(WheelBuilder(str(REPOSITORY)).build(directory=str(folder)))))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    if made := os.environ.get("KIMI_PROV_DIST"):
        return next(Path(made).glob("*.tar.gz"))
    folder = tmp_path_factory.mktemp("sdist")
    return Path(next(iter(SdistBuilder(str(REPOSITORY)).build(directory=str(folder)))))


class Installed:
    """An unpacked wheel and a home of its own."""

    def __init__(self, site, home):
        self.site = site
        self.home = home
        self.runs = home / "state" / "kimi-prov" / "runs"
        # Files are links to those of all tests, and are replaced, never written to.
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "PYTHONPATH": str(site),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def write(self, name, text):
        path = self.site / "kimi_prov" / name
        path.unlink(missing_ok=True)
        path.write_text(text)

    def playbook(self, name, text):
        self.write(f"_bundle/playbooks/{name}.yml", text)

    def plugin(self, name, text):
        self.write(f"ansible/plugins/action/{name}.py", text)

    def argv(self, *words):
        code = "from kimi_prov.cli import main; main()"
        return [sys.executable, "-c", code, *map(str, words)]

    def run(self, *words, **options):
        return subprocess.run(
            self.argv(*words),
            check=False,
            capture_output=True,
            text=True,
            cwd=self.home,
            env={**self.environment, **options.pop("env", {})},
            stdin=subprocess.DEVNULL,
            timeout=120,
            **options,
        )

    def start(self, *words, **options):
        return subprocess.Popen(
            self.argv(*words),
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            **options,
        )


@pytest.fixture(scope="session")
def unpacked(wheel, tmp_path_factory):
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # What is imported is compiled once, as an installation does it.
    code = "import forked; forked.read_code(); import kimi_prov.ansible.remote"
    helpers = str(Path(__file__).resolve().parents[2] / "helpers")
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{helpers}"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=site)
    return site


@pytest.fixture
def installed(unpacked, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(unpacked, site, copy_function=os.link)
    home = tmp_path / "home"
    home.mkdir()
    found = Installed(site, home)
    for name in ("kimi_plan", "kimi_verify", "kimi_status"):
        found.plugin(name, ECHO)
    found.plugin("kimi_key", KEY)
    return found


@pytest.fixture
def local(installed):
    """Make an inventory of local hosts with these names."""

    def make(*names):
        path = installed.home / "hosts.yml"
        hosts = ", ".join(f"{name}: {{}}" for name in names)
        path.write_text(f"kimi: {{hosts: {{{hosts}}}, vars: {{ansible_connection: local}}}}\n")
        return path

    return make


@pytest.fixture(scope="session")
def rendered(tmp_path_factory):
    """A folder that `render slurm` made, to be copied."""
    folder = tmp_path_factory.mktemp("rendered") / "kimi-jobs"
    slurm_stand_in.render(folder)
    return folder


@pytest.fixture
def kimi(tmp_path, monkeypatch):
    """The command line in this process, on machines that answer as a test says."""
    return command_line.make(tmp_path, monkeypatch)
