"""Whatever comes from elsewhere, nothing that a command prints or keeps steers who looks at it.

Every command of the command line has a case here that feeds it hostile text by each way in; a new
command without one fails.
"""

from __future__ import annotations

import copy
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import unicodedata
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from unittest import mock

import bench_inputs
import bucket_servers
import check_inputs
import click
import gathering
import pytest
import yaml
from chat_stand_in import Engine, serving
from command_line import task
from host_documents import SERVING

from kimi_prov.cli import cli
from kimi_prov.commands.kubernetes import follow
from kimi_prov.on_host.endpoint import tls
from kimi_prov.on_host.lifecycle import session_history
from kimi_prov.runner.arguments import KEY_OUT
from kimi_prov.show.exit_handling import run_guarded

REPOSITORY = Path(__file__).resolve().parents[3]
# A title, a cleared screen, a colour, C1, backspace, turned writing, invisible and tag characters.
STEERING = (
    "MARK\x1b]0;t\x07\x1b[2J\x1b[31m\x9b8m\x7f\x08\r\u202eabc\u2066\u200b\u2028\ufeff\u061c"
    "\U000e0041 `$(id)`"
)
FORGED = "  fix: forged"
HOSTILE = f"{STEERING}\n{FORGED}"
KINDS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# What the code chooses by; the rest of a document is for the reader alone.
CHOSEN_BY = {"severity", "schema", "status", "verdict", "unit", "by", "id"}


def poisoned(value, key=""):
    """Add hostile text to each text of a document."""
    if isinstance(value, dict):
        return {name: poisoned(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, key) for inner in value]
    return f"{value}{HOSTILE}" if isinstance(value, str) and key not in CHOSEN_BY else value


def steering(text):
    return {hex(ord(c)) for c in text if c not in "\n\t" and unicodedata.category(c) in KINDS}


def harmless(*texts):
    """Hold that hostile text came through, and came through harmless."""
    assert "MARK" in "".join(texts)
    for text in texts:
        assert steering(text) == set()
        assert not re.search(rf"^{FORGED}", text, re.MULTILINE)


