"""What a command imports to read a spec sheet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[3] / "inventories" / "specs"


def test_reading_a_sheet_does_not_import_the_slow_validator() -> None:
    code = (
        "import sys; from pathlib import Path; from kimi_prov.facts import spec;"
        "from kimi_prov.catalog.loader import load_catalogue;"
        f"spec.read_sheet(Path({str(SHIPPED / 'quote-8x-h200.yml')!r}), load_catalogue());"
        "print('jsonschema' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- whatever is in the file ------------------------------------------------------------------
