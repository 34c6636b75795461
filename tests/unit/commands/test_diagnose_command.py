"""`kimi-prov diagnose`: the bundle, what it says of each host, and how it ends."""

import json
import tarfile

import closed_form
import gathering
import pytest
from command_line import task

START_US = 1_760_000_000_000_000
UNIT = "kimi-serve@0.service"
PTX = "CUDA error: the provided PTX was compiled with an unsupported toolchain."
HOST_CANARY, KEY_CANARY = "host-canary-77", "key-canary-88"


def log(*messages):
    rows = [
        {"time_us": START_US + n, "unit": UNIT, "priority": 6, "message": message}
        for n, message in enumerate(messages)
    ]
    return {"entries": rows, "cut": False}


def gathered(*messages, ok=True, **more):
    return {
        "plan": {"engine": {"name": "vllm"}},
        "status": {"ok": ok, "provisioned": True, "detail": "serving" if ok else "not serving yet"},
        "logs": {UNIT: log("ready after 3 s", *messages)},
        "kernel": None,
        "metrics": [{"unit": UNIT, "first": "vllm:x 1\n", "second": None, "apart_s": None}],
        "packages": ["torch-2.11.0"],
        "gpus": None,
        "facts": {"schema": "kimi-prov/facts/v1"},
        "units": {UNIT: {"Id": UNIT}},
        "unit_files": "[Service]\nExecStart=x\n",
        "missing": {"gpus": "HostError: nvidia-smi: not found"},
        **more,
    }


@pytest.fixture
def machines(kimi):
    def make(**told):
        kimi.plays(task("kimi_diagnose", gathering.hand_over(told)))
        return kimi.hosts(*told)

    return make


def opened(file):
    """The files of a bundle, without the folder that all of them are in."""
    with tarfile.open(file) as archive:
        members = archive.getmembers()
        folders = {member.name.partition("/")[0] for member in members}
        assert len(folders) == 1
        assert all(member.isreg() and member.mode == 0o600 for member in members)
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()
            for member in members
        }


def only(home):
    (file,) = home.glob("kimi-diagnose-*.tar.gz")
    return file


def test_what_keeps_the_model_from_serving_exits_3(kimi, machines):
    done = kimi.run("diagnose", machines(a=gathered(PTX, ok=False), b=gathered()))
    assert done.returncode == 3, done.stderr
    assert (
        "BLOCKER: The driver is too old for the engine's kernels (PTX) [diagnose.ptx]"
        in done.stdout
    )
    assert "nothing was recognised" in done.stdout
    assert "nvidia-smi: not found" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_what_was_seen_while_it_serves_is_a_warning(kimi, machines):
    done = kimi.run("diagnose", machines(a=gathered(PTX)), "--format", "json")
    assert done.returncode == 0
    (row,) = json.loads(done.stdout)["hosts"]["a"]["findings"]
    assert (row["id"], row["severity"]) == ("diagnose.ptx", "warning")