def here(*words):
    """Run a command that needs no Ansible in this process; give what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run_guarded(partial(cli.main, [str(word) for word in words], standalone_mode=False))
    # Where --catalog hands its rows on to other processes: no test after this one has them.
    os.environ.pop("KIMI_PROV_CATALOG", None)
    assert "unexpected:" not in err.getvalue()
    return out.getvalue(), err.getvalue()


class Machines:
    """Two hosts, one that answers and one that fails, both hostile."""

    def __init__(self, kimi):
        self.kimi = kimi
        self.inventory = kimi.hosts("good", "bad")
        self.answers = {}

    def answer(self, action, good, bad):
        """Have an action plugin give these results."""
        self.answers[action] = {"good": good, "bad": bad}

    def play(self, *tasks):
        """Have the next playbooks do these tasks: names of actions, or whole tasks."""
        self.kimi.plays(*(self._task(one) if isinstance(one, str) else one for one in tasks))

    def _task(self, action):
        return task(action, lambda asked: self.answers[action][asked.host], name=f"Do {STEERING}")

    def run(self, *words, **options):
        """Run a command and hold all that it printed and kept harmless."""
        done = self.kimi.run(*words, **options)
        assert "unexpected:" not in done.stderr
        kept = [p for p in self.kimi.home.rglob("*") if p.suffix in {".log", ".json"}]
        assert {"run.log", "result.json"} <= {path.name for path in kept}
        harmless(done.stdout, done.stderr)
        for path in kept:
            assert steering(path.read_text()) == set(), path
        return done


@pytest.fixture
def machines(kimi):
    return Machines(kimi)


ROW = {
    "id": "x",
    **dict.fromkeys(("title", "observed", "required", "fix", "source"), HOSTILE),
}
FAILED = {
    "failed": True,
    "msg": HOSTILE,
    "warnings": [HOSTILE],
    "kimi": {"code": "failed", "message": HOSTILE, "fix": HOSTILE, "findings": []},
}
REFUSED = {
    **FAILED,
    "kimi": {**FAILED["kimi"], "code": "blockers", "findings": [{**ROW, "severity": "blocker"}]},
}
# An ordinary task that fails with what a program said, and one with a hostile name.
BREAK = task("fail", name=f"Break {STEERING}", bad={"failed": True, "msg": HOSTILE})


def answered(document, **more):
    found = {"findings": [{**ROW, "severity": "warning"}]}
    return {"changed": True, "changes": [HOSTILE], "kimi": found, "warnings": [HOSTILE], **more} | {
        "kimi_document": document
    }


def plan_document():
    return poisoned(check_inputs.lab()["plan"])


def plan(machines, _folder):
    machines.answer("kimi_plan", answered(plan_document()), REFUSED)
    machines.play("kimi_plan")
    done = machines.run("plan", machines.inventory)
    assert "tokens" in done.stdout


def apply(machines, _folder):
    diff = {"before": "", "after": f"{STEERING}\n"}
    found = answered(plan_document(), diff=diff)
    machines.answer("kimi_plan", found, found)
    machines.play("kimi_plan")
    done = machines.run("apply", machines.inventory, "--check", "--diff", "--limit", "good")
    assert "+MARK" in done.stderr
    assert "served:" in machines.run("apply", machines.inventory).stdout


def verify(machines, _folder):
    check = {"name": HOSTILE, "status": "fail", "detail": HOSTILE, "seconds": 0.1}
    document = {"ok": False, "checks": [check], "stand_ins": [HOSTILE]} | dict.fromkeys(
        ("endpoint", "vantage", "vantage_reason"), HOSTILE
    )
    check |= {"expected": HOSTILE, "observed": HOSTILE}
    document |= {"suite": "full", "unproven": [HOSTILE]}
    machines.answer("kimi_verify", answered(document), FAILED)
    machines.play("kimi_verify")
    file = machines.kimi.home / "result.xml"
    machines.run("verify", machines.inventory, "--suite", "full", "--junit", file)
    harmless(file.read_text())


def status(machines, _folder):
    found = poisoned(copy.deepcopy(SERVING))
    found["units"][HOSTILE] = found["units"].pop("kimi-stage.service")
    found["placement"][0]["bytes_by_node"][HOSTILE] = 1
    machines.answer("kimi_status", answered(found), FAILED)
    machines.play("kimi_status")
    assert "NOT GUARDED" in machines.run("status", machines.inventory).stdout


def drift(machines, _folder):
    row = dict.fromkeys(("title", "source", "subject", "expected", "observed", "since"), HOSTILE)
    row |= dict.fromkeys(("since_from", "by", "fix"), HOSTILE) | {"id": "drift.file"}
    would = {"id": "x", "title": HOSTILE, "key": HOSTILE, "applied": HOSTILE, "planned": [HOSTILE]}
    document = {"ok": False, "complete": False, "weights_read": True, "detail": HOSTILE}
    document["weights_read_from"] = {HOSTILE: "disk"}
    applied = {"at": HOSTILE, "kimi_prov": HOSTILE}
    document |= {"applied": applied | {"by": dict.fromkeys(("user", "control_host"), HOSTILE)}}
    document |= {"drift": [row], "unseen": [dict.fromkeys(("what", "why", "fix"), HOSTILE)]}
    document |= {"would_change": [would], "would_change_unknown": None, "stand_ins": [HOSTILE]}
    machines.answer("kimi_drift", answered(document), FAILED)
    machines.play("kimi_drift")
    done = machines.run("drift", machines.inventory)
    assert "plan otherwise" in done.stdout
    assert done.returncode == 1


def logs(machines, _folder):
    rows = [{"time_us": 1, "unit": HOSTILE, "priority": 3, "message": HOSTILE}]
    told = {"good": {"entries": rows}, "bad": {"entries": rows, "result": FAILED}}
    machines.kimi.plays(task("kimi_logs", gathering.report_logs(told)))
    machines.run("logs", machines.inventory)
    machines.run("logs", machines.inventory, "--format", "json")


def diagnose(machines, _folder):
    entries = [
        {"time_us": 1, "unit": HOSTILE, "priority": 3, "message": f"CUDA out of memory {HOSTILE}"}
    ]
    found = {
        **dict.fromkeys(("unit_files", "gpus"), HOSTILE),
        **{part: {HOSTILE: [HOSTILE]} for part in ("facts", "units", "plan")},
        "status": {"ok": False, "detail": HOSTILE},
        "logs": {"kimi-serve@0.service": {"entries": entries}, HOSTILE: {"entries": entries}},
        "kernel": {"entries": entries},
        "metrics": [{"unit": HOSTILE, "first": HOSTILE}],
        "packages": [HOSTILE],
        "missing": {HOSTILE: HOSTILE},
    }
    told = {"good": found, "bad": FAILED}
    machines.kimi.plays(task("kimi_diagnose", gathering.hand_over(told)))
    file = machines.kimi.home / "bundle.tar.gz"
    machines.run("diagnose", machines.inventory, "--to", file)
    with tarfile.open(file) as archive:
        for member in archive.getmembers():
            harmless(f"MARK{member.name}")
            text = archive.extractfile(member).read().decode()
            # A unit, or what nvidia-smi says, has lines of its own, and is no message of ours.
            verbatim = (
                member.name.endswith(("units.txt", "nvidia-smi.txt")) or "metrics" in member.name
            )
            assert steering(text) == set() if verbatim else harmless(f"MARK{text}") is None


def tune(machines, folder):
    document = poisoned(
        {
            "ok": True,
            "detail": "",
            "model": "",
            "engine": {"name": "", "variant": "", "version": ""},
            "purpose": "latency",
            "users": "",
            "start_s": None,
            "starts": "",
            "basis": "",
            "candidates": [{"setting": "", "label": "", "reason": "", "estimate": None}],
            "left_out": [{"name": "", "text": "", "reason": ""}],
            "stand_ins": [""],
        }
    )
    machines.answer("kimi_status", answered(document), None)
    machines.play(BREAK, "kimi_status")
    done = machines.run("tune", machines.inventory, "--yes")
    assert "not tried by this version" in done.stderr


def bench(machines, folder):
    document = poisoned(
        {
            "ok": True,
            "detail": "",
            "normal": None,
            "model": "",
            "measured_at": "2026",
            "load": {"average": "", "busy": True},
            "engine": {"name": "", "variant": "", "version": ""},
            "memory": {"bytes_per_s": 0, "by": "", "reason": ""},
            "layer": {"available": False, "reason": ""},
            "serve": {
                "input_tokens": "",
                "output_tokens": "",
                "load": {"prompts": None, "told": ""},
                "levels": [
                    {"concurrency": "", "requests": "", "failed": ""}
                    | dict.fromkeys(("decode_tok_s", "aggregate_tok_s", "prefill_tok_s"))
                    | {"ttft_s": {"median": None}, "tpot_s": {"median": None}}
                ],
            },
            "compared": [],
            "basis": "",
            "stand_ins": [""],
            "last": None,
            "look_at": [{"title": "", "observed": "", "fix": ""}],
        }
    )
    machines.answer("kimi_status", answered(document), None)
    machines.play(BREAK, "kimi_status")
    assert "MEASURED" in machines.run("bench", machines.inventory).stdout
    prompts = folder / "prompts.json"
    prompts.write_text(json.dumps({HOSTILE: 1, "conversations": [{"value": {HOSTILE: 2}}, {}]}))
    harmless(*here("bench", "inventories/localhost", "--prompts", folder / HOSTILE[:60]))
    out, err = here("bench", "inventories/localhost", "--prompts", prompts)
    assert "wanted text" in err
    assert steering(out + err) == set()


def key(machines, _folder):
    def handed(asked):
        name = "key" if asked.host == "good" else "detail"
        with Path(asked.environment[KEY_OUT]).open("a") as stream:
            stream.write(json.dumps({"host": asked.host, name: HOSTILE}) + "\n")
        return {}

    machines.kimi.plays(task("kimi_key", handed))
    done = machines.run("key", machines.inventory)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["good"]


def destroy(machines, _folder):
    kept = answered({"kept": [HOSTILE]})
    machines.answer("kimi_status", kept, kept)
    machines.play("kimi_status")
    assert "good keeps MARK" in machines.run("destroy", machines.inventory, "--yes").stdout


PAST = {
    "ok": True,
    "detail": "",
    "current": 1,
    "switch": {"entry": 1, "under_way": False, "phase": "", "serves": ""},
    "entries": [
        {
            **dict.fromkeys(("started_at", "kind", "result", "why", "inventory", "kimi_prov"), ""),
            "number": 1,
            "by": {"user": "", "control_host": ""},
            "restorable": False,
            "serves": dict.fromkeys(
                ("model", "format", "revision", "engine", "version", "variant", "context"), ""
            ),
            "speed": {"decode_tok_s": 1.0},
            "speed_before": None,
            "seconds_without_service": 1.0,
        }
    ],
}


def history(machines, _folder):
    machines.answer("kimi_host", answered(poisoned(PAST)), FAILED)
    machines.play("kimi_host")
    assert "1.0 tok/s" in machines.run("history", machines.inventory).stdout


def rollback(machines, _folder):
    machines.answer("kimi_host", answered(poisoned(PAST)), FAILED)
    machines.play("kimi_host")
    assert "1.0 tok/s" in machines.run("rollback", machines.inventory, "--to", "1").stdout


def clean(machines, _folder):
    item = {"kind": HOSTILE, "path": HOSTILE, "of": HOSTILE, "bytes": 1024}
    told = {"ok": True, "items": [item], "bytes": 1024, "removed": True, "keeps": [HOSTILE]}
    machines.answer("kimi_host", answered(told), FAILED)
    machines.play("kimi_host")
    assert "1.0 KiB freed" in machines.run("clean", machines.inventory, "--yes").stdout


def usage(machines, _folder):
    row = {"day": HOSTILE, "key": HOSTILE, "last_at": 1, "refused": {HOSTILE: 1}}
    row |= dict.fromkeys(("requests", "prompt_tokens", "completion_tokens"), 12345)
    told = {"ok": False, "detail": HOSTILE, "uncounted": [0], "rows": [row]}
    machines.answer("kimi_status", answered(told), FAILED)
    machines.play("kimi_status")
    for words in ((), ("--by", "day"), ("--by", "host"), ("--format", "csv")):
        assert "12" in machines.run("usage", machines.inventory, *words).stdout


def served(machines):
    """Have hosts answer what clients need, with hostile text wherever text may stand."""
    certificate = tls.extract_certificates(tls.make_self_signed(["localhost"]))
    found = poisoned({"model": "", "models": [""], "catalog_name": "", "allowed_networks": [""]})
    found |= {"elsewhere": None, "address": "127.0.0.1", "login": None, "port": 9}
    found |= {"stand_ins": [HOSTILE]}
    found |= {"page_port": 8443, "context": 4096, "certificate": certificate}
    found["engine"] = poisoned(dict.fromkeys(("name", "variant", "version"), ""))
    machines.answer("kimi_connect", answered(found), FAILED)
    machines.play("kimi_connect")


def connect(machines, folder):
    (folder / "slurm").mkdir()
    of_cluster("connect")(None, folder / "slurm")
    served(machines)
    assert "anthropic" in machines.run("connect", machines.inventory).stdout
    snippet = machines.run("connect", machines.inventory, "--limit", "good", "--for", "python")
    subprocess.run(["bash", "-n", "-c", snippet.stdout], check=True)
    found = {"elsewhere": HOSTILE}
    machines.answer("kimi_connect", answered(found), FAILED)
    assert "reach MARK" in machines.run("connect", machines.inventory).stdout
    with mock.patch.dict(os.environ, {"KIMI_API_KEY": "key"}):
        harmless(*here("connect", f"https://x/{HOSTILE}"))
        harmless(*here("connect", "https://127.0.0.1:9", "--ca", folder / HOSTILE))
        harmless(*here("chat", f"https://{HOSTILE}"))
    harmless(*here("connect", machines.inventory, "--for", HOSTILE))


def chat(machines, folder):
    engine = Engine("key", words=(HOSTILE, "\n", FORGED))
    (folder / "certificate.pem").write_text(pem := tls.make_self_signed(["localhost"]))

    def says(*words):
        stdin = io.TextIOWrapper(io.BytesIO(b"x"))
        line = ("chat", url, "--ca", folder / "certificate.pem", *words)
        with mock.patch.multiple(sys, stdin=stdin), mock.patch("signal.signal"):
            return here(*line)

    with (
        serving(folder, pem, engine) as port,
        mock.patch.dict(os.environ, {"KIMI_API_KEY": "key"}),
    ):
        url = f"https://127.0.0.1:{port}"
        out, err = says("--reasoning")
        assert "MARK" in out
        assert steering(out + err) == set()
        engine.refuses = (400, HOSTILE)
        harmless(*says())
        harmless(*says("--model", HOSTILE))
        engine.model, engine.refuses = HOSTILE, None
        assert steering("".join(says())) == set()
    served(machines)
    with mock.patch.dict(os.environ, {"KIMI_API_KEY": "key"}):
        machines.run("chat", machines.inventory)
    (folder / "slurm").mkdir()
    with mock.patch("signal.signal"):
        of_cluster("chat")(None, folder / "slurm")


def web(work):
    def case(machines, folder):
        archive = folder / "archive"
        archive.write_bytes(b"\x1f\x8b")
        told = {"version": HOSTILE, "file": HOSTILE, "left_out": [HOSTILE], "detail": HOSTILE}
        told |= dict.fromkeys(("made_unix", "accounts", "chats", "uploads", "bytes"), 1)
        machines.answer("kimi_status", answered({**told, "ok": True}), FAILED)
        machines.play("kimi_status")
        words = ["--yes", archive] if work == "restore" else []
        assert "1 chats" in machines.run("web", work, machines.inventory, *words).stdout
        harmless(*here("web", work, folder / HOSTILE, *words))
        harmless(*here("web", "restore", machines.inventory, folder / HOSTILE))

    return case


def update(machines, _folder):
    package = dict.fromkeys(
        ("name", "installed", "candidate", "why", "from", "to", "kind"), HOSTILE
    )
    found = {"installed": [package], "left": [package], "driver": HOSTILE, "detail": HOSTILE}
    found |= {"restart_reasons": [HOSTILE], "stale_units": [HOSTILE]}
    found |= {"restarted": True, "requests_cut": 1, "seconds_without_service": 1.0}
    machines.answer("kimi_status", answered({**found, "ok": True, "verified": True}), FAILED)
    machines.play("kimi_status")
    assert "REQUIRED" in machines.run("update", machines.inventory, "--reboot-ok").stdout


def carried(command):
    def case(machines, folder):
        archive = folder / "archive"
        archive.write_bytes(b"\x1f\x8b")
        page = {"version": HOSTILE, "left_out": [HOSTILE]}
        page |= dict.fromkeys(("made_unix", "accounts", "chats", "uploads"), 1)
        told = dict.fromkeys(("file", "detail", "hostname", "certificate_sha256"), HOSTILE)
        told |= {"keys": [HOSTILE], "left_out": [HOSTILE], "acme_account": True, "page": page}
        told |= {"made_unix": 1, "history": 1, "bytes": 1, "encrypted_with": None}
        machines.answer("kimi_status", answered({**told, "ok": True}), FAILED)
        machines.play("kimi_status")
        words = ["--yes", archive] if command == "restore" else []
        assert "1 chats" in machines.run(command, machines.inventory, *words).stdout
        harmless(*here(command, folder / HOSTILE, *words))
        harmless(*here("backup", machines.inventory, "--recipient", HOSTILE))
        harmless(*here("restore", machines.inventory, folder / HOSTILE))

    return case


def check(_machines, folder):
    facts = json.loads(check_inputs.LAB.read_text())
    facts["cpu"]["model"] = HOSTILE
    facts["origin"] = {"kind": "spec", "name": HOSTILE, "detail": HOSTILE}
    facts["origins"] = {HOSTILE: HOSTILE}
    facts["host"]["hostname"] = HOSTILE
    file = folder / "facts.json"
    file.write_text(json.dumps(facts))
    for form in ("text", "json", "markdown", "html"):
        harmless(*here("check", file, "--format", form, "--model", "kimi-k2-lab"))
    out, _ = here("check", file, "--format", "json", "--model", "kimi-k2-lab")
    assert json.loads(out)["targets"][0]["name"] == HOSTILE
    sheet = folder / f"{STEERING}.yml"
    sheet.write_text(yaml.safe_dump({"schema": "kimi-prov/spec/v1", "cpu": {HOSTILE: 1}}))
    harmless(*here("check", sheet))
    sheet.write_text(f"schema: kimi-prov/spec/v1\n? [{json.dumps('MARK')}\n: {{")
    harmless(*here("check", sheet))
    harmless(*here("check", folder / HOSTILE))
    harmless(*here("check", file, "--model", HOSTILE))
    harmless(*here("check", file, "--power-price", HOSTILE))
    harmless(*here("check", file, "--bundle", folder / HOSTILE))
    harmless(*here("check", file, f"--{HOSTILE}"))


def bundle(_machines, folder):
    """What is gathered comes from our own catalogue: a sheet, names and a key are others' words."""
    sheet = folder / f"{STEERING}.yml"
    sheet.write_text(yaml.safe_dump({"schema": "kimi-prov/spec/v1", "cpu": {HOSTILE: 1}}))
    options = ("--output", folder / HOSTILE, "--sign-with")
    harmless(*here("bundle", sheet, *options, STEERING))
    harmless(*here("bundle", folder / HOSTILE, *options, HOSTILE))
    harmless(*here("bundle", sheet, *options, STEERING, "--os", HOSTILE, "--model", HOSTILE))
    harmless(*here("bundle", sheet, *options, STEERING, "--pieces", HOSTILE))


