"""`status --sbom`: what of a machine becomes its bill of materials."""

import json

import pytest
from command_line import gives, task

from kimi_prov.catalog import loader
from kimi_prov.planner.selection import engine

LOCK = "vllm-cuda-0.19.1-cp312.txt"


def status(mark=None, **changed):
    mark = mark or loader.load_catalogue().locks[LOCK][:12]
    versions = {
        "engine": "vllm",
        "engine_variant": "cuda",
        "engine_version": "0.19.1",
        "engine_directory": f"/srv/kimi/engines/vllm-cuda-0.19.1-{mark}",
        "engine_locks": [LOCK],
        "driver": "580.159.04",
    }
    model = {"name": "kimi-k2.5", "revision": "abc", "weights_verified": True}
    whole = {"ok": False, "provisioned": True, "detail": "", "stand_ins": []}
    return {**whole, "versions": versions | changed, "model": model}


BARE = {"ok": False, "provisioned": False, "detail": "not provisioned: no plan", "stand_ins": []}


def asked(kimi, hosts, *words):
    answers = {name: gives(told) for name, told in hosts.items()}
    kimi.plays(task("kimi_status", **answers))
    done = kimi.run("status", kimi.hosts(*hosts), "--sbom", *words)
    assert "Traceback" not in done.stderr
    return done


def test_a_bill_of_materials_is_json_and_a_stopped_service_is_no_matter(kimi):
    done = asked(kimi, {"one": status()})
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["bomFormat"] == "CycloneDX"
    assert any(row.get("purl") == "pkg:pypi/vllm@0.19.1" for row in document["components"])


def test_an_environment_of_a_brought_interpreter_is_known_by_both(kimi):
    digest = "ab" * 32
    mark = engine.compute_env_digest(loader.load_catalogue(), [LOCK], digest)
    brought = {"version": "3.12.16", "build": "20261110", "sha256": digest, "dir": "/srv/kimi/x"}
    hosts = {"one": status(mark, engine_interpreter=brought), "two": status(mark)}
    done = asked(kimi, hosts)
    assert "two: no bill of materials" in done.stderr
    names = {row["bom-ref"] for row in json.loads(done.stdout)["components"]}
    assert {"machine:one", f"interpreter:{digest}"} <= names
    assert "machine:two" not in names


def test_it_goes_to_a_file_and_is_a_list_as_text(kimi):
    file = kimi.home / "bom.json"
    done = asked(kimi, {"one": status()}, "--output", file)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert json.loads(file.read_text())["bomFormat"] == "CycloneDX"
    done = asked(kimi, {"one": status()}, "--format", "text")
    assert "    vllm 0.19.1\n" in done.stdout


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (BARE, "not provisioned"),
        (status(mark="0" * 12), "not made from the lock files of this version"),
        (status(engine_locks=["../../../etc/passwd"]), "not made from the lock files"),
        (status(engine_locks=None), "does not report its engine's lock"),
    ],
)
def test_what_is_not_known_is_said_and_fails_beside_what_is(kimi, other, said):
    done = asked(kimi, {"one": status(), "two": other})
    assert done.returncode == 1
    assert f"two: no bill of materials: {said}".split(": ")[0] in done.stderr
    assert said in done.stderr
    names = {row["bom-ref"] for row in json.loads(done.stdout)["components"]}
    assert "machine:one" in names
    assert "machine:two" not in names


def test_a_gateway_has_no_engine_and_its_page_is_told(kimi):
    gateway = {"ok": True, "provisioned": True, "detail": "", "stand_ins": [], "gateway": {}}
    page = {"lock": "open-webui-slim-0.12.4-cp311.txt"}
    hosts = {"one": status(), "two": {**gateway, "web": page}, "three": {**gateway, "web": None}}
    done = asked(kimi, hosts)
    assert done.returncode == 0, done.stderr
    assert "two: its web UI has the packages of open-webui-slim-0.12.4-cp311.txt" in done.stderr
    assert "three:" not in done.stderr