def test_a_host_that_gives_nothing_is_told_and_the_others_are_bundled(kimi, machines):
    failed = {"failed": True, "msg": "x", "kimi": {"code": "failed", "message": "no program"}}
    done = kimi.run("diagnose", machines(a=gathered(), b=failed), "--format", "json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    closed_form.validate(document, "diagnose")
    assert not document["ok"]
    assert document["hosts"]["b"]["detail"] == "no program"
    assert not document["hosts"]["b"]["reached"]
    assert "a/plan.json" in opened(only(kimi.home))


def test_without_any_answer_there_is_no_bundle(kimi, machines):
    failed = {"failed": True, "msg": "x", "kimi": {"code": "failed", "message": "no program"}}
    done = kimi.run("diagnose", machines(a=failed))
    assert done.returncode == 1
    assert not list(kimi.home.glob("*.tar.gz"))
    assert not list(kimi.home.glob(".*.tar.gz*"))


def test_no_secret_is_in_the_bundle(kimi, machines):
    """Keys by their form, of the inventory's variables, and of the files that a plan names."""
    keys = kimi.home / "keys"
    keys.write_text(f"team:{KEY_CANARY}\n")
    words = (
        f"{HOST_CANARY} {KEY_CANARY} sk-kimi-canary0000 hf_canarycanary "
        "Authorization: Bearer canary-of-a-header, https://user:canary-pw@mirror.test/"
    )
    told = gathered(
        words,
        plan={"control": {"api_keys_file": str(keys)}, words: [words]},
        facts={"a": {"b": [words]}},
        unit_files=words,
        packages=[words],
        missing={"gpus": words},
        gpus=words,
    )
    inventory = machines(a=told)
    inventory.write_text(
        inventory.read_text().replace("a: {}", f"a: {{ansible_become_password: {HOST_CANARY}}}")
    )
    done = kimi.run("diagnose", inventory, "--format", "json")
    assert done.returncode == 0, done.stderr
    found = opened(only(kimi.home))
    assert "********" in found["a/plan.json"]
    for text in (*found.values(), done.stdout, done.stderr):
        assert "canary" not in text


def test_names_of_hosts_and_units_stay_in_the_folder(kimi, machines):
    inventory = machines(**{"../../a": gathered(), "..": gathered()})
    inventory.write_text(
        json.dumps(
            {"kimi": {"hosts": {"../../a": {}, "..": {}}, "vars": {"ansible_connection": "local"}}}
        )
    )
    inventory = inventory.rename(inventory.with_suffix(".json"))
    done = kimi.run("diagnose", inventory)
    assert done.returncode == 0, done.stderr
    assert all(".." not in name.split("/") for name in opened(only(kimi.home)))


def test_a_file_that_is_there_is_kept(kimi, machines):
    kept = kimi.home / "mine.tar.gz"
    kept.write_text("mine")
    done = kimi.run("diagnose", machines(a=gathered()), "--to", kept)
    assert done.returncode == 2
    assert "there is a file already" in done.stderr
    assert kept.read_text() == "mine"
    assert not kimi.runs.exists()
    done = kimi.run("diagnose", machines(a=gathered()), "--to", kimi.home / "no" / "x.gz")
    assert done.returncode == 2


def of_gateway(machines_up=2, **more):
    states = ["up"] * machines_up + ["down"] * (2 - machines_up)
    gateway = {
        "address": "10.0.9.100",
        "has_address": True,
        "hosts": [{"host": f"gpu{n}", "state": state} for n, state in enumerate(states, 1)],
        "warnings": [],
    }
    status = {"ok": machines_up == 2, "provisioned": True, "detail": "sends", "gateway": gateway}
    return gathered() | {
        "plan": {"schema": "kimi-prov/gateway-plan/v1"},
        "status": status,
        "logs": {"kimi-gateway-address.service": log("Entering MASTER STATE")},
        "configuration": {
            "haproxy.cfg": "frontend api\n",
            "address.conf": f"password {HOST_CANARY}",
        },
        "packages": [],
        "metrics": [],
        **more,
    }


@pytest.fixture
def site(machines):
    """An inventory of a machine that serves and two gateways."""

    def make(**gateways):
        inventory = machines(a=gathered(), **gateways)
        names = ", ".join(
            f"{name}: {{ansible_become_password: {HOST_CANARY}}}" for name in gateways
        )
        inventory.write_text(
            "all: {children: {kimi: {hosts: {a: {}}}, "
            f"kimi_gateway: {{hosts: {{{names}}}}}}}, vars: {{ansible_connection: local}}}}\n"
        )
        return inventory

    return make


def test_gateways_are_in_the_bundle_and_their_faults_are_told(kimi, site):
    inventory = site(gw1=of_gateway(), gw2=of_gateway(machines_up=0))
    done = kimi.run("diagnose", inventory, "--format", "json")
    assert done.returncode == 3, done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "diagnose")
    found = {
        host: [row["id"] for row in entry["findings"]] for host, entry in document["hosts"].items()
    }
    assert found == {
        "a": [],
        "gw1": ["diagnose.gateway_split"],
        "gw2": ["diagnose.gateway_split", "diagnose.gateway_no_machine"],
    }
    files = opened(only(kimi.home))
    assert files["gw1/configuration/haproxy.cfg"] == "frontend api\n"
    assert "MASTER" in files["gw2/logs/kimi-gateway-address.service.log"]
    # A secret of gateways alone is known as one, too.
    assert not [name for name, text in files.items() if HOST_CANARY in text]