def catalog(_machines, folder):
    told = dict.fromkeys(("title", "note", "fix", "source"), HOSTILE)
    row = {**told, "id": "site", "severity": "warning", "confidence": "low"}
    row |= {"engine": "vllm", "flags": [STEERING]}
    rows = {"broken": [row]}
    (folder / "broken.yaml").write_text(yaml.safe_dump(rows))
    harmless(*here("catalog", "broken", "--catalog", folder))
    harmless(*here("catalog", "broken", "site", "--catalog", folder))
    harmless(*here("catalog", "models", HOSTILE))
    harmless(*here("catalog", HOSTILE))
    harmless(*here("catalog", "pin", HOSTILE))


def contribute(_machines, folder):
    file = folder / "bench.json"
    result = poisoned({**bench_inputs.result(), "detail": ""})
    document = {"schema": "kimi-prov/bench/v1", "ok": True, "hosts": {HOSTILE: result}}
    file.write_text(json.dumps(document))
    harmless(*here("contribute", file))
    harmless(*here("contribute", folder / HOSTILE))
    harmless(*here("check", check_inputs.LAB, "--measured", file))


def image(_machines, folder):
    """An engine, a base, a folder of wheels, and a file that was changed by hand."""
    harmless(*here("image", HOSTILE, "--output", folder / "image"))
    harmless(*here("image", "vllm-cpu", "--base", HOSTILE, "--output", folder / "image"))
    harmless(*here("image", "vllm-cpu", "--find-links", folder / HOSTILE, "--output", folder / "x"))
    harmless(*here("image", "vllm-cpu", "--output", folder / HOSTILE))


