"""Words of unit files, held against systemd's own reader where it is there."""

import subprocess
from pathlib import Path

import pytest

from kimi_prov.contract import unit_files

NASTY = [
    "",
    "a b",
    'say "hi"',
    "50%",
    "$HOME ${HOME}",
    "back\\slash",
    "tab\there",
    "line\nfeed",
    ";",
]


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


def test_systemd_reads_the_nastiest_of_them_without_a_complaint(tmp_path: Path) -> None:
    words = " ".join(unit_files.quote_argument(value) for value in NASTY)
    lines = "".join(f"Environment={unit_files.quote_assignment(value, 'V')}\n" for value in NASTY)
    unit = tmp_path / "nasty.service"

    def complaints(text: str) -> str:
        unit.write_text(text)
        command = ["systemd-analyze", "verify", "--man=no", str(unit)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "\n".join(line for line in done.stderr.splitlines() if unit.name in line)

    assert complaints('[Service]\nExecStart=/bin/true "open\n'), "it would complain"
    assert complaints(f"[Service]\n{lines}ExecStart=/bin/true {words}\n") == ""
