"""`init --spec`: a sheet that `check` takes as it is, and that its comments explain."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import fuzzing
import pytest
import yaml

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.errors import UserError
from kimi_prov.facts import spec, spec_template

if TYPE_CHECKING:
    from pathlib import Path

_A_LINE = re.compile(r"^( *)# ([a-z_]+: \S.*)$")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def kimi_prov(tmp_path: Path, *words: object) -> fuzzing.Ended:
    return fuzzing.run([str(word) for word in words], tmp_path / "state")


def test_every_system_s_sheet_passes_check_at_once(tmp_path: Path) -> None:
    for name in [row.name for row in load_catalogue().servers]:
        sheet = tmp_path / f"{name}.yml"
        made = kimi_prov(tmp_path, "init", "--spec", sheet, "--system", name)
        assert made.code == 0, made.err
        assert made.out == f"{sheet}\n"
        ended = kimi_prov(tmp_path, "check", sheet, "--format", "json")
        assert ended.code in (0, 3), ended.err
        [target] = json.loads(ended.out)["targets"]
        assert target["name"] == name
        if name in ("dgx-h200", "hgx-b200", "xeon-8592-2s"):
            assert ended.code == 0
            assert target["plan"]["throughput"]["decode_tok_s"]["expected"]


@pytest.mark.parametrize("name", ["dgx-h200", "cpu-server", "h200-nvl-4", "gb300-node"])
def test_each_commented_line_may_be_used_as_it_stands(tmp_path: Path, name: str) -> None:
    lines = spec_template.format_sheet(load_catalogue().server(name), load_catalogue()).splitlines()
    usable = [number for number, line in enumerate(lines) if _A_LINE.match(line)]
    assert len(usable) >= 6
    for number in usable:
        changed = [_A_LINE.sub(r"\1\2", lines[number]) if n == number else line
                   for n, line in enumerate(lines)]  # fmt: skip
        file = tmp_path / f"{number}.yml"
        file.write_text("\n".join(changed))
        found = spec.read_sheet(file, load_catalogue())
        assert found["origin"]["name"]


def test_a_price_beside_its_comment_reaches_the_report(tmp_path: Path) -> None:
    sheet = tmp_path / "quote.yml"
    kimi_prov(tmp_path, "init", "--spec", sheet, "--system", "dgx-h200")
    euros = "# price: {purchase: 230000"
    sheet.write_text(sheet.read_text().replace(euros, euros.removeprefix("# ")))
    ended = kimi_prov(tmp_path, "check", sheet, "--format", "json")
    [target] = json.loads(ended.out)["targets"]
    assert target["cost"]["purchase_usd"] == pytest.approx(248_400)
    [rate] = [row for row in target["assumptions"] if row["what"] == "Rate of exchange"]
    assert rate["value"] == "$1.08 for one EUR; EUR 230,000.00 quoted"
    told = kimi_prov(tmp_path, "check", sheet)
    assert "$1.08 for one EUR" in " ".join(told.out.split())


def test_without_a_name_it_is_a_server_with_gpus_and_says_how_to_get_others(
    tmp_path: Path,
) -> None:
    sheet = tmp_path / "quote.yml"
    ended = kimi_prov(tmp_path, "init", "--spec", sheet)
    assert ended.code == 0
    assert yaml.safe_load(sheet.read_text())["gpus"]["count"] == 8
    assert "cpu-server" in ended.err
    assert "kimi-prov catalog servers" in ended.err
    assert f"kimi-prov check {sheet}" in ended.err
    without = tmp_path / "cpus.yml"
    assert kimi_prov(tmp_path, "init", "--spec", without, "--system", "cpu-server").code == 0
    assert "gpus" not in yaml.safe_load(without.read_text())


@pytest.mark.parametrize(
    ("name", "near"),
    [("dgx-h20", "dgx-h200"), ("DGX B400", "dgx-b200"), ("rtx pro 6000", "rtx-pro-6000-1")],
)
def test_an_unknown_system_answers_with_the_nearest(tmp_path: Path, name: str, near: str) -> None:
    ended = kimi_prov(tmp_path, "init", "--spec", tmp_path / "quote.yml", "--system", name)
    assert ended.code == 2
    assert "did you mean" in ended.err
    assert near in ended.err
    assert not (tmp_path / "quote.yml").exists()


@pytest.mark.parametrize("name", ["DGX H200", "dgx_h200", "8x-H200", "GB300"])
def test_systems_by_what_people_call_them(name: str) -> None:
    assert load_catalogue().server(name).gpus in (4, 8)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    sheet = tmp_path / "quote.yml"
    sheet.write_text("mine")
    (tmp_path / "link.yml").symlink_to(tmp_path / "nowhere.yml")
    for file in (sheet, tmp_path / "link.yml", tmp_path):
        ended = kimi_prov(tmp_path, "init", "--spec", file)
        assert ended.code == 2
        assert "overwrites nothing" in ended.err
    assert sheet.read_text() == "mine"
    assert not (tmp_path / "nowhere.yml").exists()
    ended = kimi_prov(tmp_path, "init", "--spec", tmp_path / "none" / "quote.yml")
    assert ended.code == 2
    assert "cannot be written" in ended.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["init", "new"], "which profile? One of "),
        (["init"], "Missing argument 'DIRECTORY', or --spec FILE"),
        (["init", "new", "--profile", "localhost", "--system", "dgx-h200"], "--system belongs to"),
        (["init", "new", "--spec", "quote.yml"], "neither DIRECTORY nor --profile"),
        (["init", "--spec", "quote.yml", "--profile", "lab"], "neither DIRECTORY nor --profile"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, words: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = kimi_prov(tmp_path, *words)
    assert ended.code == 2
    assert says in ended.err
    assert not list(tmp_path.glob("[a-r]*"))


def test_every_server_is_made_of_parts_that_the_catalogue_has() -> None:
    catalogue = load_catalogue()
    assert {"dgx-h100", "dgx-h200", "dgx-b200", "dgx-b300"} <= {r.name for r in catalogue.servers}
    for row in catalogue.servers:
        assert catalogue.cpu(row.cpu).name == row.cpu
        assert row.gpu is None or catalogue.gpu(row.gpu).name == row.gpu
        assert (row.gpu is None) == (row.gpus == 0)
        assert (row.dimms is None) != (row.memory_gb is None)


def test_a_site_s_own_server_is_a_system_too(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    row = {
        "name": "our-box",
        "title": "Größe\n\x1b[2J: #1",
        "cpu": "EPYC 9654",
        "sockets": 2,
        "dimms": 24,
        "dimm_gb": 64,
        "source": "our own",
        "confidence": "high",
    }
    (folder / "servers.yaml").write_text(yaml.safe_dump({"servers": [row]}))
    words = ("init", "--spec", tmp_path / "box.yml", "--system", "our box", "--catalog", folder)
    assert kimi_prov(tmp_path, *words).code == 0
    found = spec.read_sheet(tmp_path / "box.yml", load_catalogue())
    assert found["memory"]["total_bytes"] == 1536 << 30
    with pytest.raises(UserError):
        load_catalogue().server("our box")