def render_cloud(kind):
    def case(_machines, folder):
        variables = folder / "v.yml"
        variables.write_text("kimi_model: kimi-k2-lab\nkimi_weights_source: s3://b/f\n")
        options = ("--vars", variables, "--output", folder / "o")
        harmless(*here("render", kind, folder / STEERING, *options))
        for wrong in ({f"kimi_{HOSTILE}": HOSTILE}, {HOSTILE: HOSTILE}, {"kimi_cloud": HOSTILE}):
            variables.write_text(yaml.safe_dump(wrong))
            harmless(*here("render", kind, check_inputs.LAB, *options))

    return case


def weights_seed(_machines, _folder):
    bucket = "s3://bucket/folder"
    harmless(*here("weights", "seed", HOSTILE, bucket))
    harmless(*here("weights", "seed", "hf://owner/name@main", HOSTILE))


def sessions(_machines, folder):
    harmless(*here("sessions", HOSTILE))
    words = dict.fromkeys(("machine", "model", "end"), HOSTILE)
    cost = dict.fromkeys(session_history._NUMBERS, 1.0)
    days = dict.fromkeys(("since", "until"), "2026-11-27T10:00:00Z")
    record = {"schema": session_history.SCHEMA, **words, **cost, **days, "budget_usd": None}
    with bucket_servers.s3(folder) as cloud:
        cloud.put("kimi-sessions", {"kimi.json": json.dumps(record).encode()})
        access = ("--credentials-file", cloud.good, "--endpoint", cloud.door.url)
        for form in ("text", "json"):
            harmless(*here("sessions", cloud.url("kimi"), *access, "--format", form))


