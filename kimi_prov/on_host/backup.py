"""`backup`: an archive of what cannot be made again on this machine, and its restore.

    backup make --for UID        an archive that this user may fetch
    backup receive --for UID     an empty folder that this user may write one to
    backup restore SHA256        restore the archive there
    backup end                   remove the archive

The archive holds the hashes of the API keys with their rules, the use by key and day, the
certificate with its key, the ACME account, the history, and the web UI's data. What `apply` makes
from the inventory is left out. It is restored on a machine on which `apply` has run: users and
services exist there, and what the plan does not have is left out.

Decides: what a backup holds, and where it is restored.
Applied by: playbooks/backup.yml.
Held by: tests/component/on_host/test_host_backup.py, tests/unit/operate/test_encryption.py,
  tests/component/operate/test_encryption_programs.py, tests/lab/test_restore.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from kimi_prov.contract import gateways, groups, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import NOT_APPLIED, HostError
from kimi_prov.on_host.endpoint import certificate, tls
from kimi_prov.on_host.history import entries
from kimi_prov.on_host.keys import key_map, metadata, publish
from kimi_prov.on_host.proxy import acme, converge
from kimi_prov.on_host.system import archive as archives
from kimi_prov.on_host.system import kept_state, plans, transfer
from kimi_prov.on_host.system.files import (
    find_owner_ids,
    make_directory,
    read_json,
    read_text,
    remove,
    sync_directory,
    write_atomic,
)
from kimi_prov.on_host.usage import store as usage_store
from kimi_prov.on_host.web import backup as web_backup
from kimi_prov.on_host.web.store import DATABASE

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator

    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.paths import Paths

SCHEMA = "kimi-prov/backup-archive/v1"
KEYS = "keys.map"
KEY_METADATA = "book.json"
USAGE = "usage.json"
OPERATOR = "operator.new"
WEB_ADMIN = "web-admin.new"
CERTIFICATE = "tls.pem"
ISSUED = "acme.pem"
ORDER = "acme.json"
ACCOUNTS = "acme/accounts/"
HISTORY = "history/"
WEB_UI = "page.tar.gz"
# An archive has at most one of each of these files; none is larger than on any machine.
_SINGLE = (KEYS, KEY_METADATA, OPERATOR, WEB_ADMIN, CERTIFICATE, ISSUED, ORDER, WEB_UI, USAGE)
_MAX_SMALL_BYTES = 1 << 20
# One row a key and day, for hundreds of keys over years.
_MAX_USAGE_BYTES = 256 << 20
_ENTRY = re.compile(rf"history/(\d{{4,9}})/{re.escape(entries.ENTRY)}")
_KEY = re.compile(r"[!-~]{8,200}")
# Each machine makes these keys itself, and has each in a file beside the hashes.
_MACHINES = (publish.VERIFY, layout.WEB_KEY_NAME)


def make_archive(paths: Paths, reader: int) -> dict[str, Any]:
    """Make an archive that the user `reader` may fetch; return its path and its contents."""
    plan = _read_plan(paths)
    return transfer.make_archive(paths, reader, lambda descriptor: _save(paths, plan, descriptor))


def _read_plan(paths: Paths) -> Plan:
    plan = plans.read_plan(paths.plan)
    if not plan:
        raise HostError(*NOT_APPLIED)
    return plan


def _save(paths: Paths, plan: Plan, descriptor: int) -> dict[str, Any]:
    rows: dict[str, archives.Row] = {}
    left_out: list[str] = []
    told = {"made_unix": int(time.time()), "hostname": os.uname().nodename}
    with os.fdopen(os.dup(descriptor), "wb") as out:
        with archives.open_archive(out) as archive:
            for name, path in _list_files(paths, plan):
                with open(path, "rb", opener=_open_regular) as stream:
                    rows[name] = archives.add(archive, name, stream)
            _add_usage(archive, rows, paths)
            page = _add_web_ui(archive, rows, paths, plan, left_out)
            archives.close(archive, SCHEMA, told, rows)
        out.flush()
        os.fsync(out.fileno())
    return {
        **told,
        **_describe_contents(
            sorted(rows),
            read_text(paths.key_map),
            read_text(_find_certificate(paths, plan)[1]),
            page,
        ),
        "left_out": left_out,
    }


def _describe_contents(names: list[str], hashes: str, pem: str, page: Any) -> dict[str, Any]:  # noqa: ANN401
    """Describe the contents of an archive with these files."""
    there = set(names)
    known = sorted(set(key_map.parse_map(hashes)) - {*_MACHINES}) if KEYS in there else []
    found = [match[1] for match in map(_ENTRY.fullmatch, names) if match]
    return {
        "keys": known,
        "certificate_sha256": tls.compute_fingerprint(pem)
        if {CERTIFICATE, ISSUED} & there
        else None,
        "acme_account": any(name.startswith(ACCOUNTS) for name in names),
        "history": len(set(found)),
        "page": page,
    }


def _find_certificate(paths: Paths, plan: Plan) -> tuple[str, Path]:
    """Return, by its name in the archive, the file that belongs to the certificate."""
    issued = plan["proxy"]["tls"]["mode"] == "acme" and paths.acme_pem.exists()
    return (ISSUED, paths.acme_pem) if issued else (CERTIFICATE, paths.tls_pem)


def _list_files(paths: Paths, plan: Plan) -> Iterator[tuple[str, Path]]:
    """Return the files of an archive, by their name in it."""
    single = {KEYS: paths.key_map, KEY_METADATA: paths.key_book, OPERATOR: paths.operator_new}
    if plan["proxy"]["tls"]["mode"] != "files":
        # The inventory has the other certificates.
        single |= dict([_find_certificate(paths, plan)])
    if ISSUED in single:
        single[ORDER] = paths.acme_state
    if plan.get("web"):
        single[WEB_ADMIN] = paths.web_admin_new
    yield from ((name, path) for name, path in single.items() if path.exists())
    for name in archives.list_names(paths.history):
        if _is_known(HISTORY + name):
            yield HISTORY + name, paths.history / name
    yield from _list_account_files(paths)


def _list_account_files(paths: Paths) -> Iterator[tuple[str, Path]]:
    """Return the files of the ACME client's account.

    The folder belongs to the client's user, who could put links there.
    """
    top = paths.acme / "client" / "config" / "accounts"
    uid, _ = find_owner_ids(layout.ACME_USER, layout.ACME_USER)
    for name in archives.list_names(top):
        state = (top / name).lstat()
        if state.st_uid == uid and state.st_nlink == 1 and archives.is_safe_name(ACCOUNTS + name):
            yield ACCOUNTS + name, top / name


def _open_regular(name: str, _flags: int) -> int:
    """Open a regular file; never follow a link."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise HostError(f"{name} is not a regular file", "find out who put it there, and remove it")
    return descriptor


