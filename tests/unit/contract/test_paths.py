"""A path of the machine is the same as a constant, under a root, and in the plan for the roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from kimi_prov.contract import paths

UNDER_ROOT = {name for name in vars(paths.Paths) if isinstance(getattr(paths.Paths(), name), Path)}
IN_PLAN = paths.collect_paths()


@pytest.mark.parametrize("name", sorted({*UNDER_ROOT, *IN_PLAN}))
def test_a_path_is_the_same_in_each_form(name: str, tmp_path: Path) -> None:
    values = {IN_PLAN[name]} if name in IN_PLAN else set()
    if name in UNDER_ROOT:
        assert getattr(paths.Paths(tmp_path), name).is_relative_to(tmp_path)
        values.add(str(getattr(paths.Paths("/"), name)))
    constant = getattr(paths, name.upper(), None)
    values |= {constant} if isinstance(constant, str) else set()
    assert len(values) <= 1


@pytest.mark.parametrize("name", sorted(IN_PLAN))
def test_a_path_of_the_plan_is_a_constant(name: str) -> None:
    assert IN_PLAN[name] in {value for value in vars(paths).values() if isinstance(value, str)}