def render_slurm(_machines, folder):
    facts = json.loads(check_inputs.LAB.read_text())
    facts["cpu"]["model"] = facts["host"]["hostname"] = HOSTILE
    facts["origin"] = {"kind": "spec", "name": HOSTILE, "detail": HOSTILE}
    file, out = folder / "facts.json", folder / STEERING
    file.write_text(json.dumps(facts))
    options = ("--root", "/p", "--output", out, "--vars", folder / "v.yml")
    (folder / "v.yml").write_text("kimi_model: kimi-k2-lab\nkimi_weights_source: file:///p/model\n")
    harmless(*here("render", "slurm", file, *options))
    written = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".pyz"]
    harmless(*[path.read_text() for path in written if "MARK" in path.read_text()])
    for path in out.glob("jobs/*"):
        subprocess.run(["bash", "-n", str(path)], check=True)
        lines = [line for line in path.read_text().splitlines() if "MARK" in line]
        assert all(line.startswith("#") for line in lines)
    (out / "cluster.env").write_text("mine")
    harmless(*here("render", "slurm", file, *options))
    (folder / "v.yml").write_text(yaml.safe_dump({f"kimi_{HOSTILE}": HOSTILE}))
    harmless(*here("render", "slurm", file, *options))
    (folder / "v.yml").write_text(yaml.safe_dump({HOSTILE: HOSTILE}))
    harmless(*here("render", "slurm", file, *options))
    (folder / "v.yml").write_text(yaml.safe_dump({"kimi_slurm_partition": HOSTILE}))
    harmless(*here("render", "slurm", file, *options))
    (folder / "other").mkdir()
    (folder / "other" / STEERING).touch()
    harmless(*here("render", "slurm", file, "--root", "/p", "--output", folder / "other"))
    harmless(*here("render", "slurm", folder / HOSTILE, "--output", folder / "new"))


def render_kubernetes(_machines, folder):
    facts = json.loads(check_inputs.LAB.read_text())
    facts["cpu"]["model"] = facts["host"]["hostname"] = HOSTILE
    facts["origin"] = {"kind": "spec", "name": HOSTILE, "detail": HOSTILE}
    file, out, quota = folder / "facts.json", folder / STEERING, folder / "quota.yaml"
    file.write_text(json.dumps(facts))
    options = ("--image", "x", "--output", out, "--vars", folder / "v.yml")
    variables = {"kimi_model": "kimi-k2-lab", "kimi_weights_source": "file:///srv/kimi/model"}
    (folder / "v.yml").write_text(yaml.safe_dump(variables))
    harmless(*here("render", "kubernetes", file, *options))
    texts = [path.read_text() for path in out.iterdir()]
    harmless(*[text for text in texts if "MARK" in text])
    for path in out.glob("*.yaml"):
        lines = [line for line in path.read_text().splitlines() if "MARK" in line]
        assert all(line.startswith("#") for line in lines)
    (out / "pdb.yaml").write_text("mine")
    harmless(*here("render", "kubernetes", file, *options))
    row = {"kind": "ResourceQuota", "metadata": {"name": HOSTILE, "namespace": HOSTILE}}
    for hard in ({"pods": 0, HOSTILE: 1}, {"pods": HOSTILE}, {HOSTILE: HOSTILE}):
        quota.write_text(yaml.safe_dump({**row, "spec": {"hard": hard}}))
        harmless(*here("render", "kubernetes", file, *options, "--quota", quota))
    words = ("--namespace", "kimi", "--quota", quota)
    harmless(*here("render", "kubernetes", file, *options, *words))
    for name in ("image", "node_selector", "hostname", "stop_schedule"):
        value = {HOSTILE: HOSTILE} if name == "node_selector" else HOSTILE
        (folder / "v.yml").write_text(yaml.safe_dump({f"kimi_kubernetes_{name}": value}))
        harmless(*here("render", "kubernetes", file, "--output", out, "--vars", folder / "v.yml"))


