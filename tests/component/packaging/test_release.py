"""A release is whole and signed, or there is none: with git, gpg and a key made for the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import make_release
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

REPOSITORY = Path(__file__).resolve().parents[3]
KEY = "releaser@example.com"
CHANGELOG = "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-11-29\n\nWhat it does.\n"
METADATA = """Metadata-Version: 2.4
Name: kimi-prov
Version: 1.2.3
License-Expression: Apache-2.0
Requires-Dist: ansible-runner<2.5,>=2.4
Requires-Dist: click>=8.1
Requires-Dist: colorama; sys_platform == "win32"
"""


@pytest.fixture(scope="module", autouse=True)
def _key(tmp_path_factory: pytest.TempPathFactory) -> object:
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNUPGHOME", str(home))
        options = ["--batch", "--passphrase", "", "--quick-generate-key", KEY, "ed25519", "sign"]
        run("gpg", *options)
        yield
        run("gpgconf", "--kill", "all")


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of version 1.2.3 with what `make dist` made of it."""
    root = tmp_path / "checkout"
    for name, text in {
        "kimi_prov/__init__.py": '__version__ = "1.2.3"\n',
        "CHANGELOG.md": CHANGELOG,
        ".gitignore": "/dist/\n/release/\n",
        "tests/requirements.txt": (REPOSITORY / "tests/requirements.txt").read_text(),
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "dist").mkdir()
    with zipfile.ZipFile(root / "dist/kimi_prov-1.2.3-py3-none-any.whl", "w") as wheel:
        wheel.writestr("kimi_prov-1.2.3.dist-info/METADATA", METADATA)
    (root / "dist/kimi_prov-1.2.3.tar.gz").write_bytes(b"the sources")
    commit(root)
    return root


def commit(root: Path) -> None:
    run("git", "init", "-q", cwd=root)
    run("git", "add", "-A", cwd=root)
    author = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    run("git", *author, "commit", "-q", "-m", "It", "--date=2026-11-29T00:00:00Z", cwd=root)


def release(root: Path, *options: str, version: str = "1.2.3", key: str = KEY) -> int:
    return make_release.main([version, key, "--root", str(root), *options])


def test_it_has_both_packages_their_bill_their_digests_and_a_signature(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release(checkout) == 0
    folder = checkout / "release/kimi-prov-1.2.3"
    packages = {"kimi_prov-1.2.3-py3-none-any.whl", "kimi_prov-1.2.3.tar.gz"}
    files = {*packages, "kimi_prov-1.2.3.cdx.json", "SHA256SUMS"}
    assert {file.name for file in folder.iterdir()} == files | {"SHA256SUMS.asc"}
    assert run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=folder).count(": OK") == 3
    run("gpg", "--verify", "SHA256SUMS.asc", "SHA256SUMS", cwd=folder)
    assert [file.name for file in (checkout / "release").iterdir()] == ["kimi-prov-1.2.3"]
    assert f"git tag --sign --local-user={KEY} v1.2.3" in capsys.readouterr().out
    # What was signed is what counts: a byte more, and it is refused.
    (folder / "SHA256SUMS").write_bytes((folder / "SHA256SUMS").read_bytes() + b"\n")
    with pytest.raises(AssertionError, match="BAD signature"):
        run("gpg", "--verify", "SHA256SUMS.asc", "SHA256SUMS", cwd=folder)


def test_the_bill_lists_what_the_package_needs_as_it_was_tested_and_comes_out_the_same(
    checkout: Path,
) -> None:
    wheel = next((checkout / "dist").glob("*.whl"))
    text = make_release.bill_of_materials(checkout, wheel, 1)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert make_release.bill_of_materials(checkout, wheel, 1) == text
    bill = json.loads(text)
    package = bill["metadata"]["component"]
    assert package["purl"] == "pkg:pypi/kimi-prov@1.2.3"
    assert package["licenses"] == [{"expression": "Apache-2.0"}]
    needs = {row["ref"]: row.get("dependsOn", []) for row in bill["dependencies"]}
    names = {row["bom-ref"]: row["name"] for row in bill["components"]}
    assert {names[ref] for ref in needs[package["bom-ref"]]} == {"ansible-runner", "click"}
    assert {"pexpect", "ptyprocess"} <= set(names.values())
    assert "colorama" not in names.values()
    assert all(row["hashes"] for row in bill["components"])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("a file that git does not know", "?? new.txt"),
        ("a change", " M CHANGELOG.md"),
        ("another version", "VERSION is 1.2.4, kimi_prov/__init__.py has 1.2.3"),
        ("no entry", "CHANGELOG.md has no entry: write '## 1.2.3 - YEAR-MONTH-DAY'"),
        ("no key", "gpg has no secret key nobody@example.com"),
        ("a release", "is there already"),
    ],
)
def test_it_is_refused_before_anything_is_built(
    checkout: Path, capsys: pytest.CaptureFixture[str], fault: str, said: str
) -> None:
    version, key = "1.2.3", KEY
    if fault == "a file that git does not know":
        (checkout / "new.txt").write_text("x")
    elif fault == "a change":
        (checkout / "CHANGELOG.md").write_text(f"{CHANGELOG}more\n")
    elif fault == "another version":
        version = "1.2.4"
    elif fault == "no entry":
        (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\nWhat it does.\n")
        commit(checkout)
    elif fault == "no key":
        key = "nobody@example.com"
    else:
        (checkout / "release/kimi-prov-1.2.3").mkdir(parents=True)
    for options in (["--check"], []):
        assert release(checkout, *options, version=version, key=key) == 1
        assert said in capsys.readouterr().err
    assert not (checkout / "release/kimi-prov-1.2.3/SHA256SUMS").exists()


@pytest.mark.parametrize("fault", ["no sdist", "no signature", "a package that is not pinned"])
def test_what_fails_midway_leaves_nothing(
    checkout: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if fault == "no sdist":
        (checkout / "dist/kimi_prov-1.2.3.tar.gz").unlink()
    elif fault == "no signature":
        gpg = checkout.parent / "bin/gpg"
        gpg.parent.mkdir()
        real = shutil.which("gpg")
        gpg.write_text(
            f'#!/bin/sh\ncase "$*" in *--detach-sign*) exit 2;; esac\nexec {real} "$@"\n'
        )
        gpg.chmod(0o755)
        monkeypatch.setenv("PATH", f"{gpg.parent}:{os.environ['PATH']}")
    else:
        (checkout / "tests/requirements.txt").write_text("click==8.1.0 \\\n")
        commit(checkout)
    assert release(checkout, "--check") == 0
    assert release(checkout) == 1
    assert "no release: " in capfd.readouterr().err
    assert list(checkout.glob("release/*")) == []


def test_a_name_of_an_option_is_no_key(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(make_release.ReleaseError, match="no secret key --version"):
        make_release.check(checkout, "1.2.3", "--version")
