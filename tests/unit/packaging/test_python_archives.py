"""The archive of an interpreter in a directory of the control machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov.errors import UserError
from kimi_prov.packaging import python_archives

if TYPE_CHECKING:
    from pathlib import Path

NAME = "cpython-3.12.16+20261110-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz"
PYTHON = {"archive": f"/srv/x/{NAME}", "build": "20261110", "sha256": "5" * 64}


@pytest.mark.parametrize("kept", [NAME, f"20261110/{NAME}", NAME.replace("+", "%2B")])
def test_it_is_found_as_a_mirror_has_it_or_as_it_was_saved(tmp_path: Path, kept: str) -> None:
    path = tmp_path / kept
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert python_archives.find(tmp_path, PYTHON) == path


def test_a_directory_without_it_is_refused_with_its_name_and_digest(tmp_path: Path) -> None:
    (tmp_path / NAME.replace("3.12.16", "3.12.15")).touch()
    (tmp_path / NAME).mkdir()
    with pytest.raises(UserError) as caught:
        python_archives.find(tmp_path, PYTHON)
    assert NAME in caught.value.message
    assert "5" * 64 in str(caught.value.fix)
