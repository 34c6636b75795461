"""Every role names the systems that the lab has hosts of."""

from __future__ import annotations

import pytest
import yaml

from kimi_prov.lab.inventory import SUITES
from kimi_prov.packaging.resources import find_root

ROLES = sorted(path.parents[1].name for path in find_root().glob("roles/*/meta/main.yml"))


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_for_the_systems_of_the_lab(role: str) -> None:
    meta = yaml.safe_load((find_root() / "roles" / role / "meta" / "main.yml").read_text())
    platforms = meta["galaxy_info"]["platforms"]
    named = {(row["name"], suite) for row in platforms for suite in row["versions"]}
    assert named == {(image.partition("-")[0].title(), suite) for image, suite in SUITES.items()}
