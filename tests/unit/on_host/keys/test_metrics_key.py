"""The key by which metrics are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov.acceptance import metrics_key as given
from kimi_prov.contract.paths import Paths
from kimi_prov.errors import UserError
from kimi_prov.on_host.keys import key_map, metrics_key, publish

if TYPE_CHECKING:
    from pathlib import Path

MADE = {"sha256": None}


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    found = Paths(tmp_path)
    for folder in (found.keys, found.proxy):
        folder.mkdir(parents=True)
    return found


def test_one_is_made_once_and_kept(paths: Paths) -> None:
    assert metrics_key.ensure(paths, MADE)
    key = metrics_key.read(paths)
    assert key_map.parse_map(paths.metrics_key_map.read_text()) == {
        "metrics": publish.hash_key(key)
    }
    assert paths.metrics_key.stat().st_mode & 0o777 == 0o600
    assert not metrics_key.ensure(paths, MADE)
    assert metrics_key.read(paths) == key


def test_a_run_that_was_cut_between_the_two_files_is_completed(paths: Paths) -> None:
    metrics_key.ensure(paths, MADE)
    key = metrics_key.read(paths)
    paths.metrics_key_map.unlink()
    assert metrics_key.ensure(paths, MADE)
    assert key_map.parse_map(paths.metrics_key_map.read_text()) == {
        "metrics": publish.hash_key(key)
    }


def test_of_a_given_key_the_machine_has_the_hash_alone(paths: Paths) -> None:
    metrics_key.ensure(paths, MADE)
    digest = publish.hash_key("a-key-of-the-site-0123")
    assert metrics_key.ensure(paths, {"sha256": digest})
    assert not paths.metrics_key.exists()
    assert key_map.parse_map(paths.metrics_key_map.read_text()) == {"metrics": digest}
    assert not metrics_key.ensure(paths, {"sha256": digest})


def test_check_mode_and_machines_without_metrics_write_nothing(paths: Paths) -> None:
    assert metrics_key.ensure(paths, MADE, check=True)
    assert not metrics_key.ensure(paths, None)
    assert not paths.metrics_key.exists()
    assert not paths.metrics_key_map.exists()


@pytest.mark.parametrize("text", ["", "short", "two words that are long enough", "a" * 20 + "\nb"])
def test_a_file_that_holds_no_key_is_refused_without_its_content(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(UserError) as told:
        given.load_key(file)
    assert "kimi_metrics_key_file" in told.value.message
    assert not text or text not in told.value.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"kimi_metrics_key_file: .*none cannot be read"):
        given.load_key(tmp_path / "none")
