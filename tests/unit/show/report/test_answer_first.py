"""What a manager reads: `kimi-prov check` of the shipped spec sheets, in every form."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from check_inputs import read
from check_runs import H200, SHEETS, TWO_H100, reports

if TYPE_CHECKING:
    from pathlib import Path

SHEET = """\
schema: kimi-prov/spec/v1
name: {name}
cpu: {{model: "AMD EPYC 9654", sockets: 2, numa_nodes: 2}}
memory: {{dimms: 24, dimm_gb: 64, speed_mt_s: 4800}}
gpus: {{model: "{gpu}", count: 8}}
disks: [{{kind: nvme, size_gb: 3840, count: 4, read_gb_s: 7}}]
software: {{os: debian-12, nvidia_driver: "580.95.05"}}
price: {{hourly_usd: {dollars}}}
"""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """And one that is too small: what is shipped serves."""
    folder = tmp_path_factory.mktemp("shipped")
    small = SHEET.format(name="small", gpu="L40S", dollars=1).replace("dimms: 24", "dimms: 2")
    (folder / "small.yml").write_text(small)
    return reports(folder, *SHEETS, folder / "small.yml")


@pytest.fixture(scope="module")
def priced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two machines that serve and have a price, the dearer one the slower."""
    folder = tmp_path_factory.mktemp("priced")
    for name, gpu, dollars in (("dear", "H200 SXM", 26), ("cheap", "B200 SXM", 9)):
        (folder / f"{name}.yml").write_text(SHEET.format(name=name, gpu=gpu, dollars=dollars))
    return reports(folder, folder / "dear.yml", folder / "cheap.yml")