def _add_usage(archive: tarfile.TarFile, rows: dict[str, archives.Row], paths: Paths) -> None:
    if not paths.usage_db.exists():
        return
    with tempfile.TemporaryFile(dir=paths.transfer) as stream:
        stream.write(usage_store.export_rows(paths.usage_db))
        stream.seek(0)
        rows[USAGE] = archives.add(archive, USAGE, stream)


def _add_web_ui(
    archive: tarfile.TarFile,
    rows: dict[str, archives.Row],
    paths: Paths,
    plan: Plan,
    left_out: list[str],
) -> Any:  # noqa: ANN401
    """Add the web UI's own archive; return its contents, None without a web UI."""
    web = _find_web_ui(paths, plan)
    if not web:
        if paths.locate(layout.WEB).is_dir():
            left_out.append(f"the web UI's data in {layout.WEB}: no web UI is planned here")
        return None
    if not Path(web["data"], DATABASE).exists():
        return None
    with tempfile.TemporaryFile(dir=paths.transfer) as stream:
        told = web_backup.run_in_folder(web, "save", stream.fileno())
        stream.seek(0)
        rows[WEB_UI] = archives.add(archive, WEB_UI, stream)
    return _describe_web_ui(told)


def _find_web_ui(paths: Paths, plan: Plan) -> dict[str, Any] | None:
    """Return the plan's web UI, None where none is planned."""
    web = plan.get("web")
    return {**web, "data": str(paths.locate(web["data"]))} if web else None


def _describe_web_ui(told: dict[str, Any]) -> dict[str, Any]:
    names = ("version", "made_unix", "accounts", "chats", "uploads")
    return {**{name: told[name] for name in names}, "left_out": told.get("left_out") or []}


def _is_known(name: str) -> bool:
    """Return whether an archive may have a file of this name."""
    if name in _SINGLE:
        return True
    return archives.is_safe_name(name) and (
        name.startswith(ACCOUNTS) or _ENTRY.fullmatch(name) is not None
    )


