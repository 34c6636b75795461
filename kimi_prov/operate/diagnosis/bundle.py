"""The bundle for a bug report: a folder of plain files, packed whole or not at all.

Decides: what `diagnose` recognises (the bundle).
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.runner import progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kimi_prov.runner.progress import LogEntry

# Characters of a host's or unit's name that a file's name may not have.
_ODD = re.compile(r"[^A-Za-z0-9@._+-]+")
_MAX_LENGTH = 80

README = """\
What `kimi-prov diagnose` gathered for a bug report.

  diagnose.json        what was recognised, and what could not be gathered
  HOST/facts.json      the machine: processors, memory, disks, GPUs, packages
  HOST/plan.json       what was decided for it
  HOST/status.json     what ran, and from what
  HOST/units.json      systemd's view of each unit; units.txt has the units themselves
  HOST/logs/UNIT.log   the end of each unit's journal, times in UTC
  HOST/kernel.log      the end of the kernel's messages
  HOST/metrics/        /metrics of each engine, twice where requests ran
  HOST/configuration/  the configuration of HAProxy and, on a gateway, of keepalived
  HOST/packages.txt    the packages of the engine's environment
  HOST/nvidia-smi.txt  nvidia-smi -q
  HOST/hangs/NAME/     what the watchdog kept of engines that hung: stacks, processes, logs

Keys, passwords and tokens are masked as ********. Names of hosts, addresses and serial numbers are
not. Engines write no prompts and no answers into their logs, unless somebody configured that: look
through logs/ before you hand this on.
"""


def list_files(
    document: Mapping[str, Any], gathered: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, str]]:
    """Give each file's path in the bundle and its text, clean; `gathered` is by host, masked."""
    yield "README.txt", README
    yield "diagnose.json", _format_json(document)
    names = _make_distinct_names(gathered)
    for host, gathered_of_host in gathered.items():
        for name, text in _list_host_files(gathered_of_host):
            yield f"{names[host]}/{name}", text


def _list_host_files(gathered: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in ("facts", "plan", "status", "units"):
        if gathered.get(part):
            yield f"{part}.json", _format_json(gathered[part])
    logs = _read_mapping(gathered.get("logs"))
    units = _make_distinct_names(logs)
    for unit, log in logs.items():
        yield f"logs/{units[unit]}.log", _log(_read_mapping(log))
    if gathered.get("kernel"):
        yield "kernel.log", _log(_read_mapping(gathered["kernel"]))
    yield from _list_metrics_files(gathered.get("metrics"))
    yield from _list_hang_files(gathered.get("hangs"))
    texts = _read_mapping(gathered.get("configuration"))
    for part, name in _make_distinct_names(texts).items():
        if isinstance(text := texts[part], str) and text:
            yield f"configuration/{name}", clean_text.clean_block(text)
    packages = gathered.get("packages")
    listed = "\n".join(map(clean_text.clean_row, packages)) if isinstance(packages, list) else ""
    for text, name in (
        (listed, "packages.txt"),
        (gathered.get("unit_files"), "units.txt"),
        (gathered.get("gpus"), "nvidia-smi.txt"),
    ):
        if isinstance(text, str) and text:
            yield name, clean_text.clean_block(text).rstrip("\n") + "\n"


def _list_metrics_files(rows: object) -> Iterator[tuple[str, str]]:
    for row in map(_read_mapping, rows if isinstance(rows, list) else ()):
        unit = _name(str(row.get("unit")))
        for part, suffix in (("first", ""), ("second", "-later")):
            if isinstance(text := row.get(part), str) and text:
                yield f"metrics/{unit}{suffix}.txt", clean_text.clean_block(text)


def _list_hang_files(rows: object) -> Iterator[tuple[str, str]]:
    for row in map(_read_mapping, rows if isinstance(rows, list) else ()):
        folder = f"hangs/{_name(str(row.get('name')))}"
        yield f"{folder}/summary.json", _format_json(row.get("summary"))
        files = _read_mapping(row.get("files"))
        names = _make_distinct_names(files)
        for part, text in files.items():
            if isinstance(text, str) and text:
                yield f"{folder}/{names[part]}", clean_text.clean_block(text)


def _log(log: Mapping[str, Any]) -> str:
    lines = [_format_line(entry) for entry in progress.parse_entries(log.get("entries"))]
    first = ["(older lines are left out)"] if log.get("cut") else []
    return "\n".join([*first, *lines]) + "\n"


def _read_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _format_line(entry: LogEntry) -> str:
    at = datetime.fromtimestamp(entry.time_us / 1e6, UTC).isoformat(timespec="milliseconds")
    stamp = f"{at.replace('+00:00', 'Z')} " if entry.time_us else ""
    return stamp + clean_text.clean_entry(entry.message)


def _format_json(value: object) -> str:
    return clean_text.as_json(value) + "\n"


def _make_distinct_names(names: Iterable[str]) -> dict[str, str]:
    """Return a distinct file name for each name."""
    file_names: dict[str, str] = {}
    for name in names:
        plain, suffix = _name(name), 1
        while plain in file_names.values():
            suffix += 1
            plain = f"{_name(name)}.{suffix}"
        file_names[name] = plain
    return file_names


def _name(text: str) -> str:
    return _ODD.sub("_", text)[:_MAX_LENGTH].strip(".") or "_"


def write(path: Path, folder: str, content: Iterable[tuple[str, str]]) -> int:
    """Write the bundle, all of it in `folder`, for its owner alone; return its size in bytes.

    Raises FileExistsError where a file of that name exists by then.
    """
    descriptor, part = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            with tarfile.open(fileobj=stream, mode="w:gz") as archive:
                for name, text in content:
                    _add(archive, f"{folder}/{name}", text.encode())
            stream.flush()
            os.fsync(stream.fileno())
        os.link(part, path)
    finally:
        Path(part).unlink(missing_ok=True)
    return path.stat().st_size


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode, about.mtime = len(data), 0o600, int(time.time())
    archive.addfile(about, io.BytesIO(data))
