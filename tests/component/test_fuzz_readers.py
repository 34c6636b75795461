"""What machines, clusters, archives and folders may hold, from seeds: each reader says one thing.

A reader gives what it read, clean, or refuses it with an error that has a message and a fix.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import fuzzing
import lying
import pytest

from kimi_prov import schemas
from kimi_prov.acceptance import drift
from kimi_prov.ansible import answer_types, host_action, remote
from kimi_prov.commands import usage as usage_command
from kimi_prov.commands.slurm.folder import SETTINGS, Folder
from kimi_prov.contract import clean_text, key_rules
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.errors import UserError
from kimi_prov.on_host import backup
from kimi_prov.on_host.__main__ import COMMANDS
from kimi_prov.on_host.cluster import queue, slurm
from kimi_prov.on_host.history import entries, report
from kimi_prov.on_host.keys import key_map, metadata, publish
from kimi_prov.on_host.system import archive as archives
from kimi_prov.on_host.usage import counter, store
from kimi_prov.on_host.usage.pool import Pool
from kimi_prov.operate.diagnosis import evidence, rules
from kimi_prov.render import folder_writer
from kimi_prov.runner import progress
from kimi_prov.show.text import (
    clean,
    diagnose,
    history,
    logs,
    status,
    usage,
)
from kimi_prov.show.text import (
    drift as drift_text,
)
from kimi_prov.show.text import (
    slurm as slurm_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SEEDS_QUICK, SEEDS = 12, 700
TYPED = sorted(name for name, command in COMMANDS.items() if command.answer is not None)
SLURM_FOLDER = fuzzing.ROOT / "tests" / "data" / "golden" / "slurm"
# What is written of a host's answer as it came, by the subcommand.
HOSTS: dict[str, list[Callable[[Any], str]]] = {
    "clean": [clean.format_text],
    "history": [history.format_text, history.format_newest],
    "status": [status.format_text],
}
# What is written of a document that a cluster answers with, by its schema.
CLUSTERS: dict[str, Callable[[Any], str]] = {
    "cancel": slurm_text.format_cancelled,
    "jobs": slurm_text.format_jobs,
    "submit": slurm_text.format_submitted,
}
Read = tuple[str, ...]
UNSENT = ("stand_in", "random_weights", "trained_on")


def answer_of_a_machine(random: Random, _folder: Path) -> Read:
    """Any typed answer, whole or changed: refused, or clean and of numbers that JSON has."""
    name = random.choice(TYPED)
    kinds = COMMANDS[name].answer
    step = random.choice(sorted(kinds)) if not isinstance(kinds, str) and kinds else ""
    words = (name, step) if step not in ("", "*") else (name,)
    kind = answer_types.find_type(words)
    document = lying.conforming(answer_types._make_schema(kind), random) if kind else {}
    text = json.dumps(changed(document, random))
    found = remote.read_answer(words, json.loads(text))
    return (clean_text.as_json(found),)


def changed(document: Any, random: Random) -> Any:
    mutated = fuzzing.mutated(document, random) if random.random() < 0.6 else document
    return mutated if isinstance(mutated, dict) else {}


def ask(words: list[str], random: Random) -> Any:
    """A machine's answer that fits its type. Raises HostError for most others."""
    schema = answer_types._make_schema(answer_types.find_type(words) or "")
    document = changed(lying.conforming(schema, random), random)
    return remote.read_answer(words, json.loads(json.dumps(document)))


def report_of_machines(random: Random, _folder: Path) -> Read:
    """A report of an answer that was taken, in every form of it."""
    name = random.choice(sorted(HOSTS))
    host = ask([name], random)
    # What the action plugin puts in the place of these.
    if name == "status":
        host = {key: host[key] for key in host if key not in UNSENT} | {"stand_ins": []}
        host["findings"] = host_action.complete_known_findings(host.get("findings") or [])
    called = random.choice(["h", f"a{random.choice(fuzzing.POISON)}b", "n" * 5000])
    document = {"schema": f"kimi-prov/{name}/v1", "ok": True, "hosts": {called: host}}
    return (clean_text.as_json(document), *(write(document) for write in HOSTS[name]))


def drift_of_a_machine(random: Random, _folder: Path) -> Read:
    found = drift.make_document(ask(["drift"], random), None, None, {}, "")
    found["stand_ins"] = []
    document: Any = {"schema": "kimi-prov/drift/v1", "ok": True, "hosts": {"h": found}}
    return (clean_text.as_json(document), drift_text.format_text(document))


