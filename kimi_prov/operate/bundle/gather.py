"""Gather all that plans install into one folder, and write its signed index.

The same inputs give the same bytes but for the signatures. What is complete stays for the next run.

Decides: the offline bundle.
Held by: tests/component/operate/test_bundle_gathered.py.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kimi_prov import __version__
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.weights.fetch import Config
from kimi_prov.on_host.weights.sources import Web
from kimi_prov.operate.bundle import signing
from kimi_prov.operate.bundle.archive import Archive, Download
from kimi_prov.operate.bundle.weights import gather_weights
from kimi_prov.operate.bundle.wheels import Target, gather_wheels, make_environment
from kimi_prov.packaging import bundles, own_wheel, pieces, python_archives
from kimi_prov.planner.hosts.site import name_archive
from kimi_prov.planner.software.bundle import get_serving, list_needs, list_weights
from kimi_prov.show.report import sbom

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.bundle import (
        Bundle,
        BundledArchive,
        BundledFile,
        BundledLock,
        BundledMachine,
        BundledPython,
        BundledWeights,
    )
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.on_host.weights.manifest import Manifest
    from kimi_prov.operate.bundle.difference import Earlier
    from kimi_prov.planner.software.bundle import Needs, WeightsNeed

_PARTS = ("apt", "control", "python", "weights", "wheels")
_README = "README.txt"
_SBOM = "sbom.cdx.json"
_STALL_S = 60.0
# Weights that are downloaded; those of buckets come by the site's own credentials.
_BROUGHT = ("hf://", "http://", "https://")
# What lies beside pieces as it is: with it kimi-prov is installed, which joins them.
_PLAIN = ("control/", _README)
_CHUNK = 1 << 20
LOCK = Path(own_wheel.LOCK).name


@dataclass(frozen=True)
class Machine:
    """A machine to cover: its name, plan and facts."""

    name: str
    plan: Plan
    facts: Facts

    @property
    def needs(self) -> Needs:
        """What it installs, whatever it has already."""
        return list_needs(self.plan, self.facts, installed=False)


@dataclass(frozen=True)
class Extent:
    """What is brought beside the default, and in which form.

    `since`: only what that bundle lacks. `locate` names the address and the manifest of weights;
    None: no weights are brought. `piece_bytes`: cut into pieces of at most that size.
    """

    since: Earlier | None = None
    locate: Callable[[Plan, WeightsNeed], tuple[str, Manifest | None]] | None = None
    piece_bytes: int | None = None


@dataclass
class Gathering:
    """One run into `folder`, for all machines; `say` reports the progress."""

    folder: Path
    machines: Sequence[Machine]
    catalogue: Catalogue
    say: Callable[[str], None]
    extent: Extent = Extent()
    missing: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._work = self.folder / bundles.PARTIAL
        self._archives: list[tuple[Archive, list[str], list[Download]]] = []

    def prepare(self) -> int:
        """Resolve the packages; return the estimated size of the bundle in bytes."""
        self._check_folder()
        self._remove_links()
        self._work.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.folder / bundles.PIECES, ignore_errors=True)
        if self.extent.since:
            self.extent.since.link_files(self.folder, self.say)
        size = self._estimate_wheels()
        size += sum(row.size_bytes for _, row in self._list_brought_weights())
        for system, arch in sorted({(m.needs.system, m.needs.arch) for m in self.machines}):
            members = [m for m in self.machines if (m.needs.system, m.needs.arch) == (system, arch)]
            names = sorted({name for m in members for name in m.needs.packages})
            mirrors = [mirror for m in members if (mirror := m.plan["site"]["apt_mirror"])]
            work = self._work / name_archive(system, arch)
            archive = Archive(system, arch, work, mirrors[0] if mirrors else None)
            archive.refresh()
            files, unknown = archive.resolve(names)
            self.missing += [f"{system}'s package {name}" for name in unknown]
            held = [name for name in names if name not in unknown]
            self._archives.append((archive, held, files))
            size += sum(row.size for row in files)
        return size

    def check_room(self, size: int) -> None:
        """Report size and room. Raises UserError, exit 3, where the room does not suffice."""
        have = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        free = shutil.disk_usage(self.folder).free
        # The packages lie there twice until their archive is written; pieces are a second copy.
        packed = sum(row.size for _, _, files in self._archives for row in files)
        needed = max(0, size + packed - have) + (
            max(0, size - self._count_kept()) if self.extent.piece_bytes else 0
        )
        self.say(
            f"{self.folder}: about {format_bytes(size)} (estimated), of which "
            f"{format_bytes(have)} are there; {format_bytes(free)} free"
        )
        if needed > free:
            raise UserError(
                f"{self.folder}: {format_bytes(free)} free, about {format_bytes(needed)} needed",
                fix="name a folder with more room in --output",
                exit_code=ExitCode.BLOCKED,
            )

    def run(self, fingerprint: str) -> Bundle:
        """Gather, write the index and sign it; with something missing nothing is signed."""
        for name in (bundles.INDEX, bundles.SIGNATURE):
            (self.folder / name).unlink(missing_ok=True)
        locks = self._gather_locks()
        pythons = self._gather_pythons()
        archives = self._gather_archives(fingerprint)
        self._gather_control()
        self._gather_weights()
        index: Bundle = {
            "schema": bundles.SCHEMA,
            "ok": not self.missing,
            "kimi_prov": __version__,
            "bytes": 0,
            "machines": [_describe_machine(machine) for machine in self.machines],
            "locks": locks,
            "pythons": pythons,
            "archives": archives,
            "weights": self._describe_weights(),
            "files": [],
            "missing": sorted(set(self.missing)),
            "notices": _list_notices(self.machines, self.catalogue),
        }
        if self.missing:
            return index
        self._write_texts(index)
        self._remove_stale(index)
        index["files"] = self._list_files(index)
        index["bytes"] = sum(row["bytes"] for row in index["files"])
        if self.extent.since:
            self.extent.since.leave_out(self.folder, index)
        signing.export_key(fingerprint, self.folder / bundles.KEY)
        path = self.folder / bundles.INDEX
        path.write_text(json.dumps(index, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        signing.write_signature(path, fingerprint, self.folder / bundles.SIGNATURE)
        shutil.rmtree(self._work)
        if self.extent.piece_bytes:
            self._cut(index, self.extent.piece_bytes)
        return index

    # --- parts ------------------------------------------------------------------------------

    def _gather_locks(self) -> list[BundledLock]:
        rows: dict[tuple[str, str, str], BundledLock] = {}
        for machine in self.machines:
            environment = make_environment(machine.plan)
            for need in machine.needs.locks:
                key = (need.name, need.python, need.arch)
                if key in rows:
                    continue
                self.say(f"wheels of {need.name} for Python {need.python}")
                target = Target(need.python, need.arch, need.glibc)
                path = self.catalogue.lock_path(need.name)
                files, lacking = gather_wheels(path, target, self.folder / "wheels", environment)
                self.missing += [f"{name} of {need.name}: no wheel came" for name in lacking]
                rows[key] = {
                    "name": need.name,
                    "sha256": self.catalogue.locks[need.name],
                    "python": need.python,
                    "arch": need.arch,
                    "files": [f"wheels/{file}" for file in files],
                }
        return [rows[key] for key in sorted(rows)]

    def _gather_pythons(self) -> list[BundledPython]:
        rows: dict[str, BundledPython] = {}
        for machine in self.machines:
            python = machine.needs.python
            if python is None or python["sha256"] in rows:
                continue
            name = unquote(urlsplit(python["url"]).path.rpartition("/")[2])
            path = self.folder / "python" / python["build"] / name
            self.say(f"CPython {python['version']}")
            if not (path.is_file() and bundles.compute_sha256(path) == python["sha256"]):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._fetch_python(machine, path)
            if bundles.compute_sha256(path) != python["sha256"]:
                path.unlink()
                self.missing.append(f"CPython {python['version']}: what came has another SHA-256")
                continue
            row: BundledPython = {
                "name": python["name"],
                "sha256": python["sha256"],
                "file": path.relative_to(self.folder).as_posix(),
            }
            rows[python["sha256"]] = row
        return [rows[key] for key in sorted(rows)]

    def _fetch_python(self, machine: Machine, into: Path) -> None:
        python, site = machine.needs.python, machine.plan["site"]
        mirror = site["python_mirror"]
        if python is None:
            return
        if mirror and "://" not in mirror:
            shutil.copyfile(python_archives.find(Path(mirror), python), into)
            return
        try:
            stream = Web(site["ca_bundle"], _STALL_S).open(python["url"], {}, 0)
            with into.open("wb") as file:
                while block := stream.read(_CHUNK):
                    file.write(block)
            stream.close()
        except (HostError, OSError) as error:
            into.unlink(missing_ok=True)
            raise UserError(
                f"CPython {python['version']}: {error}",
                fix="name a mirror that answers in kimi_python_mirror",
                exit_code=ExitCode.FAILED,
            ) from None

    def _gather_archives(self, fingerprint: str) -> list[BundledArchive]:
        rows: list[BundledArchive] = []
        folder = self.folder / "apt"
        folder.mkdir(exist_ok=True)
        needs = {(m.needs.system, m.needs.arch) for m in self.machines}
        for (system, arch), (archive, packages, files) in zip(
            sorted(needs), self._archives, strict=True
        ):
            size = format_bytes(sum(row.size for row in files))
            self.say(f"{system}: {len(files)} packages, {size}")
            archive.download(packages)
            name = f"apt/{name_archive(system, arch)}"
            contents = archive.pack(files, self.folder / f"{name}.tar")
            signing.write_signature(contents, fingerprint, self.folder / f"{name}.sig")
            row: BundledArchive = {
                "system": system,
                "arch": arch,
                "packages": packages,
                "count": len(files),
                "file": f"{name}.tar",
                "signature": f"{name}.sig",
            }
            rows.append(row)
        return rows

    def _gather_control(self) -> None:
        """Bring kimi-prov itself, its lock and the wheels of it for this machine's Python."""
        self.say("kimi-prov itself")
        folder = self.folder / "control"
        folder.mkdir(exist_ok=True)
        wheel = own_wheel.make_wheel()
        (folder / wheel.name).write_bytes(wheel.content)
        lock = self.catalogue.lock_path(LOCK)
        (folder / LOCK).write_text(lock.read_text(encoding="utf-8"), encoding="utf-8")
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        target = Target(python, platform.machine(), platform.libc_ver()[1] or None)
        environment = make_environment(self.machines[0].plan)
        files, lacking = gather_wheels(lock, target, folder / "wheels", environment)
        self.missing += [f"{name} of {LOCK}: no wheel came" for name in lacking]
        for path in (folder / "wheels").iterdir():
            if path.name not in files:
                path.unlink()
        for path in folder.glob("kimi_prov-*.whl"):
            if path.name != wheel.name:
                path.unlink()

    def _list_brought_weights(self) -> list[tuple[Plan, WeightsNeed]]:
        """List the weights that this run brings, each once."""
        if self.extent.locate is None:
            return []
        plans = [machine.plan for machine in self.machines]
        rows = {row: plan for plan in plans for row in list_weights(plan)}
        return [(rows[row], row) for row in sorted(rows) if row.source.startswith(_BROUGHT)]

    def _gather_weights(self) -> None:
        for plan, row in self._list_brought_weights():
            self.say(f"weights of {row.model} from {row.source}")
            if self.extent.locate is not None:
                url, manifest = self.extent.locate(plan, row)
                into, ca_bundle = self.folder / row.folder, plan["site"]["ca_bundle"]
                gather_weights(
                    Config(url, str(into), manifest, ca_bundle=ca_bundle), into, self.say
                )

    def _describe_weights(self) -> list[BundledWeights]:
        """Say of each model how a machine gets its weights."""
        brought = {row for _, row in self._list_brought_weights()}
        needs = {row for machine in self.machines for row in list_weights(machine.plan)}
        return [_describe_weights(row, brought=row in brought) for row in sorted(needs)]

    # --- the index --------------------------------------------------------------------------

    def _write_texts(self, index: Bundle) -> None:
        texts = {row["name"]: self.catalogue.lock(row["name"]) for row in index["locks"]}
        debs = [
            (unquote(row.file), archive.system)
            for archive, _, files in self._archives
            for row in files
        ]
        document = sbom.build_bundle_document(texts, debs, index["pythons"])
        (self.folder / _SBOM).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
        wheel = own_wheel.make_wheel().name
        rows = "\n".join(f"  {row['model']}: {row['instruction']}" for row in index["weights"])
        notices = "\n".join(f"  {line}" for line in index["notices"])
        (self.folder / _README).write_text(
            _TEXT.format(wheel=wheel, lock=LOCK, weights=rows or "  none", notices=notices),
            encoding="utf-8",
        )

    def _remove_stale(self, index: Bundle) -> None:
        """Remove what an earlier run left and no plan needs any more."""
        known = {file for lock in index["locks"] for file in lock["files"]}
        known |= {row["file"] for row in index["pythons"]}
        known |= {name for row in index["archives"] for name in (row["file"], row["signature"])}
        folders = tuple(f"{row['folder']}/" for row in index["weights"] if "folder" in row)
        for part in ("apt", "python", "weights", "wheels"):
            for path in (self.folder / part).rglob("*"):
                name = path.relative_to(self.folder).as_posix()
                if path.is_file() and name not in known and not name.startswith(folders):
                    path.unlink()

    def _list_files(self, index: Bundle) -> list[BundledFile]:
        return [
            {
                "path": name,
                "bytes": (self.folder / name).stat().st_size,
                "sha256": bundles.compute_sha256(self.folder / name),
            }
            for name in bundles.list_foreign(self.folder, index)
        ]

    def _cut(self, index: Bundle, piece_bytes: int) -> None:
        """Cut what the folder has into pieces; what is needed to join them stays in one part."""
        into = self.folder / bundles.PIECES
        rows = [row["path"] for row in index["files"] if (self.folder / row["path"]).is_file()]
        plain = [name for name in rows if name.startswith(_PLAIN)]
        plain += [bundles.INDEX, bundles.SIGNATURE, bundles.KEY]
        plain += [row["signature"] for row in index["archives"]]
        for name in plain:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.folder / name, into / name)
        cut = [(name, self.folder / name) for name in rows if name not in plain]
        result = pieces.cut(cut, piece_bytes, lambda at: into / pieces.name_piece(at))
        into.mkdir(exist_ok=True)
        (into / pieces.LIST).write_text(pieces.format_list(result), encoding="utf-8")
        self.say(f"{into}: {len(result.pieces)} pieces of at most {format_bytes(piece_bytes)}")

    def _check_folder(self) -> None:
        """Refuse a folder with other things in it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        own = {*_PARTS, _README, _SBOM, bundles.INDEX, bundles.SIGNATURE, bundles.KEY}
        others = sorted(p.name for p in self.folder.iterdir() if p.name not in own)
        others = [name for name in others if name not in (bundles.PARTIAL, bundles.PIECES)]
        if others:
            raise UserError(
                f"--output {self.folder}: {bundles.join_names(others)} would become a part of the "
                "offline bundle",
                fix="name a folder of its own, or one of an earlier bundle",
            )

    def _remove_links(self) -> None:
        """Remove the links that a run with --since left which was interrupted, and no others."""
        since = self.extent.since
        links = [path for path in self.folder.rglob("*") if path.is_symlink()]
        own = [
            path
            for path in links
            if self._work in path.parents or (since is not None and since.is_own_link(path))
        ]
        others = sorted(str(path) for path in set(links) - set(own))
        if others:
            verb = "is a link" if len(others) == 1 else "are links"
            raise UserError(
                f"--output {self.folder}: {bundles.join_names(others)} {verb} that this run did "
                "not make",
                fix="remove what an interrupted run with another --since left; of what is yours, "
                "name a folder without links in --output, or mount in place of a link",
            )
        for path in own:
            path.unlink()

    def _count_kept(self) -> int:
        """Count the bytes of which the earlier bundle has the same, as far as that is known."""
        if self.extent.since is None:
            return 0
        digests = self.catalogue.locks
        needs = [machine.needs for machine in self.machines]
        locks = {(r.name, digests[r.name], r.python, r.arch) for n in needs for r in n.locks}
        pythons = {need.python["sha256"] for need in needs if need.python}
        folders = tuple(f"{row.folder}/" for _, row in self._list_brought_weights())
        return self.extent.since.count_kept(locks, pythons, folders)

    def _estimate_wheels(self) -> int:
        """Estimate the wheels: what the catalogue says an installation takes beyond its result."""
        size = 0
        rows = {f"{r.name}-{r.variant}-{r.version}": r for r in self.catalogue.engines}
        names = {name for machine in self.machines if (name := _name_engine(machine.plan))}
        for name in names & set(rows):
            size += rows[name].install_peak_bytes - rows[name].installed_bytes
        pages = {page["version"] for machine in self.machines if (page := machine.plan.get("web"))}
        rows_of_pages = [row for row in self.catalogue.web if row.version in pages]
        size += sum(row.install_peak_bytes - row.installed_bytes for row in rows_of_pages)
        digests = {m.needs.python["sha256"] for m in self.machines if m.needs.python}
        return size + sum(row.bytes for row in self.catalogue.pythons if row.sha256 in digests)


_TEXT = """\
An offline bundle of kimi-prov: bundle.json lists its files with their SHA-256.

