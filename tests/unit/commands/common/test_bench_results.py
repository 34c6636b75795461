"""Results of `bench` that are kept on the control machine."""

from __future__ import annotations

import pytest

from kimi_prov.commands.common import bench_results


@pytest.mark.parametrize("host", ["node1", "../up", "a b"])
def test_results_are_kept_apart_and_the_newest_is_the_last(tmp_path, host) -> None:
    place = bench_results.find_folder(tmp_path, tmp_path / "inv", host)
    assert place.resolve().is_relative_to((tmp_path / "bench").resolve())
    assert bench_results.read_last(place) is None
    place.mkdir(parents=True)
    (place / "20200101-000000.json").write_text('{"n": 1}')
    bench_results.save(place, {"n": 2})
    (place / "99999999-000000.json").write_text("{cut")
    assert bench_results.read_last(place) == {"n": 2}
    assert bench_results.find_folder(tmp_path, tmp_path / "other", host) != place