def diagnosis_of_a_machine(random: Random, _folder: Path) -> Read:
    gathered = {"status": {}, **ask(["diagnose"], random)}
    found = rules.run_rules(evidence.read_evidence(gathered, ""))
    host = {"ok": True, "reached": True, "provisioned": True, "detail": "", "findings": found}
    document: Any = {"ok": True, "hosts": {"h": host | {"missing": {}}}}
    document |= {"bundle": None, "bundle_bytes": None}
    return (clean_text.as_json(document), diagnose.format_text(document))


def document_of_a_cluster(random: Random, _folder: Path) -> Read:
    name = random.choice(sorted(CLUSTERS))
    sent = fuzzing.as_json(changed(lying.conforming(schemas.load(name), random), random)).decode(
        errors="replace"
    )
    document = Folder(Path("/x"), None, "/x", {})._document(0, sent, "", name)
    return (clean_text.as_json(document), CLUSTERS[name](document))


def usage_of_machines(random: Random, _folder: Path) -> Read:
    """Two machines' use, one honest: it is added up, by key, day and host."""
    schema = answer_types._make_schema("usage:UsageOfHost")
    lies = changed(lying.conforming(schema, random), random)
    hosts = {"honest": {"ok": True, "rows": [], "uncounted": []}}
    try:
        hosts["liar"] = {"rows": [], **remote.read_answer(["usage"], lies)}
    except HostError:
        hosts["liar"] = {"ok": False, "detail": "", "rows": []}
    texts = []
    for by in ("key", "day", "host"):
        document: Any = {
            "schema": "kimi-prov/usage/v1",
            "ok": False,
            "since": None,
            "until": None,
            "by": by,
            "hosts": hosts,
            "rows": usage_command.sum_rows(hosts, by),
        }
        texts += [usage.format_text(document), usage.format_csv(document)]
    return tuple(texts)


def history_on_disk(random: Random, folder: Path) -> Read:
    """A store of entries, some of them changed or torn."""
    paths = Paths(root=str(folder))
    for _ in range(random.choice([1, 2, 3])):
        entry = entries.open_entry(paths, "apply", {"run": "a-1", "by": None})
        entries.write(paths, {**entry, "result": "done"})
    damaged = random.choice(entries.list_numbers(paths))
    file = entries.find_folder(paths, damaged) / entries.ENTRY
    document = json.loads(file.read_text())
    file.write_bytes(spoiled(document, random))
    found = report.collect(paths)
    host = remote.read_answer(["history"], json.loads(json.dumps(found)))
    document = {"schema": "kimi-prov/history/v1", "ok": True, "hosts": {"h": host}}
    return (history.format_text(document), history.format_newest(document))


def spoiled(document: Any, random: Random) -> bytes:
    """A document's JSON, with changed values, or with changed bytes."""
    if random.random() < 0.6:
        return fuzzing.as_json(fuzzing.mutated(document, random))
    return fuzzing.torn(fuzzing.as_json(document), random)


def archive_of_a_backup(random: Random, folder: Path) -> Read:
    """A backup of another's making."""
    rules = {"keys": {"alice": {"ends": None, "limits": {}, "made": 1}}}
    rules["schema"] = "kimi-prov/key-book/v1"
    row = {"day": "2026-11-24", "key": "alice", "refused": {}}
    row |= {"requests": 1, "prompt_tokens": 1, "completion_tokens": 1, "last_at": 1}
    entry = {"schema": entries.SCHEMA, "number": 1, "kind": "apply", "result": "done"}
    members: dict[str, Any] = {
        "keys.map": f"{'0' * 64} alice\n",
        backup.KEY_METADATA: rules,
        backup.USAGE: [row],
        "history/0001/entry.json": {**entry, "started_at": "2026-11-24T06:00:00Z"},
        backup.ORDER: {"issued": {"directory_url": "https://x", "names": [], "contact": None}},
    }
    about: dict[str, Any] = {"made_unix": 1, "hostname": "x"}
    name = random.choice([*members, "about"])
    if name == "about":
        about = fuzzing.mutated(about, random)
    elif isinstance(members[name], str):
        members[name] = fuzzing.torn(members[name].encode(), random).decode(errors="replace")
    else:
        members[name] = spoiled(members[name], random).decode(errors="replace")
    if random.random() < 0.3:
        odd = random.choice(["../x", "/etc/x", "a\0b", "n" * 300, "history/9/entry.json", "²"])
        members[odd] = "x"
    out = io.BytesIO()
    with archives.open_archive(out) as packed:
        texts = {
            n: part if isinstance(part, str) else json.dumps(part) for n, part in members.items()
        }
        rows = {name: archives.add_text(packed, name, text) for name, text in texts.items()}
        archives.close(packed, backup.SCHEMA, about, rows)
    content = out.getvalue()
    if random.random() < 0.3:
        content = fuzzing.torn(content, random)
    inside = folder / "unpacked" / "deep"
    inside.mkdir(parents=True)
    try:
        found = backup.read(io.BytesIO(content), inside)
    finally:
        assert [part.name for part in folder.iterdir()] == ["unpacked"]
        assert [part.name for part in inside.parent.iterdir()] == ["deep"]
    return (clean_text.as_json([found.hostname, found.made_unix, found.history]),)


