"""Words of unit files, held against systemd's own reader where it is there."""

import pytest

from kimi_prov.contract import unit_files


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        ("--max-model-len", "--max-model-len"),
        (8001, "8001"),
        ("", '""'),
        ("50%", '"50%%"'),
        ("$HOME", '"$$HOME"'),
        ('{"a": 1}', '"{\\"a\\": 1}"'),
        ("a\\b\nc", '"a\\\\b\\nc"'),
        ("\x07", '"\\x07"'),
    ],
)
def test_an_argument_is_kept_from_systemds_own_marks(value: object, quoted: str) -> None:
    assert unit_files.quote_argument(value) == quoted


def test_an_assignment_keeps_its_dollar() -> None:
    assert unit_files.quote_assignment("$x 5%", "NAME") == '"NAME=$x 5%%"'
    assert unit_files.quote_assignment("1", "NAME") == "NAME=1"


def test_what_a_unit_file_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="null"):
        unit_files.quote_argument("a\0b")
    with pytest.raises(ValueError, match="not the name"):
        unit_files.quote_assignment("1", "NO NAME")
