import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from trove_classifiers import classifiers as known_classifiers

import kimi_prov

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_wheel_carries_all_that_a_run_needs(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    bundle = "kimi_prov/_bundle"
    wanted = {
        f"{bundle}/ansible.cfg",
        *(f"{bundle}/playbooks/{n}.yml" for n in ("site", "plan", "verify", "status", "bench")),
        f"{bundle}/playbooks/key.yml",
        f"{bundle}/playbooks/destroy.yml",
        f"{bundle}/inventories/lab/hosts.yml",
        f"{bundle}/inventories/localhost/hosts.yml",
        "kimi_prov/catalog/models.yaml",
        "kimi_prov/schemas/facts.json",
        "kimi_prov/on_host/__main__.py",
        "kimi_prov/ansible/plugins/action/kimi_plan.py",
        "kimi_prov/ansible/plugins/filter/kimi.py",
    }
    locks = {p.name for p in (REPOSITORY / "kimi_prov" / "catalog" / "locks").glob("*.txt")}
    assert locks
    assert wanted | {f"kimi_prov/catalog/locks/{name}" for name in locks} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]


@pytest.fixture(scope="module")
def metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(archive.read(name))


def test_the_wheel_says_which_version_and_licence_it_has(wheel, metadata, installed):
    archive = zipfile.ZipFile(wheel)
    assert metadata["Version"] == kimi_prov.__version__
    assert installed.run("--version").stdout.split()[-1] == metadata["Version"]
    assert metadata["License-Expression"] == "Apache-2.0"
    carried = [n for n in archive.namelist() if ".dist-info/licenses/" in n]
    assert [n.rpartition("/")[2] for n in carried] == metadata.get_all("License-File")
    assert archive.read(carried[0]) == (REPOSITORY / "LICENSE").read_bytes()


def test_every_python_that_it_takes_is_told_by_a_classifier_that_indexes_know(metadata):
    told = metadata.get_all("Classifier")
    assert set(told) <= known_classifiers
    assert not [c for c in told if c.startswith("License ::")], "the expression says it"
    wanted = SpecifierSet(metadata["Requires-Python"])
    pythons = {c.rpartition(" ")[2] for c in told if re.search(r":: 3\.\d+$", c)}
    assert pythons == {f"3.{n}" for n in range(8, 15) if wanted.contains(f"3.{n}")}


@pytest.mark.parametrize(
    ("version", "taken"),
    [
        ("2.18.19", False),
        ("2.19.0", True),
        ("2.20.10", True),
        ("2.21.5", True),
        ("2.22.0", False),
    ],
)
def test_it_wants_an_ansible_that_was_tried(metadata, version, taken):
    wanted = {r.name: r for r in map(Requirement, metadata.get_all("Requires-Dist"))}
    assert wanted["ansible-core"].specifier.contains(version) is taken


@pytest.mark.parametrize("older", ["3.9", "3.10"])
def test_pip_of_an_older_python_refuses_it_and_says_which_it_wants(wheel, tmp_path, older):
    """As pip of that Python would: it is told which one it installs for, and asks no index."""
    words = ["install", "--dry-run", "--no-deps", "--no-index", "--isolated", "--target", tmp_path]
    words += ["--only-binary", ":all:", "--python-version", older, wheel]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "kimi-prov" in done.stderr
    assert re.search(rf"{older}\S* not in '>=3\.\d+'", done.stderr), done.stderr


def test_the_sdist_is_the_checkout_and_makes_the_same_bytes_elsewhere(wheel, sdist, tmp_path):
    """Unpacked in another folder, at other times, with other modes."""
    with tarfile.open(sdist) as archive:
        names = [member.name for member in archive.getmembers()]
        # Debian 12's Python 3.11.2 takes no filter as an argument; newer ones want one.
        archive.extraction_filter = lambda member, _: member
        archive.extractall(tmp_path)  # noqa: S202 - made by this test
    assert not [n for n in names if re.search(r"/(\.ci|\.git|\.venv|__pycache__|dist)/", n)]
    copy = next(tmp_path.iterdir())
    assert (copy / Path(__file__).relative_to(REPOSITORY)).is_file()
    (copy / "PKG-INFO").unlink()
    for path in copy.rglob("*"):
        path.chmod(0o700 if path.is_dir() or path.stat().st_mode & 0o100 else 0o600)
    for builder, first in ((WheelBuilder, wheel), (SdistBuilder, sdist)):
        again = Path(next(iter(builder(str(copy)).build(directory=str(tmp_path / "again")))))
        assert again.name == first.name
        assert again.read_bytes() == first.read_bytes(), f"{first.name} differs: diffoscope them"