def lines_of_logs(random: Random, folder: Path) -> Read:
    """Lines of a journal, as they come over the file of progress."""
    row = {"time_us": 1_764_000_000_000_000, "unit": "kimi-serve@0.service", "message": "up"}
    rows = [{**row, "priority": 6}, {**row, "time_us": random.choice(lying.COUNTS)}]
    document = {"host": "h", "phase": "x", "line": "", "entries": rows}
    document |= {"done_bytes": 1, "total_bytes": 2, "rate_bytes_per_s": 1.0, "eta_s": 3.0}
    (folder / "progress").write_bytes(spoiled(document, random) + b"\n")
    texts = []
    for found in progress.ProgressReader(folder / "progress").read():
        texts.append(clean_text.clean_row(progress.format_update(found)))
        for order, entry in enumerate(found.entries):
            line = logs.Line(entry.time_us, found.host, order, entry)
            texts += [logs.format_line(line), logs.format_line(line, width=80)]
            texts.append(clean_text.as_json(logs.build_document(line), indent=None))
    return tuple(texts)


@cache
def render_slurm() -> Mapping[str, bytes]:
    """The files of a folder of SLURM jobs."""
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "jobs"
        variables = {"kimi_slurm_root": "/root", "kimi_weights_source": "file:///nowhere"}
        (Path(top) / "variables.yml").write_text(json.dumps(variables))
        sheet = fuzzing.ROOT / "inventories" / "specs" / "reference-002.yml"
        words = ["render", "slurm", str(sheet), "--vars", f"{top}/variables.yml"]
        words += ["--output", str(folder)]
        ended = fuzzing.run(words, Path(top))
        assert ended.code in (0, 3), ended.err
        files = [file for file in folder.rglob("*") if file.is_file()]
        return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def rendered_folder(random: Random, folder: Path) -> Read:
    """A folder of SLURM jobs of which one document was changed."""
    for name, content in render_slurm().items():
        file = folder / "jobs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    file = folder / "jobs" / random.choice(["render.json", "render.json", "plan.json", SETTINGS])
    content = file.read_bytes()
    if file.suffix == ".json" and random.random() < 0.7:
        content = fuzzing.as_json(fuzzing.mutated(json.loads(content), random))
    else:
        content = fuzzing.torn(content, random)
    file.write_bytes(content)
    read = Folder.read(folder / "jobs", random.choice([None, "ana@login", ""]))
    read._packed()
    plan = folder_writer.read_plan(read.path)
    return (str(folder_writer.find_kind(read.path)), read.there, str(plan["engine"]["name"]))


