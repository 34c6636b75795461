"""What kimi-prov says of a machine, from the files that it leaves there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from plan_inputs import lab_facts, plan

from kimi_prov.contract import gateways
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import certificate, tls
from kimi_prov.on_host.metrics import collect

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A machine's files below a folder: the plan, the certificate, verified weights."""
    found = Paths(tmp_path)
    for folder in (found.etc, found.proxy, found.state):
        folder.mkdir(parents=True)
    document = plan(lab_facts(), metrics=True)
    document["throughput"]["decode_tok_s"] = {"low": 10.5, "expected": 12, "high": 14}
    found.plan.write_text(json.dumps(document))
    found.tls_crt.write_text(tls.extract_certificates(tls.make_self_signed(["h1"])))
    mark(found).parent.mkdir(parents=True)
    mark(found).write_text("{}")
    return found


def mark(paths: Paths) -> Path:
    model = json.loads(paths.plan.read_text())["model"]
    return paths.locate(f"{model['dir']}/.kimi-verified")


def shown(paths: Paths) -> dict[str, float]:
    rows = collect.collect(paths)["text"].splitlines()
    told = [row.rpartition(" ") for row in rows if not row.startswith("#")]
    return {name: float(value) for name, _, value in told}


def entry(paths: Paths, number: int, **fields: Any) -> None:
    folder = paths.history / f"{number:04d}"
    folder.mkdir(parents=True)
    head = {"schema": "kimi-prov/history-entry/v1", "number": number, "kind": "apply"}
    (folder / "entry.json").write_text(json.dumps({**head, **fields}))


def test_the_mark_of_verified_weights_counts_and_nothing_else(paths: Paths) -> None:
    assert shown(paths)["kimi_weights_verified"] == 1
    mark(paths).unlink()
    found = shown(paths)
    assert found["kimi_weights_verified"] == 0
    assert found["kimi_weights_bytes"] > 0
    # Nothing is mounted here.
    assert (found["kimi_ram_disk_planned"], found["kimi_ram_disk_filled"]) == (1, 0)


def test_the_certificates_end_is_told_in_seconds(paths: Paths) -> None:
    known = certificate.read(paths.tls_crt.read_text())
    assert known is not None
    assert shown(paths)["kimi_certificate_expires_timestamp_seconds"] == known.not_after


def test_prediction_and_the_last_measured_speed_stand_side_by_side(paths: Paths) -> None:
    assert "kimi_measured_decode_tokens_per_second" not in shown(paths)
    entry(paths, 9, speed={"decode_tok_s": 9.5})
    entry(paths, 10, speed={"decode_tok_s": 11.25})
    entry(paths, 11, speed=None)
    found = shown(paths)
    assert found["kimi_measured_decode_tokens_per_second"] == 11.25
    assert found['kimi_expected_decode_tokens_per_second{bound="low"}'] == 10.5


def test_a_part_that_fails_takes_no_other_with_it(paths: Paths) -> None:
    document = json.loads(paths.plan.read_text())
    del document["ram_disk"]
    paths.plan.write_text(json.dumps(document))
    found = shown(paths)
    # The plan's own part, and that of the weights.
    assert found["kimi_metrics_parts_failed"] == 2
    assert found["kimi_certificate_expires_timestamp_seconds"] > 0
    assert found["kimi_metrics_written_timestamp_seconds"] > 0


def test_a_machine_without_metrics_is_told_so(paths: Paths) -> None:
    paths.plan.write_text(json.dumps(plan(lab_facts())))
    with pytest.raises(HostError, match="no metrics are planned"):
        collect.write(paths)
    assert not paths.metrics_file.exists()


def test_the_file_is_whole_for_whoever_reads_it(paths: Paths) -> None:
    collect.write(paths)
    assert paths.metrics_file.stat().st_mode & 0o777 == 0o644
    assert paths.metrics_state.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in paths.metrics.iterdir()] == ["kimi.prom"]


def test_a_rank_tells_of_its_machine_and_of_no_speed(paths: Paths) -> None:
    """Clients are served by the head, and what it predicts and measures is the whole group's."""
    document = json.loads(paths.plan.read_text())
    document["group"] = {"rank": 1, "members": [], "control_port": 29500}
    document["instances"] = [{"index": 0, "unit": "kimi-rank.service"}]
    paths.plan.write_text(json.dumps(document))
    entry(paths, 1, speed={"decode_tok_s": 9.5})
    found = shown(paths)
    assert found["kimi_metrics_parts_failed"] == 0
    assert found["kimi_weights_verified"] == 1
    assert 'kimi_instance_active{engine="0"}' in found
    speeds = ("kimi_expected", "kimi_measured", "kimi_group_member", "kimi_instance_restarts")
    assert not [name for name in found if name.startswith(speeds)]


def test_a_gateway_tells_of_its_certificate_and_of_no_engine(paths: Paths) -> None:
    document = {"schema": gateways.SCHEMA, "metrics": {"gpus": None}, "gateway": {"hosts": []}}
    paths.plan.write_text(json.dumps(document))
    found = shown(paths)
    assert found["kimi_certificate_expires_timestamp_seconds"] > 0
    assert found["kimi_metrics_parts_failed"] == 0
    assert not any(name.startswith(("kimi_instance", "kimi_weights")) for name in found)
