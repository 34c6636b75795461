"""Findings about what a machine that is in use already has: mounts, accounts, its clock."""

from __future__ import annotations

from kimi_prov.planner.registry.definition import Definition

DEFINITIONS = (
    Definition(
        "bundle.enough",
        title="The offline bundle does not have all that this machine installs",
        severities=("blocker", "pass"),
        source="the plan, and the bundle's index with the SHA-256 of every file",
        remedy="depends",
        concerns="deployment",
        titles={"pass": "The offline bundle has all that this machine installs"},
    ),
    Definition(
        "disk.mount",
        title="The file system below /srv/kimi cannot be used as it is mounted",
        severities=("blocker",),
        source="mount(8): noexec forbids to map a library of the engine; ro, and a server that "
        "takes root's rights away, forbid to write",
        remedy="software",
        concerns="deployment",
    ),
    Definition(
        "host.account",
        title="The account {name} belongs to somebody else",
        severities=("blocker", "info"),
        source="the engine runs as that account: whoever else has it could read keys and weights",
        remedy="software",
        concerns="deployment",
        titles={"info": "The account {name} is there already: it is used, and stays at the end"},
    ),
    Definition(
        "host.clock",
        title="The machine's clock is wrong",
        severities=("blocker", "warning"),
        source="apt refuses a list of packages that is dated 10 s ahead of the clock; certificates "
        "and signed addresses are commonly allowed 5 minutes",
        remedy="software",
        concerns="deployment",
        titles={"warning": "The machine's clock and this machine's are apart"},
        moves=True,
    ),
)
