import re
import shutil
import zipfile
from pathlib import Path

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

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
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]


def test_a_wheel_built_while_a_lab_is_up_has_none_of_its_files(tmp_path):
    checkout = tmp_path / "checkout"
    for name in ("inventories", "playbooks", "docs"):
        ours = shutil.ignore_patterns("lab.yml")
        shutil.copytree(REPOSITORY / name, checkout / name, ignore=ours)
    for name in (
        ".gitignore",
        "pyproject.toml",
        "ansible.cfg",
        *(p.name for p in REPOSITORY.glob("*.md")),
    ):
        shutil.copy(REPOSITORY / name, checkout / name)
    for name in ("kimi_prov", "roles"):
        (checkout / name).mkdir()
    for generated in ("group_vars/all/lab.yml", "host_vars/node1/lab.yml"):
        (checkout / "inventories/lab" / generated).parent.mkdir(parents=True, exist_ok=True)
        (checkout / "inventories/lab" / generated).write_text("ansible_host: 192.0.2.1\n")
    built = next(iter(WheelBuilder(str(checkout)).build(directory=str(tmp_path / "out"))))
    names = zipfile.ZipFile(built).namelist()
    assert "kimi_prov/_bundle/inventories/lab/hosts.yml" in names
    assert [name for name in names if name.endswith("lab.yml")] == []


def test_every_role_that_a_playbook_names_is_in_the_wheel(wheel):
    archive = zipfile.ZipFile(wheel)
    site = yaml.safe_load(archive.read("kimi_prov/_bundle/playbooks/site.yml"))
    tasks = [task for play in site for part in play["tasks"] for task in part.get("block", [part])]
    called = [
        task.get(f"ansible.builtin.{way}_role") for task in tasks for way in ("import", "include")
    ]
    roles = {call["name"] for call in called if call}
    names = set(archive.namelist())
    assert {"preflight", "nvidia_driver", "serve"} <= roles
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
    assert "lab, lab-amx, lab-qemu, localhost, xeon-amx" in done.stderr
    assert not (installed.home / "mine").exists()