JOB = {
    **dict.fromkeys(("job_name", "state", "reason", "nodes", "log"), HOSTILE),
    **dict.fromkeys(("starts_at", "ends_at", "left_s")),
    "id": "7",
    "name": "serve",
}
ENDPOINT = {
    **dict.fromkeys(("url", "node", "model", "file", "certificate_sha256"), HOSTILE),
    "successor": "8",
    "notes": [HOSTILE],
}
# Where a job serves, as its own file has it.
WHERE = {
    **dict.fromkeys(("url", "node", "folder", "model", "certificate", "key_file"), HOSTILE),
    "schema": "kimi-prov/endpoint/v1",
    "job": "7",
    "nodes": [HOSTILE],
    "state": "ready",
    "ends_at": HOSTILE,
    "successor": HOSTILE,
    "notes": [HOSTILE],
}
# What a folder's program on a hostile cluster answers to each command.
OF_CLUSTER = {
    "submit": [{"name": "serve", "id": "7", "after": [], "outcome": "queued"}],
    "jobs": [{**JOB, "endpoint": {**ENDPOINT, "state": "ready"}}],
    "cancel": [{"id": "7", "name": None, "outcome": "ending"}],
    "connect": [{**JOB, "state": "RUNNING", "endpoint": {**ENDPOINT, "state": "ready"}}],
}
# These ask for the jobs, and print nothing where no server answers.
REACHING = ("connect", "chat")
OF_CLUSTER["chat"] = OF_CLUSTER["connect"]
# A login node: copying a folder, and asking where a server answers, are answered apart.
LOGIN_NODE = """#!/bin/sh
cat > /dev/null
printf '%s\\n' "$*" > {there}/asked
answer={there}/answer
case $(cat {there}/asked) in
  *receive*) answer={there}/brought ;;
  *" endpoint "*) answer={there}/endpoint ;;
esac
cat {there}/complaint >&2
cat "$answer"
exit $(cat {there}/code)
"""


def of_cluster(command):
    """Have a command ask a hostile login node, which answers, refuses and is cut off."""

    def case(_machines, folder):
        variables = {"kimi_model": "kimi-k2-lab", "kimi_weights_source": "file:///p/model"}
        (folder / "v.yml").write_text(yaml.safe_dump(variables))
        rendered = folder / "jobs"
        words = ("--root", "/p", "--vars", folder / "v.yml", "--output", rendered)
        here("render", "slurm", check_inputs.LAB, *words)
        there = folder / "login"
        there.mkdir()
        (there / "ssh").write_text(LOGIN_NODE.format(there=there))
        (there / "ssh").chmod(0o755)

        def says(answer, code=0):
            (there / "answer").write_text(json.dumps(answer))
            (there / "brought").write_text(json.dumps({"kept": [HOSTILE]}))
            (there / "endpoint").write_text(json.dumps({"endpoint": WHERE, "key": HOSTILE}))
            (there / "complaint").write_text(f"{FORGED}\n{STEERING}")
            (there / "code").write_text(str(code))
            told = here(command, rendered, "--login", "me@login")
            harmless("MARK", *told)
            return told

        schema = "jobs" if command in REACHING else command
        document = {"schema": f"kimi-prov/{schema}/v1", "folder": HOSTILE, "root": HOSTILE}
        document |= {"jobs": OF_CLUSTER[command]}
        if schema != "jobs":
            del document["root"]
        path = f"{there}:{os.environ['PATH']}"
        with mock.patch.dict(os.environ, {"PATH": path}):
            (there / "asked").unlink(missing_ok=True)
            if command == "cancel":
                # Of its document the folder alone is text, and is told where no job is.
                document["jobs"] = []
            out, err = says(document)
            assert out or command in REACHING, err
            # Where a way is to be opened, nothing of an answer that names none is repeated.
            assert ("MARK" in out + err) is (command not in REACHING), err
            says({HOSTILE: 1})
            says({"error": {"message": HOSTILE, "fix": HOSTILE, "code": HOSTILE}})
            says("", code=255)
            says("", code=1)

    return case


# A kubectl whose cluster is hostile: each question has a file with its answer.
KUBECTL = """#!/bin/sh
echo "$*" >> {there}/asked
case " $* " in
  *" version "*) exec cat {there}/version ;;
  *" config "*) exec cat {there}/config ;;
  *" kustomize "*) exec cat {there}/built ;;
  *" /apis "*) exec cat {there}/apis ;;
  *" logs "*) exec cat {there}/said ;;
  *" port-forward "*) cat {there}/said >&2; exit 1 ;;
  *" get "*) cat {there}/said >&2; cat {there}/found; exit $(cat {there}/code) ;;
esac
cat {there}/said >&2
cat {there}/found
exit $(cat {there}/code)
"""
LABELS = {"app.kubernetes.io/instance": "kimi", "app.kubernetes.io/component": "engine"}
POD = {
    "kind": "Pod",
    "metadata": {"name": "kimi-0", "labels": LABELS},
    "spec": {"nodeName": HOSTILE},
    "status": {
        "phase": HOSTILE,
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": HOSTILE,
            }
        ],
        "containerStatuses": [
            {
                "name": HOSTILE,
                "image": HOSTILE,
                "state": {"waiting": {"reason": HOSTILE, "message": HOSTILE}},
                "lastState": {"terminated": {"reason": HOSTILE}},
                "restartCount": 1,
            }
        ],
    },
}