def test_a_wheel_built_while_a_lab_is_up_has_none_of_its_files(tmp_path):
    checkout = tmp_path / "checkout"
    for name in ("inventories", "playbooks", "docs"):
        ours = shutil.ignore_patterns("lab.yml")
        shutil.copytree(REPOSITORY / name, checkout / name, ignore=ours)
    for name in (
        ".gitignore",
        "pyproject.toml",
        "ansible.cfg",
        "LICENSE",
        *(p.name for p in REPOSITORY.glob("*.md")),
    ):
        shutil.copy(REPOSITORY / name, checkout / name)
    for name in ("kimi_prov", "roles"):
        (checkout / name).mkdir()
    (checkout / "kimi_prov/ansible/plugins").mkdir(parents=True)
    shutil.copy(REPOSITORY / "kimi_prov" / "__init__.py", checkout / "kimi_prov")
    for generated in ("group_vars/all/lab.yml", "host_vars/node1/lab.yml"):
        (checkout / "inventories/lab" / generated).parent.mkdir(parents=True, exist_ok=True)
        (checkout / "inventories/lab" / generated).write_text("ansible_host: 192.0.2.1\n")
    built = next(iter(WheelBuilder(str(checkout)).build(directory=str(tmp_path / "out"))))
    names = zipfile.ZipFile(built).namelist()
    assert "kimi_prov/_bundle/inventories/lab/hosts.yml" in names
    assert [name for name in names if name.endswith("lab.yml")] == []


def roles_in(tasks) -> Iterator[str]:
    """Names of the roles that plays and tasks call, at any depth."""
    for part in tasks or ():
        for way in ("import", "include"):
            if call := part.get(f"ansible.builtin.{way}_role"):
                yield call["name"]
        yield from (role["role"] for role in part.get("roles", ()))
        for inner in ("tasks", "block", "rescue", "always"):
            yield from roles_in(part.get(inner))


def test_every_role_that_a_playbook_names_is_in_the_wheel(wheel):
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    books = [n for n in names if re.fullmatch(r"kimi_prov/_bundle/playbooks/.*\.yml", n)]
    roles = {role for book in books for role in roles_in(yaml.safe_load(archive.read(book)))}
    assert {"preflight", "nvidia_driver", "serve", "monitor", "tune_moe"} <= roles
    assert {r for r in roles if f"kimi_prov/_bundle/roles/{r}/tasks/main.yml" not in names} == set()


def test_the_docs_are_in_the_wheel_and_their_links_lead_to_pages_in_it(unpacked):
    bundle = unpacked / "kimi_prov" / "_bundle"
    pages = list((bundle / "docs").rglob("*.md"))
    ours = {p.relative_to(REPOSITORY) for p in (REPOSITORY / "docs").rglob("*.md")}
    assert {page.relative_to(bundle) for page in pages} == ours
    assert not list((bundle / "docs").rglob("*.py"))
    for page in pages:
        for link in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page}: {link}"


def test_the_manual_page_is_where_man_finds_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert [n for n in names if n.endswith(".data/data/share/man/man1/kimi-prov.1")]


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["init", "mine", "--profile", "localhost"],
        ["check", "sheet.yml"],
        ["check", "odd.yml"],
    ],
)
def test_a_message_that_sends_to_a_page_names_one_that_is_there(installed, words):
    """Installed from the wheel, where there is no checkout beside it."""
    sheet = "schema: kimi-prov/spec/v1\nname: a\ncpu: {sockets: 1}\n"
    (installed.home / "sheet.yml").write_text(sheet)
    (installed.home / "odd.yml").write_text("schema: kimi-prov/spec/v1\nname: a\n")
    done = installed.run(*words)
    said = done.stdout + done.stderr
    named = [word.strip("().,;:") for word in said.split() if re.search("docs/|/docs|/specs", word)]
    assert named, said
    for path in named:
        assert path.startswith(str(installed.site)), path
        assert Path(path).exists(), path


@pytest.mark.parametrize("profile", ["lab", "localhost"])
def test_init_works_from_anywhere_and_overwrites_nothing(installed, profile):
    done = installed.run("init", "mine", "--profile", profile)
    assert done.returncode == 0, done.stderr
    files = {str(p.relative_to(installed.home)) for p in (installed.home / "mine").rglob("*.yml")}
    assert files == set(done.stdout.split())
    assert "mine/hosts.yml" in files
    text = (installed.home / "mine" / "group_vars" / "kimi.yml").read_text()
    assert "kimi_model:" in text
    assert text.count("#") > 3
    again = installed.run("init", "mine", "--profile", profile)
    assert again.returncode == 2
    assert "overwrites nothing" in again.stderr


def test_an_unknown_profile_is_refused_with_the_list(installed):
    done = installed.run("init", "mine", "--profile", "nosuch")
    assert done.returncode == 2
    assert "lab, lab-amx, lab-group, lab-qemu, localhost, xeon-amx" in done.stderr
    assert not (installed.home / "mine").exists()


@pytest.mark.parametrize(
    ("words", "code"), [(["--version"], 0), (["check", "nosuch.yml"], 2), (["nosuch"], 2)]
)
def test_python_m_is_the_command(installed, words, code):
    command = installed.run(*words)
    module = subprocess.run(
        [sys.executable, "-m", "kimi_prov", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=installed.home,
        env=installed.environment,
    )
    assert module.returncode == command.returncode == code
    assert (module.stdout, module.stderr.replace("python -m kimi_prov", "kimi-prov")) == (
        command.stdout,
        command.stderr.replace("-c", "kimi-prov"),
    )
