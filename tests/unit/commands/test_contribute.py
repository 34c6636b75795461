"""`kimi-prov contribute`: rows that the estimator reads, and nothing in them of whose they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import bench_inputs as given
import closed_form
import pytest
import yaml
from click.testing import CliRunner

from kimi_prov.cli import cli
from kimi_prov.errors import UserError
from kimi_prov.planner.throughput import rows

if TYPE_CHECKING:
    from pathlib import Path

KEYS = {
    *("id", "model", "quant", "engine", "cpu", "sockets", "memory", "cpu_mem_theoretical_gb_s"),
    *("cpu_mem_measured_gb_s", "gpus", "flags", "concurrency", "context"),
    *("decode_tok_s_per_request", "decode_tok_s_aggregate", "prefill_tok_s"),
    *("measured", "confidence", "note", "source"),
}


def contributed(path: Path, *words: str) -> Any:
    done = CliRunner().invoke(cli, ["contribute", str(path), *words])
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exception is None, done.exception
    return done


def found(path: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load(contributed(path).stdout)
    assert document["schema"] == "kimi-prov/catalog/speeds/v1"
    return list(document["rows"])


def test_a_row_for_each_number_of_requests_reads_back_as_what_was_measured(tmp_path: Path) -> None:
    path = given.written(tmp_path, secret_node=given.result())
    closed_form.validate(json.loads(path.read_text()), "bench")
    file = tmp_path / "speeds.yaml"
    contributed(path, "--output", str(file))
    cases, aside = rows.read_file(file)
    assert aside == []
    by = {(case.kind, case.quantity): case for case in cases}
    assert by["gpu-single", "decode"].value == 100.0
    assert by["gpu-single", "prefill"].value == 9000.0
    many = by["gpu-batched", "decode"]
    assert many.value == pytest.approx(420.0 / 16)
    assert many.end_to_end
    assert (many.serving.input_tokens, many.serving.output_tokens) == (8192, 1024)
    assert many.machine.gpus is not None
    assert (many.machine.gpus.name, many.machine.gpus.count) == ("H200 SXM", 8)
    assert len({case.author for case in cases}) == 1


def test_a_hybrid_keeps_what_its_speed_depends_on(tmp_path: Path) -> None:
    result = given.result(given.level(1, 15.0, 14.0, 300.0), path=given.HYBRID)
    file = tmp_path / "speeds.yaml"
    contributed(given.written(tmp_path, a=result), "--output", str(file))
    (decode, _), aside = rows.read_file(file)
    assert aside == []
    assert (decode.kind, decode.serving.engine) == ("hybrid", "ktransformers")
    assert decode.machine.cpu is not None
    assert decode.machine.cpu.measured_gb_s == 600.0
    assert decode.machine.cpu.sockets == 2
    assert decode.serving.gpu_experts == result["serving"]["gpu_experts"]
    assert decode.serving.cpu_threads == result["serving"]["threads"]
    assert decode.serving.stream_prefill_from is None


def test_nothing_tells_whose_machine_it_was(tmp_path: Path) -> None:
    result = given.result()
    # What somebody adds to the document one day is not let through either.
    result["machine"]["processor"] = "the Xeon of secret-node"
    result["detail"] = "measured by secret-user in /home/secret"
    page = contributed(given.written(tmp_path, secret_node=result)).stdout
    assert "secret" not in page
    facts = given.facts_of()
    for text in (*(gpu["uuid"] for gpu in facts["gpus"]), facts["gpus"][0]["pci"], "/srv"):
        assert text not in page
    for row in yaml.safe_load(page)["rows"]:
        assert set(row) <= KEYS
        assert row["cpu"] == "1x unspecified processor" or "unspecified" in row["cpu"]


def test_the_same_measurement_makes_the_same_row(tmp_path: Path) -> None:
    one = found(given.written(tmp_path, a=given.result()))
    other = found(given.written(tmp_path, b=given.result()))
    assert one == other


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"stand_ins": ["the host is a systemd-nspawn container"]}, "stand-ins are no measurement"),
        ({"ok": False, "detail": "2 requests failed"}, "2 requests failed"),
        ({"model": "a-model-of-secret-node"}, "unknown model"),
        ({"engine": {"name": "vllm", "variant": "cuda", "version": "secret"}}, "engine"),
    ],
)
def test_what_is_no_measurement_is_refused(
    tmp_path: Path, changed: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = given.written(tmp_path, a={**given.result(), **changed})
    done = CliRunner().invoke(cli, ["contribute", str(path)])
    assert isinstance(done.exception, UserError)
    assert "no host of it was measured" in str(done.exception)
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "changed",
    [
        ("serving", "weights_format", "secret-node"),
        ("serving", "method", "secret-node"),
        ("serving", "experts_by", "secret-node"),
        ("engine", "version", "0.19.1+secret.node"),
        ("serve", "input_tokens", 0),
        ("serve", "output_tokens", 0),
    ],
)
def test_a_word_that_nobody_knows_and_a_load_of_nothing_make_no_row(
    tmp_path: Path, changed: tuple[str, str, Any]
) -> None:
    part, key, value = changed
    result = given.result()
    result[part][key] = value
    done = CliRunner().invoke(cli, ["contribute", str(given.written(tmp_path, a=result))])
    assert isinstance(done.exception, UserError)
    assert done.stdout == ""


def test_a_lab_host_is_refused(tmp_path: Path) -> None:
    lab = given.result(variables={"lab_kind": "nspawn"})
    with pytest.raises(UserError, match="no host"):
        contributed(given.written(tmp_path, a=lab))


def test_a_bench_of_an_older_version_is_refused(tmp_path: Path) -> None:
    old = {key: v for key, v in given.result().items() if key not in ("machine", "serving")}
    done = CliRunner().invoke(cli, ["contribute", str(given.written(tmp_path, a=old))])
    assert isinstance(done.exception, UserError)
    assert "older version" in done.stderr


@pytest.mark.parametrize("content", ["", "[]", '{"schema": "kimi-prov/facts/v1"}', '{"hosts": 1}'])
def test_what_is_no_bench_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "bench.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"bench\.json"):
        contributed(path)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rate_per_s": 20.0}, "20 requests a second"),
        ({"images": 1, "image_width": 64, "image_height": 64, "chat": True}, "with images"),
        ({"prompts": "sharegpt", "prompts_of_file": 9}, "prompts of a file"),
        ({"prompts": "visionarena", "images_of_file": 9}, "with images"),
    ],
)
def test_a_load_whose_speed_stands_for_no_other_makes_no_row(
    tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    done = CliRunner().invoke(
        cli, ["contribute", str(given.written(tmp_path, a=given.result(asked=asked)))]
    )
    assert isinstance(done.exception, UserError)
    assert said in done.stderr


def test_a_sweep_of_rounds_makes_rows_and_a_chat_is_marked(tmp_path: Path) -> None:
    levels = [given.loaded(given.level(n, 90.0, 80.0 * n, 900.0)) for n in (1, 4)]
    asked = {"chat": True, "rounds": 3, "chosen_lengths": False}
    path = given.written(tmp_path, a=given.result(*levels, asked=asked))
    closed_form.validate(json.loads(path.read_text()), "bench")
    one, four = found(path)
    assert (one["note"], four["note"]) == ("2026-11; chat", "2026-11; chat; aggregate incl. TTFT")
    assert set(four) <= KEYS
    file = tmp_path / "speeds.yaml"
    contributed(path, "--output", str(file))
    cases, aside = rows.read_file(file)
    assert (len(cases), aside) == (3, [])