def document(forms: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(forms["json"])
    return found


def flat(forms: dict[str, str], suffix: str) -> str:
    """The words of a form, without its marks and line breaks."""
    text = forms[suffix]
    if suffix == "html":
        text = " ".join(read(text).text)
    return " ".join(re.sub(r"[\\*|]", " ", text).split())


FORMS = pytest.mark.parametrize("suffix", ["html", "md", "txt"])


@FORMS
def test_the_answer_and_its_ranking_come_before_all_else(
    shipped: dict[str, str], suffix: str
) -> None:
    answer = document(shipped)["answer"]
    text = flat(shipped, suffix)
    sentence = " ".join(answer["sentence"].split())
    assert sentence in text
    end = "Contents" if suffix == "html" else "What is in the way"
    head = text[text.index(sentence) : text.index(end)]
    # Text cuts long names in its table.
    assert all(row["target"][:15] in head for row in answer["ranking"])
    assert "recommended" in head.lower()
    blocked = [row["serves"] for row in answer["ranking"]]
    assert blocked == sorted(blocked, reverse=True)


@FORMS
def test_speeds_are_named_for_what_they_are_and_the_words_explained_once(
    shipped: dict[str, str], suffix: str
) -> None:
    text = flat(shipped, suffix)
    assert "Writing, one request" not in text
    assert text.count("writing the answer, token by token") == 1
    assert text.count("reading the question before") == 1


def test_each_speed_of_the_plan_stands_beside_its_name(shipped: dict[str, str]) -> None:
    page = shipped["md"]
    order = [row["target"] for row in document(shipped)["answer"]["ranking"]]
    targets = {row["name"]: row["plan"]["throughput"] for row in document(shipped)["targets"]}
    for label, key in (
        ("Decode, one request alone, tokens/s", "single_tok_s"),
        ("Decode, each of 16 at once, tokens/s", "decode_tok_s"),
        ("Decode, all 16 together, tokens/s", "aggregate_tok_s"),
        ("Prefill, tokens/s", "prefill_tok_s"),
    ):
        (line,) = [row for row in page.splitlines() if row.startswith(f"| {label} ")]
        cells = [cell.strip(" *") for cell in line.strip("|").split("|")][1:]
        shown = [float(cell.split()[0].replace(",", "")) for cell in cells]
        assert shown == pytest.approx([targets[name][key]["expected"] for name in order], rel=0.01)


@pytest.mark.parametrize("many", ["16", "1000", "100000", "100000000"])
def test_text_cuts_no_number_of_requests_at_once(tmp_path: Path, many: str) -> None:
    text = reports(tmp_path, TWO_H100, "--concurrency", many)["txt"]
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(
        rf"^Decode, each of {int(many):,} at once, tokens/s  +[0-9]", text, re.MULTILINE
    )
    named = [word.rstrip(".,:;") for word in re.findall(r"(?<=\bof )[0-9,.:;]+", text)]
    assert f"{int(many):,}" in named
    assert not [
        word for word in named if word != f"{int(many):,}" and f"{int(many):,}".startswith(word)
    ]


@FORMS
def test_where_others_wait_each_figure_says_how_many_run(tmp_path: Path, suffix: str) -> None:
    alone = reports(tmp_path, TWO_H100, "--concurrency", "1000")
    beside = reports(tmp_path, TWO_H100, H200, "--concurrency", "1000")
    for forms in (alone, beside):
        text = flat(forms, suffix)
        for target in document(forms)["targets"]:
            speed = target["plan"]["throughput"]
            few = speed["running"]
            assert few < 1000
            # In the verdict, and beside each of the two figures of those that run.
            assert text.count(f"({few:,} of them running") == 1
            assert text.count(f"({few:,} run)") >= 3
    (label,) = set(re.findall(r"Time to first token, with .*? at once", flat(alone, suffix)))
    assert label == "Time to first token, with 1,000 at once"


@FORMS
def test_every_form_has_the_money_of_the_page(priced: dict[str, str], suffix: str) -> None:
    text = flat(priced, suffix)
    for target in document(priced)["targets"]:
        dollars = target["cost"]["usd_per_hour"]
        assert f"${dollars:,.2f}" in text
        uses = target["cost"]["by_use"]
        assert uses
        for row in uses:
            cost = row["usd_per_million_output_tokens"]
            assert (f"${cost:,.0f}" if cost >= 100 else f"${cost:,.2f}") in text
        for row in target["cost"]["by_load"]:
            cost = row["usd_per_million_output_tokens"]["expected"]
            assert (f"${cost:,.0f}" if cost >= 100 else f"${cost:,.2f}") in text
    assert "by requests at once" in text


@FORMS
def test_self_hosting_never_loses_without_a_load(priced: dict[str, str], suffix: str) -> None:
    text = flat(priced, suffix)
    for found in re.finditer(r"loses at any use", text):
        around = text[max(0, found.start() - 160) : found.end() + 80]
        assert re.search(r"requests? at once|with each of|with so many", around), around


@FORMS
def test_what_is_settled_before_apply_takes_nothing_from_a_verdict_on_paper(
    priced: dict[str, str], suffix: str
) -> None:
    assert all(
        any(row["id"] == "weights.unpinned" for row in target["findings"])
        for target in document(priced)["targets"]
    )
    text = flat(priced, suffix)
    assert "To settle before apply" in text
    assert "Fits, with warnings" not in text
    assert "FITS, WITH WARNINGS" not in text


def test_on_a_probed_machine_such_a_warning_counts(priced: dict[str, str], tmp_path: Path) -> None:
    facts = document(priced)["targets"][0]["facts"]
    file = tmp_path / "facts.json"
    file.write_text(json.dumps(facts | {"origin": {"kind": "probe", "name": "live"}}))
    text = reports(tmp_path, file)["txt"]
    assert "FITS, WITH WARNINGS" in text
    assert "To settle before apply" not in text


def test_a_headline_names_the_consequence_first(shipped: dict[str, str]) -> None:
    titles = [
        row["title"]
        for target in document(shipped)["targets"]
        for row in target["findings"]
        if row["severity"] == "blocker"
    ]
    assert titles
    for title in titles:
        assert not re.match(r"(kt-kernel|sglang|vllm)", title, re.IGNORECASE), title


def test_text_is_short_for_many_and_whole_for_one(shipped: dict[str, str], tmp_path: Path) -> None:
    lines = shipped["txt"].splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 60 + 30 * len(SHEETS)
    one = reports(tmp_path, TWO_H100)["txt"]
    assert "requirement(s) met" in one
    assert "source: " in one
    assert max(map(len, one.splitlines())) <= 80


def test_the_best_is_marked_by_a_sign_and_not_by_its_colour(priced: dict[str, str]) -> None:
    page = priced["html"]
    assert '<span class="star" role="img" aria-label="best"> ★</span>' in page
    rows = [row for row in priced["txt"].splitlines() if re.match(r" [12] ", row)]
    assert len(rows) == 2
    assert "*$9.00" in rows[0] + rows[1]
    assert "**\\$9.00**" in priced["md"]


def test_no_plot_has_more_than_eight_colours_and_each_line_its_name(
    shipped: dict[str, str],
) -> None:
    page = shipped["html"]
    charts = re.findall(r'<svg [^>]*class="plot".*?</div>', page)
    keys = re.findall(r'<ol class="key names".*?</ol>', page, re.DOTALL)
    assert charts
    assert len(keys) == len(charts)
    for chart, key in zip(charts, keys, strict=True):
        tones = set(re.findall(r'class="curve (tone\d+)"', chart)) - {"tone0"}
        assert 1 <= len(tones) <= 8
        drawn = len(re.findall('class="curve tone', chart))
        assert chart.count('halo number"') == key.count("<li>") == drawn


def test_what_an_engine_is_started_with_opens_with_a_click(shipped: dict[str, str]) -> None:
    before, *parts = shipped["html"].split("<details")
    assert "--served-model-name" not in before
    opened = [part.partition("</details>")[2] for part in parts]
    assert not any("<pre" in part for part in opened)
    assert any("<pre" in part for part in parts)


def test_one_machine_needs_no_comparison(tmp_path: Path) -> None:
    page = reports(tmp_path, H200)["html"]
    assert 'id="sides"' not in page
    assert page.count("Decode, one request alone, tokens/s") == 1


@FORMS
def test_every_form_says_which_files_were_read_and_what_is_in_none(
    tmp_path: Path, suffix: str
) -> None:
    machine = tmp_path / "server"
    machine.mkdir()
    (machine / "cpu.txt").write_text(
        "Architecture: x86_64\nCPU(s): 64\nModel name: AMD EPYC 9334 32-Core Processor\n"
        "Thread(s) per core: 1\nCore(s) per socket: 32\nSocket(s): 2\n"
    )
    (machine / "notes.txt").write_text("call the vendor on Monday\n")
    forms = reports(tmp_path, machine)
    words = flat(forms, suffix)
    assert "Read of server: cpu.txt (lscpu)." in words
    assert re.search(r"Not told: [^.]*memory, GPUs", words)
    assert "notes.txt" in words
    # What is not told is neither none nor nothing.
    assert "GPUs not told" in words
    assert "GPUs none" not in words
    assert "0 B" not in words
    assert "recommended" not in words.lower()
