"""The estimator's coefficients are read without the fit."""

import subprocess
import sys


def test_reading_the_coefficients_needs_no_fit():
    code = (
        "import sys; from kimi_prov.planner.throughput import stored;"
        "stored.load_models(); print('kimi_prov.planner.throughput.rows' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