@dataclass(frozen=True)
class Contents:
    """The contents of an archive, read and checked before anything is restored."""

    folder: Path
    names: list[str]
    made_unix: int
    hostname: str
    keys: dict[str, str] = field(default_factory=dict)
    key_metadata: metadata.KeyMetadata = field(default_factory=dict)
    usage: tuple[dict[str, Any], ...] = ()
    operator: str = ""
    pem: str = ""
    issued: dict[str, Any] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()

    def has(self, *names: str) -> bool:
        """Return whether the archive has one of these files."""
        return bool({*names} & {*self.names})


def read(source: IO[bytes], folder: Path) -> Contents:
    """Unpack an archive below `folder` and read it. Raises HostError unless it is one of ours."""
    names, manifest = archives.unpack(source, folder, SCHEMA, _is_known)
    made, hostname = manifest.get("made_unix"), manifest.get("hostname")
    if not isinstance(made, int) or not isinstance(hostname, str):
        raise HostError(
            "the archive's manifest does not say when and where it was made", archives.BAD
        )
    single = {*_SINGLE} - {WEB_UI, USAGE}
    small = {name: _read_small(folder / name) for name in names if name in single}
    lines = [line for line in small.get(KEYS, "").splitlines() if line.strip()]
    found = key_map.parse_map("\n".join(lines))
    if len(found) != len(lines):
        raise HostError(f"its {KEYS} has lines without the hash of a key", archives.BAD)
    key_metadata = _parse_key_metadata(small.get(KEY_METADATA))
    usage = _read_usage(folder / USAGE) if USAGE in names else ()
    operator = small.get(OPERATOR, "").strip()
    if OPERATOR in small and not _KEY.fullmatch(operator):
        raise HostError(f"its {OPERATOR} is no key", archives.BAD)
    pem = small.get(ISSUED) or small.get(CERTIFICATE) or ""
    if pem:
        _require_pair(pem)
    order = _read_order(folder / ORDER)
    history = tuple(_read_entry(folder, name) for name in sorted(names) if _ENTRY.fullmatch(name))
    return Contents(
        folder, names, made, hostname, found, key_metadata, usage, operator, pem, order, history
    )


def _parse_key_metadata(text: str | None) -> metadata.KeyMetadata:
    """Read the rules of keys; none where the archive is older than rules."""
    try:
        return metadata.parse(json.loads(text)) if text is not None else {}
    except (ValueError, AttributeError, HostError) as error:
        raise HostError(f"its {KEY_METADATA} holds no rules of keys", archives.BAD) from error


def _read_usage(path: Path) -> tuple[dict[str, Any], ...]:
    """Read the use by key and day."""
    if path.stat().st_size > _MAX_USAGE_BYTES:
        raise HostError(f"its {path.name} is larger than on any machine", archives.BAD)
    try:
        return tuple(usage_store.parse_rows(json.loads(path.read_bytes())))
    except (ValueError, KeyError, TypeError) as error:
        raise HostError(f"its {USAGE} tells of no use", archives.BAD) from error


def _read_entry(folder: Path, name: str) -> dict[str, Any]:
    """Return an entry of the history as a row of the list."""
    if (folder / name).stat().st_size > _MAX_SMALL_BYTES:
        raise HostError(f"its {name} is larger than on any machine", archives.BAD)
    try:
        entry = entries.from_other_machine(read_json(folder / name))
    except ValueError as error:
        raise HostError(f"its {name}: {error}", archives.BAD) from error
    if entry["number"] != int(Path(name).parent.name):
        raise HostError(f"its {name} is entry {entry['number']}", archives.BAD)
    return entry


def _read_small(path: Path) -> str:
    if path.stat().st_size > _MAX_SMALL_BYTES:
        raise HostError(f"its {path.name} is larger than on any machine", archives.BAD)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise HostError(f"its {path.name} is not text", archives.BAD) from error


def _require_pair(pem: str) -> None:
    try:
        tls.read_given(pem, tls.CERTIFICATE.sub("", pem))
    except HostError as error:
        raise HostError("its certificate is none, or has another key", archives.BAD) from error


def _read_order(path: Path) -> dict[str, Any]:
    """Return for what the certificate was issued; empty where the archive does not say."""
    issued = read_json(path).get("issued")
    issued = issued if isinstance(issued, dict) else {}
    names, contact = issued.get("names"), issued.get("contact")
    if not isinstance(issued.get("directory_url"), str) or not isinstance(names, list):
        return {}
    return {
        "directory_url": issued["directory_url"],
        "names": [str(name) for name in names],
        "contact": contact if isinstance(contact, str) else None,
    }


