"""Tries one installed kimi-prov on the machine that it is on: `smoke.py PATH/TO/kimi-prov`.

Version, the code read without a warning, each plugin loaded, each playbook read by Ansible, a
sheet checked, and the machine itself planned for through Ansible. Prints what it ran with. A
warning of Ansible's, or of Python about our own code, is a failure. Standard library only: it runs
under the Python that kimi-prov is installed for, on machines that have nothing else.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Run by the interpreter of the installation, every warning an error once others' code is loaded.
LOAD = """
import importlib.util, pathlib, platform, sys, warnings
import ansible.plugins.action, ansible.release, ansible.utils.display, ansible_runner.interface
import kimi_prov.cli
from ansible.module_utils.common import arg_spec
from kimi_prov.packaging import resources
warnings.simplefilter("error")
for file in sorted(pathlib.Path(kimi_prov.__file__).parent.rglob("*.py")):
    compile(file.read_bytes(), str(file), "exec")
for file in sorted(resources.find_plugins().rglob("*.py")):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
print(platform.python_version(), ansible.release.__version__)
print(resources.find_root(), resources.find_plugins(), sep="\\n")
"""
COMPLAINTS = ("[DEPRECATION WARNING]", "[WARNING]", "[ERROR]", "Traceback")


class StepError(Exception):
    """A step did not come out as it must."""


def run(*command: str | Path, folder: Path, codes: tuple[int, ...] = (0,), **more: str) -> str:
    """Run a command in a folder; its output, after a look at its exit code."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("ANSIBLE_", "PYTHON"))},
        "ANSIBLE_DEPRECATION_WARNINGS": "true",
        "XDG_STATE_HOME": str(folder / "state"),
        **more,
    }
    done = subprocess.run(
        list(map(str, command)),
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    said = f"{' '.join(map(str, command))[:200]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    if done.returncode not in codes:
        raise StepError(f"exit code {done.returncode}, wanted {codes}: {said}")
    complaints = [word for word in COMPLAINTS if word in done.stdout + done.stderr]
    if complaints:
        raise StepError(f"{complaints[0]}: {said}")
    return done.stdout


def smoke(command: Path, folder: Path) -> dict[str, str]:
    """Try everything; the versions of Python and ansible-core that it ran with."""
    programs = command.resolve().parent
    # Isolated: not what lies in this folder or in the user's own packages.
    loaded = run(programs / "python", "-I", "-c", LOAD, folder=folder).splitlines()
    (python, ansible), root, plugins = loaded[0].split(), Path(loaded[1]), Path(loaded[2])
    version = run(command, "--version", folder=folder)
    if run(programs / "python", "-P", "-m", "kimi_prov", "--version", folder=folder) != version:
        raise StepError("python -m kimi_prov is another version than kimi-prov")
    hosts = folder / "groups.yml"
    hosts.write_text("{kimi: {hosts: {localhost: }}, kimi_outsiders: {hosts: {localhost: }}}\n")
    playbooks = sorted((root / "playbooks").glob("*.yml"))
    run(
        programs / "ansible-playbook",
        *("--syntax-check", "-i"),
        *(hosts, *playbooks),
        folder=folder,
        ANSIBLE_CONFIG=str(root / "ansible.cfg"),
        ANSIBLE_ACTION_PLUGINS=str(plugins / "action"),
        ANSIBLE_FILTER_PLUGINS=str(plugins / "filter"),
    )
    run(command, "init", "--spec", "quote.yml", "--system", "dgx-h200", folder=folder)
    run(command, "check", "quote.yml", "--model", "kimi-k2.5", folder=folder)
    run(command, "init", "mine", "--profile", "localhost", folder=folder)
    # 3: this machine may not be able to serve; the plan was made for it all the same.
    made = run(command, "plan", "mine", "--format", "json", folder=folder, codes=(0, 3))
    if '"kimi-prov/plan/v1"' not in made:
        raise StepError(f"plan printed no plan: {made[:3000]}")
    logs = list((folder / "state" / "kimi-prov" / "runs").glob("*/run.log"))
    text = "".join(log.read_text(encoding="utf-8") for log in logs)
    complaints = [word for word in COMPLAINTS if word in text]
    if not logs or complaints:
        raise StepError(f"the log of plan has {complaints}:\n{text[-3000:]}")
    return {"python": python, "ansible-core": ansible, "kimi-prov": version.split()[-1]}


def main(argv: list[str]) -> int:
    """Print the versions as JSON, or what failed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            sys.stdout.write(json.dumps(smoke(Path(argv[0]), Path(folder))) + "\n")
        except StepError as failed:
            sys.stderr.write(f"{failed}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
