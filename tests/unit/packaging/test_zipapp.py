"""The one file that travels: the same bytes every time, and nothing left where it ran."""

from __future__ import annotations

import ast
import io
import zipfile
from typing import TYPE_CHECKING

import pytest

from kimi_prov.errors import UserError
from kimi_prov.facts import document as facts
from kimi_prov.packaging import zipapp

if TYPE_CHECKING:
    from pathlib import Path


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    first = zipapp.build_zipapp(tmp_path / "a.pyz").read_bytes()
    zipapp.make_zipapp_bytes.cache_clear()
    assert zipapp.build_zipapp(tmp_path / "b.pyz").read_bytes() == first


def test_the_entry_point_is_syntax_that_any_python_reads() -> None:
    with zipfile.ZipFile(io.BytesIO(zipapp.make_zipapp_bytes())) as archive:
        source = archive.read("__main__.py").decode()
    found = list(ast.walk(ast.parse(source, feature_version=(3, 4))))
    # What Python 3.4 has and Python 2.7 has not, or reads otherwise.
    newer = (ast.AnnAssign, ast.arg, ast.AsyncFunctionDef, ast.JoinedStr, ast.Nonlocal, ast.Starred)
    assert not [node for node in found if isinstance(node, newer)]
    called = {
        node.func.id for node in found if isinstance(node, ast.Call) and hasattr(node.func, "id")
    }
    assert "print" not in called
    assert source.isascii()


def test_it_holds_no_more_than_it_needs(tmp_path: Path) -> None:
    program = zipapp.build_zipapp(tmp_path / "probe.pyz")
    names = zipfile.ZipFile(program).namelist()
    folders = {"/".join(name.split("/")[:-1][:2]) for name in names if "/" in name}
    assert folders == {"kimi_prov", "kimi_prov/contract", "kimi_prov/on_host", "cpuinfo"}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        zipapp.build_zipapp(tmp_path / "file" / "probe.pyz")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{\n", "facts.json:2: not JSON"),
        ("[]", "the document"),
        ('{"schema": "kimi-prov/facts/v9"}', "required property"),
    ],
)
def test_a_broken_facts_file_is_named_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "facts.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        facts.read_facts(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)
