"""The list of files on the machine names every path that the code names."""

from __future__ import annotations

from file_list import row_of, rows

from kimi_prov.contract import paths, unit_names

LISTED = rows(managed=True)
# Transient units have no file of theirs.
TRANSIENT = {
    *(unit_names.DRIVER, unit_names.INSTALL, unit_names.TUNE, unit_names.BENCH, unit_names.SANDBOX),
    *(unit_names.UNDRAIN, unit_names.UNDRAIN_TIMER, unit_names.SHARE),
    unit_names.SESSIONS,
    unit_names.TUNING,
}
# Not ours, or no longer written.
ELSEWHERE = {paths.UNITS, paths.ENV}


def test_every_path_of_the_contract_is_listed() -> None:
    named = {value for value in vars(paths).values() if isinstance(value, str)}
    named |= {*paths.MANAGED, *paths.AMONG_OTHERS, *paths.collect_paths().values()}
    named |= {f"{paths.UNITS}/{unit}" for unit in unit_names.OURS if unit not in TRANSIENT}
    missing = {
        path
        for path in named - ELSEWHERE
        if path.startswith(("/etc/", "/run/", "/srv/", "/var/")) and row_of(path, LISTED) is None
    }
    assert missing == set()


def test_a_secret_is_for_its_owner_and_at_most_one_group() -> None:
    secret = [row for row in LISTED if row.secret]
    folders = {paths.ETC, paths.KEYS, paths.PROXY, paths.ACME, paths.TRANSFER, paths.NEIGHBOURS}
    folders |= {paths.MONITOR_ETC, f"{paths.MONITOR_ETC}/hosts"}
    assert {row.path.rsplit("/", 1)[0] for row in secret} == folders
    # A program among them is run by that group.
    assert [row for row in secret if int(row.mode, 8) & 0o027] == []
    closed = {row.path: int(row.mode, 8) for row in LISTED if row.path in folders - {paths.ETC}}
    assert all(not mode & 0o007 for mode in closed.values())
