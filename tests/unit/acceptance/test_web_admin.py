"""The page's first administrator, from a file of the control machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov.acceptance import web_admin
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "p:4711-long"


def load(tmp_path: Path, text: str) -> dict[str, str]:
    file = tmp_path / "admin"
    file.write_text(text)
    return web_admin.load_account(file)


def test_one_line_is_an_address_and_a_password_whatever_signs_it_has(tmp_path: Path) -> None:
    found = load(tmp_path, f"# the first one\nadmin@example.com:{SECRET} \"$'\\\n\n")
    assert found == {"email": "admin@example.com", "password": f"{SECRET} \"$'\\"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected one line, found 0"),
        (f"a@example.com:{SECRET}\nb@example.com:{SECRET}", "found 2"),
        (SECRET.replace(":", ""), "expected E-MAIL:PASSWORD"),
        (f"admin:{SECRET}", "expected E-MAIL:PASSWORD"),
        ("admin@example.com:short", "fewer than 8"),
        (f"admin@example.com:{SECRET}\x07x", "cannot be typed"),
        (f"admin@example.com:{SECRET * 7}", "more than 72 bytes"),
    ],
)
def test_what_is_no_such_line_is_refused_without_showing_it(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(tmp_path, text)
    assert "admin" in str(caught.value)
    assert "4711" not in f"{caught.value} {caught.value.fix}"
