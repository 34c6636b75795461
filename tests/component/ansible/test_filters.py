"""The filters of the roles: each is there, and none makes a run wait for the planner."""

from __future__ import annotations

import importlib
import subprocess
import sys

from kimi_prov.ansible.plugins.filter.kimi import _ELSEWHERE

ASKED = """
import sys
from kimi_prov.ansible.plugins.filter.kimi import FilterModule
FilterModule().filters()
late = ("kimi_prov.planner", "kimi_prov.catalog")
print(*[name for name in sys.modules if name.startswith(late)])
"""


def test_every_filter_is_a_function() -> None:
    for name, source in _ELSEWHERE.items():
        module, _, function = source.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), name


def test_a_question_to_a_host_imports_no_planner() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