def restore(paths: Paths, sha256: str) -> dict[str, Any]:
    """Restore the contents of the archive, as far as the plan has them.

    Everything is read and checked first. The web UI is restored first: if it does not answer with
    the restored data, it gets its own data again, HostError is raised, and nothing else is changed.
    Return what was restored, and what was left out, each with its reason.
    """
    plan = _read_plan(paths)
    with transfer.open_received(paths, sha256) as descriptor:
        folder = transfer.clear_folder(paths)
        try:
            with os.fdopen(os.dup(descriptor), "rb") as source:
                contents = read(source, folder)
            return _restore(paths, plan, contents)
        finally:
            transfer.remove_archive(paths)


def _restore(paths: Paths, plan: Plan, contents: Contents) -> dict[str, Any]:
    left_out: list[str] = []
    page = _restore_web_ui(paths, plan, contents, left_out)
    first = gateways.find_key_gateway(plan) if gateways.is_gateway(plan) else None
    if first:
        if contents.keys:
            left_out.append(f"keys and certificate: {first} makes them for all gateways")
    elif groups.serves_clients(plan):
        _restore_keys(paths, contents)
        _restore_usage(paths, contents, left_out)
        _restore_certificate(paths, plan, contents, left_out)
        _restore_accounts(paths, plan, contents, left_out)
        converge.converge(paths)
    elif contents.keys:
        left_out.append(f"keys and certificate: {groups.get_head(plan)} serves for this host")
    _restore_history(paths, contents, left_out)
    return {
        "made_unix": contents.made_unix,
        "hostname": contents.hostname,
        **_describe_contents(contents.names, key_map.render_map(contents.keys), contents.pem, page),
        "left_out": left_out,
    }


def _restore_history(paths: Paths, contents: Contents, left_out: list[str]) -> None:
    """Restore the entries whose numbers this machine does not have: as a list, only to be read."""
    there = {*entries.list_numbers(paths)}
    both = sorted(there & {entry["number"] for entry in contents.history})
    for entry in contents.history:
        if entry["number"] not in there:
            entries.write(paths, entry)
    if both:
        left_out.append(
            f"entries of the history that this machine has as well: {', '.join(map(str, both))}"
        )


def _restore_web_ui(paths: Paths, plan: Plan, contents: Contents, left_out: list[str]) -> Any:  # noqa: ANN401
    if not contents.has(WEB_UI):
        return None
    web = _find_web_ui(paths, plan)
    if not web:
        first = gateways.find_key_gateway(plan)
        left_out.append(
            f"the web UI's data: {first} runs the web UI for all machines; restore it there"
            if first
            else "the web UI's data: set kimi_web_ui: true, apply, and restore again"
        )
        return None
    with (contents.folder / WEB_UI).open("rb") as stream:
        told = web_backup.stage(web, stream.fileno())
    web_backup.switch(web)
    # The password that was not shown yet belongs to the accounts that it was made with.
    unseen = contents.folder / WEB_ADMIN
    admin = read_json(unseen) if contents.has(WEB_ADMIN) else {}
    if isinstance(admin.get("email"), str) and isinstance(admin.get("password"), str):
        write_atomic(paths.web_admin_new, read_text(unseen), 0o600)
    else:
        remove(str(paths.web_admin_new))
    return _describe_web_ui(told)


def _restore_keys(paths: Paths, contents: Contents) -> None:
    """Restore the operator's key, and the keys that this machine does not have.

    If both have a key of one name, this machine's stays: it is from the inventory. The next apply
    removes the keys that the inventory does not name, as always.
    """
    old = {name: value for name, value in contents.keys.items() if name not in _MACHINES}
    if not old:
        return
    now = _read_present_keys(paths)
    wanted = {**old, **now}
    if key_map.OPERATOR in old:
        wanted[key_map.OPERATOR] = old[key_map.OPERATOR]
        # While the operator's key exists in clear, it is authoritative.
        if contents.operator:
            write_atomic(paths.operator_new, contents.operator + "\n", 0o600)
            wanted[key_map.OPERATOR] = publish.hash_key(contents.operator)
        else:
            remove(str(paths.operator_new))
    # An added key needs its hash in the metadata: else the next apply would remove it.
    known = {name: entry for name, entry in contents.key_metadata.items() if name not in now}
    publish.publish(paths, wanted, {**known, **_read_present_metadata(paths, contents)})