def of_kubernetes(command):
    """Have a command ask a hostile cluster, through a kubectl that refuses too."""

    def case(folder):
        there, rendered = folder / "cluster", folder / "pods"
        there.mkdir()
        rendered.mkdir()
        metadata = {"name": "kimi", "labels": LABELS}
        template = {"metadata": {"labels": LABELS}, "spec": {"containers": [{"name": "engine"}]}}
        engine = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata}
        engine["spec"] = {"replicas": 1, "template": template}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata}
        service["spec"] = {"ports": [{"port": 8443}]}
        record = {"schema": "kimi-prov/render/v1", "kind": "kubernetes", "version": "1"}
        record |= {"target": "x", "plan_digest": "0" * 64, "files": []}
        (rendered / "render.json").write_text(json.dumps(record))
        plan = check_inputs.lab()["plan"]
        (rendered / "plan.json").write_text(json.dumps(plan))
        group = {"name": "apps", "versions": [{"groupVersion": "apps/v1"}]}
        view = {"current-context": HOSTILE, "contexts": [{"context": {"namespace": "kimi"}}]}
        files = {
            "version": {"clientVersion": {"gitVersion": "v1.37.0"}},
            "config": view,
            "built": engine,
            "apis": {"groups": [group, {"name": HOSTILE}]},
        }
        for name, content in files.items():
            (there / name).write_text(json.dumps(content))
        (there / "built").write_text(f"{json.dumps(engine)}\n---\n{json.dumps(service)}\n")
        (there / "kubectl").write_text(KUBECTL.format(there=there))
        (there / "kubectl").chmod(0o755)
        # One that starts is waited for; to one that serves a way is opened.
        live = {**engine, "status": {"readyReplicas": int(command in REACHING)}}

        def says(found, code=0, said=f"{FORGED}\n{STEERING}\n"):
            (there / "found").write_text(json.dumps(found))
            (there / "said").write_text(said)
            (there / "code").write_text(str(code))
            told = here(command, rendered)
            assert "Traceback" not in "".join(told)
            for text in told:
                assert steering(text) == set()
                assert not re.search(rf"^{FORGED}", text, re.MULTILINE)
            return "".join(told)

        path = f"{there}:{os.environ['PATH']}"
        variables = {"PATH": path, "KIMI_API_KEY": "sk-kimi-canary"}
        waits = {"TROUBLE_TIMEOUT_S": 0.0, "POLL_INTERVAL_S": 0.0, "AWAY_TIMEOUT_S": 0.0}
        with (
            mock.patch.dict(os.environ, variables),
            mock.patch.multiple(follow, **waits),
        ):
            node = {"kind": "Node", "metadata": {"name": HOSTILE}}
            node["status"] = {"allocatable": {HOSTILE: HOSTILE}}
            found = {"kind": "List", "items": [live, POD, node, {HOSTILE: HOSTILE}, HOSTILE]}
            # Stopping goes well here: what ails a pod that ends is no matter.
            if command != "stop":
                assert "MARK" in says(found)
            assert "MARK" in says({}, code=1)
            assert "MARK" in says({}, code=1, said=f"Error from server (Forbidden): {STEERING}")
            assert "MARK" in says({}, code=1, said=f"Unable to connect to the server: {STEERING}")
            says(HOSTILE)
            (there / "config").write_text(json.dumps({HOSTILE: HOSTILE}))
            says([HOSTILE])
            (there / "built").write_text(json.dumps({**engine, "metadata": {"name": HOSTILE}}))
            says({})

    return case