Install kimi-prov on the control machine, from this folder:

  python3 -m venv ~/kimi
  ~/kimi/bin/pip install --no-index --require-hashes --find-links control/wheels -r control/{lock}
  ~/kimi/bin/pip install --no-index --no-deps control/{wheel}

Then:  ~/kimi/bin/kimi-prov apply INVENTORY --bundle .

Weights:
{weights}

To be known before it is passed on:
{notices}
"""


def _name_engine(plan: Plan) -> str | None:
    machine = get_serving(plan)
    if machine is None:
        return None
    engine = machine["engine"]
    return f"{engine['name']}-{engine['variant']}-{engine['version']}"


def _describe_machine(machine: Machine) -> BundledMachine:
    return {
        "name": machine.name,
        "system": machine.needs.system,
        "engine": _name_engine(machine.plan),
    }


def _describe_weights(row: WeightsNeed, *, brought: bool) -> BundledWeights:
    if row.is_local:
        way = f"the machine reads them from {row.source}"
    elif brought:
        way = (
            f"they are in {row.folder}: let the machine mount or copy that folder, and set "
            f"{row.variable}: file:///THAT/FOLDER"
        )
    else:
        way = (
            f"copy {row.source} to a disk that the machine mounts, and set {row.variable}: "
            "file:///THAT/FOLDER"
        )
    weights: BundledWeights = {
        "model": row.model,
        "revision": row.revision,
        "source": row.source,
        "bytes": row.size_bytes,
        "instruction": way,
    }
    if brought:
        weights["folder"] = row.folder
    return weights


def _list_notices(machines: Sequence[Machine], catalogue: Catalogue) -> list[str]:
    """Name licences, and what is not in the bundle."""
    lines = {"every package keeps its own licence; sbom.cdx.json lists them"}
    for machine in machines:
        driver, page = machine.plan["driver"], machine.plan.get("web")
        if driver["action"] == "install":
            lines.add(
                f"{machine.name}: NVIDIA's driver is not in it, as its licence is between NVIDIA "
                "and you: install it before apply"
            )
        if page:
            lines |= {
                f"{r.name}: {r.licence}" for r in catalogue.web if r.version == page["version"]
            }
        for row in list_weights(machine.plan):
            if not row.is_local:
                lines.add(
                    f"{row.model}: its weights are under the model's own licence; read it at "
                    f"{row.source} before they are passed on"
                )
    return sorted(lines)
