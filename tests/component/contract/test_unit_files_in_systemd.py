"""systemd's own reader takes the words that we write into unit files."""

import subprocess
from pathlib import Path

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