@pytest.mark.parametrize("command", ["apply", "status", "verify", *REACHING, "stop", "start"])
def test_what_a_hostile_cluster_says_comes_out_harmless(command, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with mock.patch("signal.signal"):
        of_kubernetes(command)(tmp_path)


def power(command):
    def case(_machines, folder):
        harmless(*here(command, folder / HOSTILE))
        (folder / "render.json").write_text(json.dumps({"kind": HOSTILE}))
        harmless(*here(command, folder))

    return case


def init(_machines, folder):
    made = folder / STEERING
    out, err = here("init", made, "--profile", "localhost")
    harmless(out, err)
    # A name that a shell would run is quoted.
    assert f"kimi-prov plan '{folder}/MARK" in err
    harmless(*here("init", made, "--profile", "localhost"))
    harmless(*here("init", folder / "other", "--profile", HOSTILE))


def probe(_machines, folder):
    told = poisoned(json.loads(check_inputs.LAB.read_text()))
    with mock.patch("kimi_prov.on_host.probe.collect.describe", return_value=told):
        out, err = here("probe")
    harmless(out, err)
    assert json.loads(out) == told
    harmless(*here("probe", "--bundle", folder / f"{STEERING}.pyz"))
    harmless(*here("probe", "--output", folder / HOSTILE / "x"))


def lab(*words):
    def case(_machines, folder):
        harmless(*here("lab", *words, folder / HOSTILE, *(["x"] if words == ("ssh",) else [])))
        hosts = {"one": {"lab_kind": HOSTILE}}
        file = folder / "hosts.yml"
        file.write_text(yaml.safe_dump({"kimi": {"hosts": hosts}}))
        harmless(*here("lab", *words, folder, *([HOSTILE] if words == ("ssh",) else [])))

    return case


def beside(command):
    """A command about the program itself: what it takes is a word of the person who types."""

    def case(_machines, _folder):
        harmless(*here(command, HOSTILE))

    return case


CASES = {
    "completion": beside("completion"),
    "help": beside("help"),
    "playbooks": beside("playbooks"),
    "version": beside("version"),
    "plan": plan,
    "bundle": bundle,
    "check": check,
    "apply": apply,
    "verify": verify,
    "status": status,
    "drift": drift,
    "bench": bench,
    "tune": tune,
    "logs": logs,
    "diagnose": diagnose,
    "key": key,
    "connect": connect,
    "chat": chat,
    "destroy": destroy,
    "history": history,
    "rollback": rollback,
    "clean": clean,
    "init": init,
    "image": image,
    "render cloud-init": render_cloud("cloud-init"),
    "render kubernetes": render_kubernetes,
    "render skypilot": render_cloud("skypilot"),
    "render slurm": render_slurm,
    "sessions": sessions,
    "weights seed": weights_seed,
    **{command: of_cluster(command) for command in OF_CLUSTER if command not in REACHING},
    "stop": power("stop"),
    "start": power("start"),
    "restart": power("restart"),
    "usage": usage,
    "probe": probe,
    "catalog": catalog,
    "contribute": contribute,
    "update": update,
    "backup": carried("backup"),
    "restore": carried("restore"),
    "web backup": web("backup"),
    "web restore": web("restore"),
    "lab up": lab("up"),
    "lab down": lab("down"),
    "lab list": lab("list"),
    "lab ssh": lab("ssh"),
}


def commands(group, before=()):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield " ".join((*before, name))


@pytest.mark.parametrize("command", list(commands(cli)))
def test_hostile_text_comes_out_harmless(command, request, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("KIMI_PROV_CATALOG", raising=False)
    folder = tmp_path / "given"
    folder.mkdir()
    case = CASES[command]
    playing = {plan, apply, verify, status, drift, bench, tune, logs, diagnose, key, connect, chat}
    playing |= {destroy, history, rollback, clean, update, usage}
    playing = case in playing or "web" in command or command in {"backup", "restore"}
    case(request.getfixturevalue("machines") if playing else None, folder)


@pytest.mark.parametrize(
    "words",
    [[STEERING], [f"--{STEERING}"], ["check", "x", "--format", STEERING], ["key", STEERING]],
)
def test_a_usage_error_echoes_no_escape(words, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    harmless(*here(*words))


# What a machine behind ssh answers to each command; the mark that sudo worked goes first.
SSH = """#!/bin/sh
for last; do :; done
printf '%s\\n' "$last" | grep -o 'BECOME-SUCCESS-[a-z]*' | head -n 1
[ -t 0 ] || cat > /dev/null
cat {folder}/answer
cat {folder}/complaint >&2
exit $(cat {folder}/code)
"""


@pytest.fixture
def behind_ssh(installed, tmp_path):
    """Put a stub of ssh on PATH; give what sets its answer and returns an inventory for it."""
    folder = tmp_path / "stub"
    folder.mkdir()
    program = folder / "ssh"
    program.write_text(SSH.format(folder=folder))
    program.chmod(0o755)
    inventory = installed.home / "hosts.yml"
    inventory.write_text(
        "kimi: {hosts: {$(id): {ansible_host: 192.0.2.1, ansible_python_interpreter: /python3}}}\n"
    )
    installed.environment["PATH"] = f"{folder}:{installed.environment['PATH']}"
    # Nothing is tried a second time.
    installed.environment["ANSIBLE_SSH_RETRIES"] = "0"

    def says(code, answer="", complaint=""):
        (folder / "answer").write_text(answer)
        (folder / "complaint").write_text(complaint)
        (folder / "code").write_text(str(code))
        return inventory

    return says


def plugin(name):
    """Give the source of one of our own plugins."""
    return (REPOSITORY / "kimi_prov" / "ansible" / "plugins" / "action" / f"{name}.py").read_text()


def test_ansible_itself_prints_a_machines_answer_clean(installed, behind_ssh):
    installed.plugin("kimi_status", plugin("kimi_status"))
    found = {**poisoned(SERVING), HOSTILE: [HOSTILE]}
    # Of these the answer's type knows each word: another one is refused at the door.
    certificate = SERVING["port"]["certificate"]
    found["port"]["certificate"] |= {key: certificate[key] for key in ("mode", "state")}
    for row, own in zip(found["updates"]["waiting"], SERVING["updates"]["waiting"], strict=True):
        row["kind"] = own["kind"]
    inventory = behind_ssh(0, json.dumps(found))
    bundle = installed.site / "kimi_prov" / "_bundle"
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"),
            *("-i", inventory, "-v", bundle / "playbooks" / "status.yml"),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=installed.home,
        env={
            **installed.environment,
            "ANSIBLE_ACTION_PLUGINS": str(installed.site / "kimi_prov/ansible/plugins/action"),
            "ANSIBLE_PIPELINING": "1",
        },
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    harmless(done.stdout, done.stderr)


def test_a_command_to_paste_has_nothing_that_ssh_said(installed, behind_ssh):
    said = f"x{STEERING}\nroot@$(touch${{IFS}}x): Permission denied (publickey).\n{FORGED}\n"
    installed.plugin("kimi_status", plugin("kimi_status"))
    done = installed.run("status", behind_ssh(255, complaint=said))
    assert done.returncode == 4
    assert "ssh-copy-id USER@192.0.2.1" in done.stderr
    assert "touch" not in done.stdout + done.stderr
    for text in (done.stdout, done.stderr):
        assert steering(text) == set()
        assert not re.search(rf"^{FORGED}", text, re.MULTILINE)