def _read_present_keys(paths: Paths) -> dict[str, str]:
    """Return the keys of this machine; none where their map is damaged."""
    try:
        return key_map.read(paths)
    except kept_state.DamagedStateError:
        return {}


def _read_present_metadata(paths: Paths, contents: Contents) -> metadata.KeyMetadata:
    """Return this machine's metadata; where they are damaged, the rules that its proxy enforces.

    The archive tells then which keys were added, and when.
    """
    try:
        return metadata.read(paths)
    except kept_state.DamagedStateError:
        present = metadata.rebuild(paths)
    for name in {*present} & {*contents.keys}:
        old = contents.key_metadata.get(name, metadata.Entry())
        present[name] = replace(present[name], made=old.made, digest=old.digest)
    return present


def _restore_usage(paths: Paths, contents: Contents, left_out: list[str]) -> None:
    """Restore the use of each key on days for which this machine has no row of it."""
    if not contents.usage:
        return
    if not paths.usage_db.exists():
        left_out.append(
            f"the use of keys: {unit_names.USAGE} has not run here; apply, restore again"
        )
        return
    usage_store.import_rows(paths.usage_db, contents.usage)


def _restore_certificate(paths: Paths, plan: Plan, contents: Contents, left_out: list[str]) -> None:
    planned = plan["proxy"]["tls"]
    if not contents.pem:
        return
    if planned["mode"] == "files":
        left_out.append("the certificate: the inventory names another (kimi_tls_cert_file)")
    elif planned["mode"] == "acme" and contents.has(ISSUED) and contents.issued:
        found = certificate.read(contents.pem)
        if found is None or found.not_after <= time.time():
            left_out.append("the certificate: it has ended")
            return
        write_atomic(paths.acme_pem, contents.pem, 0o600)
        acme.save_record(
            paths, {"tried": contents.made_unix, "problem": None, "issued": contents.issued}
        )
        tls.install(paths, contents.pem)
    elif planned["mode"] == "self-signed" and tls.is_valid_for(contents.pem, planned["names"]):
        tls.install(paths, contents.pem)
    else:
        left_out.append("the certificate: it does not fit the plan, or it ends soon")


def _restore_accounts(paths: Paths, plan: Plan, contents: Contents, left_out: list[str]) -> None:
    """Restore the ACME client's account, in a new folder that replaces the present one.

    Root writes nothing into a folder that belongs to the client.
    """
    if not any(name.startswith(ACCOUNTS) for name in contents.names):
        return
    if plan["proxy"]["tls"]["mode"] != "acme":
        left_out.append("the ACME account: the plan orders no certificate (kimi_tls)")
        return
    make_directory(paths.acme, 0o750, layout.ACME_USER)
    fresh = contents.folder / "client"
    (fresh / "config").mkdir(mode=0o700, parents=True)
    (contents.folder / ACCOUNTS).rename(fresh / "config" / "accounts")
    _replace(fresh, paths.acme, "client", layout.ACME_USER)


def _replace(source: Path, folder: Path, name: str, owner: str = "root") -> None:
    """Replace `folder/name` by a complete copy of a folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    new, old = folder / f".{name}.new", folder / f".{name}.old"
    for left in (new, old):
        shutil.rmtree(str(left), ignore_errors=True)
    shutil.copytree(str(source), str(new))
    if os.geteuid() == 0:
        for top, _, listed in os.walk(str(new)):
            for path in (top, *(os.path.join(top, one) for one in listed)):
                os.chown(path, *find_owner_ids(owner, owner), follow_symlinks=False)
    archives.sync_tree(new)
    if (folder / name).exists():
        os.replace(folder / name, old)
    os.replace(new, folder / name)
    sync_directory(str(folder))
    shutil.rmtree(str(old), ignore_errors=True)


def prepare_folder(paths: Paths, writer: int) -> dict[str, Any]:
    """Make an empty folder into which the user `writer` may put an archive."""
    _read_plan(paths)
    return transfer.prepare_folder(paths, writer)


def main(argv: list[str]) -> int:
    """Run one of the four actions; print JSON."""
    archives.limit_memory()
    return transfer.run_command(
        "backup", transfer.Steps(make_archive, prepare_folder, restore), argv
    )
