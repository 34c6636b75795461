"""Inputs that nobody should write, from seeds: each ends with a report, or with one message."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from random import Random
from typing import TYPE_CHECKING, Any

import bench_inputs as given
import fuzzing
import pytest
import yaml

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import recording, spec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SEEDS_QUICK, SEEDS = 9, 675
FORMS = ("text", "json", "markdown", "html")
SHEETS = sorted((fuzzing.ROOT / "inventories" / "specs").glob("*.yml"))
RECORDED = sorted(path.parent for path in fuzzing.RECORDINGS.glob("*/gpus.csv"))
LOADS = sorted((fuzzing.ROOT / "inventories" / "loads").glob("*.yml"))
CLOUD_SHEET = fuzzing.ROOT / "inventories" / "specs" / "reference-004.yml"
CLOUD_SETTINGS = fuzzing.ROOT / "inventories" / "gcp-h100-spot" / "group_vars" / "kimi.yml"
KINDS = ("models", "cpus", "gpus", "engines", "flags", "systems", "drivers", "prices", "broken")
KINDS += ("servers", "pythons")
OPTIONS = ("--model", "--engine", "--context", "--concurrency", "--weights-format", "--kv-dtype")
OPTIONS += ("--amortise-years", "--utilisation", "--power-price", "--format", "--catalog")
FIGURES = [0, -1, 0.0, 1e-300, 1e18, 1 << 62, 1, None, "", "²", "9" * 5000, "../../x", "{{ 1 }}"]
Words = list[str]


def sheet(random: Random, folder: Path) -> Words:
    document = yaml.load(random.choice(SHEETS).read_text(), yaml.CSafeLoader)
    if random.random() < 0.7:
        document = fuzzing.mutated(document, random)
    content = random.choice([fuzzing.as_yaml, fuzzing.as_yaml, fuzzing.as_json])(document)
    if random.random() < 0.4:
        content = fuzzing.torn(content, random)
    (folder / "sheet.yml").write_bytes(content)
    return ["check", str(folder / "sheet.yml"), "--format", random.choice(FORMS)]


def facts(random: Random, folder: Path) -> Words:
    kind = random.randrange(3)
    document = (
        json.loads(fuzzing.FACTS.read_text())
        if kind == 0
        else recording.read_recording(random.choice(RECORDED))
        if kind == 1
        else spec.read_sheet(random.choice(SHEETS), load_catalogue())
    )
    content = fuzzing.as_json(fuzzing.mutated(document, random))
    if random.random() < 0.2:
        content = fuzzing.torn(content, random)
    (folder / "facts.json").write_bytes(content)
    return ["check", str(folder / "facts.json"), "--format", random.choice(FORMS)]


def recorded(random: Random, folder: Path) -> Words:
    copied = folder / "machine"
    shutil.copytree(random.choice(RECORDED), copied)
    for file in random.sample(sorted(copied.iterdir()), random.choice([1, 1, 2, 4])):
        content = file.read_bytes()
        target = file
        if file.suffix == ".gz" and random.random() < 0.8:
            content, target = gzip.decompress(content), file.with_suffix("")
            file.unlink()
        numbers = list(re.finditer(rb"\d+(\.\d+)?", content))
        if numbers and random.random() < 0.5:
            spot = random.choice(numbers)
            put = str(random.choice([*fuzzing.TEXTS, *fuzzing.NUMBERS[:17]])).encode()
            content = content[: spot.start()] + put + content[spot.end() :]
        else:
            content = fuzzing.torn(content, random)
        target.write_bytes(content)
    return ["check", str(copied), "--format", random.choice(FORMS)]


def catalogue(random: Random, folder: Path) -> Words:
    kind = random.choice(KINDS)
    text = (fuzzing.ROOT / "kimi_prov" / "catalog" / f"{kind}.yaml").read_text()
    document: dict[str, Any] = json.loads(
        json.dumps(yaml.load(text, yaml.CSafeLoader), default=str)
    )
    for section, rows in document.items():
        if isinstance(rows, list):
            document[section] = [{**row, "source": "x", "confidence": "low"} for row in rows]
    if random.random() < 0.5:
        document = fuzzing.mutated(document, random)
    else:
        # One key of every row, so that the rows that count are among them.
        name = random.choice([key for _, key in fuzzing.places(document) if isinstance(key, str)])
        value = random.choice(FIGURES)
        for part, key in fuzzing.places(document):
            if key == name and not isinstance(part[key], (dict, list)):
                part[key] = value
    content = fuzzing.as_yaml(document)
    if random.random() < 0.1:
        content = fuzzing.torn(content, random)
    (folder / f"{kind}.yaml").write_bytes(content)
    if random.random() < 0.3:
        words = ["catalog", kind, "--format", random.choice(FORMS[:2])]
    else:
        words = ["check", str(random.choice(SHEETS)), "--format", random.choice(FORMS)]
    return [*words, "--catalog", str(folder)]


def options(random: Random, _folder: Path) -> Words:
    words = ["check", str(random.choice(SHEETS))]
    values = [*fuzzing.NUMBERS[:18], *fuzzing.TEXTS, *fuzzing.POISON, "1", "4", "auto", "int4"]
    for option in random.sample(OPTIONS, random.choice([1, 1, 2])):
        words += [option, str(random.choice(values)).replace("\0", "")]
    return words if "--format" in words else [*words, "--format", random.choice(FORMS)]


def load_file(random: Random, folder: Path) -> Words:
    document = yaml.load(random.choice(LOADS).read_text(), yaml.CSafeLoader)
    content = fuzzing.as_yaml(fuzzing.mutated(document, random))
    if random.random() < 0.4:
        content = fuzzing.torn(content, random)
    (folder / "load.yml").write_bytes(content)
    words = ["check", str(random.choice(SHEETS)), "--load", str(folder / "load.yml")]
    return [*words, "--format", random.choice(FORMS)]


def measured(random: Random, folder: Path) -> Words:
    (folder / "facts.json").write_bytes(fuzzing.as_json(given.facts_of()))
    result = given.result(given.level(1, 60.0, 58.0, 7000.0), given.level(16, 20.0, 300.0, 900.0))
    document = json.loads(given.written(folder, secret_node=result).read_text())
    content = fuzzing.as_json(fuzzing.mutated(document, random))
    if random.random() < 0.3:
        content = fuzzing.torn(content, random)
    (folder / "bench.json").write_bytes(content)
    words = ["check", str(folder / "facts.json"), "--measured", str(folder / "bench.json")]
    return [*words, "--format", random.choice(FORMS)]


def cloud(random: Random, folder: Path) -> Words:
    text = (fuzzing.ROOT / "kimi_prov" / "catalog" / "clouds.yaml").read_text()
    document = json.loads(json.dumps(yaml.load(text, yaml.CSafeLoader), default=str))
    rows = document["clouds"]
    key = random.choice(sorted(rows[0]))
    for row in rows:
        factor = random.choice([0, -1, 1000, 1e-9, 1e18])
        whole = isinstance(row.get(key), int)
        row[key] = row[key] * factor if whole and random.random() < 0.5 else random.choice(FIGURES)
    (folder / "rows").mkdir()
    (folder / "rows" / "clouds.yaml").write_bytes(fuzzing.as_yaml(document))
    words = ["render", "cloud-init", str(CLOUD_SHEET), "--vars", str(CLOUD_SETTINGS)]
    return [*words, "--output", str(folder / "out"), "--catalog", str(folder / "rows")]


MAKERS: dict[str, Callable[[Random, Path], Words]] = {
    "sheets": sheet,
    "facts": facts,
    "recordings": recorded,
    "catalogues": catalogue,
    "options": options,
    "loads": load_file,
    "measured": measured,
    "clouds": cloud,
}


def judged(kind: str, seeds: range, tmp_path: Path) -> list[str]:
    found = []
    for seed in seeds:
        folder = tmp_path / f"{kind}{seed}"
        folder.mkdir()
        words = MAKERS[kind](Random(f"{kind}{seed}"), folder)  # noqa: S311
        ended = fuzzing.run(words, tmp_path)
        found += [
            f"seed {seed}: {words}: {fault}: {ended.err[:300]!r}" for fault in fuzzing.faults(ended)
        ]
        shutil.rmtree(folder)
    return found


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize("kind", MAKERS)
def test_some_inputs_end_as_the_contract_says(kind: str, tmp_path: Path) -> None:
    assert judged(kind, range(SEEDS_QUICK), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_thousands_of_inputs_end_as_the_contract_says(kind: str, tmp_path: Path) -> None:
    assert judged(kind, range(SEEDS_QUICK, SEEDS_QUICK + SEEDS), tmp_path) == []


@pytest.mark.parametrize("option", ["--amortise-years", "--utilisation", "--power-price"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "", "1e999", "²"])
def test_a_number_that_is_none_is_refused_with_its_option(
    option: str, value: str, tmp_path: Path
) -> None:
    ended = fuzzing.run(["check", str(SHEETS[0]), option, value], tmp_path)
    assert ended.code == 2
    assert option in ended.err
    assert ended.out == ""