def answer_of_slurm(random: Random, folder: Path) -> Read:
    """Lines of squeue and sacct, and walltimes."""
    fields = ["7", "RUNNING", "None", "n1", "N/A", "2026-11-24T06:00:00", "1-02:00:00"]
    fields += [str(folder), f"{folder}/jobs/serve.sbatch", "kimi-serve"]
    odd = [*fuzzing.TEXTS, *fuzzing.POISON, str(random.choice(fuzzing.NUMBERS))]
    records = []
    for _ in range(3):
        row = list(fields)
        for _ in range(random.choice([0, 1, 2])):
            row[random.randrange(len(row))] = random.choice(odd)
        records.append("\x1f".join(row) + "\x1e")
    content = "".join(records).encode("utf-8", "surrogatepass")
    if random.random() < 0.3:
        content = fuzzing.torn(content, random)
    (folder / "answer").write_bytes(content)
    for program in ("squeue", "sacct"):
        (folder / program).write_text(f"#!/bin/sh\nexec cat {folder}/answer\n")
        (folder / program).chmod(0o755)
    slurm.parse_time_s(random.choice(odd))
    slurm.parse_time(random.choice(odd))
    slurm.read_walltime_s(f"#SBATCH --time={random.choice(odd)}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        jobs = queue.list_jobs(str(folder), history=True)
    assert all(len(job.number) < 20 for job in jobs)
    return (clean_text.as_json([vars(job) for job in jobs]),)


def use_of_keys(random: Random, folder: Path) -> Read:
    """Questions to the counter, and what a machine behind a gateway reports."""
    counting = store.Store(folder / "usage.db", keep_days=30)
    try:
        asked = counter.Counter(counting, folder / "usage.prom")
        question = {"do": "ask", "id": "1", "key": "alice", "rule": "5:0:0:5:0"}
        told = {"do": "tell", "id": "1", "key": "alice", "prompt": 1, "completion": 1}
        for said in (question, {**told, "ended": True}):
            with suppress(ValueError, KeyError, TypeError):  # the connection ends
                asked.answer(json.loads(spoiled(said, random)))
        asked.settle()
        pool = Pool()
        machine = {"now": 1.0, "day": store.format_day(1.0)}
        machine |= {"keys": {"alice": {"day": [1, 2], "minute": [[0, 1, 2]]}}}
        with suppress(ValueError, KeyError, TypeError):  # it counts nothing of that machine
            pool.update("m", json.loads(spoiled(machine, random)))
        pool.ask("alice", {"requests_per_minute": 5, "tokens_per_day": 7})
        rows = counting.rows()
    finally:
        counting.close()
    return (clean_text.as_json(rows), (folder / "usage.prom").read_text())


def names_and_rules_of_keys(random: Random, folder: Path) -> Read:
    """The map of keys, their rules, and a name for a new one."""
    paths = Paths(root=str(folder))
    name = str(nasty_text(random))
    allowed = publish.may_be_given(name)
    assert not (allowed and fuzzing.leaks(name))
    key_rules.parse(nasty_text(random))
    key_map.parse_map(fuzzing.torn(f"{'0' * 64} alice\n".encode(), random).decode(errors="replace"))
    rules = {"schema": "kimi-prov/key-book/v1"}
    rules["keys"] = {"alice": {"ends": 5, "limits": {"requests_per_day": 1}, "made": 1}}
    paths.key_book.parent.mkdir(parents=True)
    paths.key_book.write_bytes(spoiled(rules, random))
    found = metadata.read(paths)
    return (clean_text.as_json(metadata.format_rules(found)),)


def nasty_text(random: Random) -> str:
    return random.choice([*fuzzing.TEXTS, *(f"a{char}b" for char in fuzzing.POISON), "alice"])


READERS: dict[str, Callable[[Random, Path], Read]] = {
    "answers": answer_of_a_machine,
    "reports": report_of_machines,
    "drift": drift_of_a_machine,
    "diagnosis": diagnosis_of_a_machine,
    "clusters": document_of_a_cluster,
    "usage": usage_of_machines,
    "history": history_on_disk,
    "archives": archive_of_a_backup,
    "logs": lines_of_logs,
    "folders": rendered_folder,
    "slurm": answer_of_slurm,
    "counter": use_of_keys,
    "keys": names_and_rules_of_keys,
}


@contextmanager
def within_patience() -> Iterator[None]:
    def late(*_: object) -> None:
        raise fuzzing.Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, fuzzing.PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault_of(kind: str, seed: int, folder: Path) -> str | None:
    """What is wrong with how a reader ended; None where nothing is."""
    try:
        with within_patience():
            texts = READERS[kind](Random(f"{kind}{seed}"), folder)  # noqa: S311
    except (UserError, HostError) as refused:
        texts = (refused.message, refused.fix or "")
        if not refused.message or fuzzing.INTERNAL.search(refused.message):
            return f"internal words: {refused.message[:200]!r}"
        texts = tuple(clean_text.clean_block(text) for text in texts)
    except fuzzing.Hang:
        return "hang"
    except Exception as error:  # noqa: BLE001 - what a test of crashes looks for
        at = error.__traceback__
        while at and at.tb_next:
            at = at.tb_next
        place = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else "?"
        return f"{type(error).__name__}: {str(error)[:200]} at {place}"
    leaked = {char for text in texts for char in fuzzing.leaks(text)}
    return f"leaks {sorted(map(ascii, leaked))}" if leaked else None


def faults(kind: str, seeds: range, tmp_path: Path) -> list[str]:
    found = []
    for seed in seeds:
        folder = tmp_path / f"{kind}{seed}"
        folder.mkdir()
        fault = fault_of(kind, seed, folder)
        if fault:
            found.append(f"seed {seed}: {fault}")
        shutil.rmtree(folder)
    return found


@pytest.mark.parametrize("kind", READERS)
def test_some_lies_are_read_or_refused(kind: str, tmp_path: Path) -> None:
    assert faults(kind, range(SEEDS_QUICK), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_thousands_of_lies_are_read_or_refused(kind: str, tmp_path: Path) -> None:
    assert faults(kind, range(SEEDS_QUICK, SEEDS_QUICK + SEEDS), tmp_path) == []
