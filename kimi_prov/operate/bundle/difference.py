"""The difference to an earlier bundle: what that one has is not downloaded or carried again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.packaging import bundles

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.contract.documents.bundle import Bundle

# What is never written again in place; the other parts are made anew.
_LINKED = ("control/wheels/", "python/", "weights/", "wheels/")


class Earlier:
    """An earlier bundle; its index is enough, and its files save downloads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        # Who signed it does not matter here: all that comes is compared with digests.
        self.index: Bundle = bundles.read_index(folder, bundles.find_signer(folder))

    def link_files(self, into: Path, say: Callable[[str], None]) -> None:
        """Link what is undamaged into a folder, as if it had been downloaded there."""
        rows = [row for row in self.index["files"] if row["path"].startswith(_LINKED)]
        paths = [row["path"] for row in rows if not (into / row["path"]).exists()]
        faults = bundles.check_files(self.folder, self.index, paths)
        damaged = {line.partition(":")[0] for line in faults}
        there = [path for path in paths if path not in damaged and bundles.is_plain_path(path)]
        say(f"{self.folder}: {len(there)} of its files are taken")
        for path in there:
            link = into / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(self.folder / path)

    def is_own_link(self, path: Path) -> bool:
        """Whether a link leads into this bundle, as those do that a run makes from its files."""
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.folder))

    def count_kept(
        self, locks: set[tuple[str, str, str, str]], pythons: set[str], folders: tuple[str, ...]
    ) -> int:
        """Count the bytes that a newer bundle surely has unchanged, and so does not carry.

        `locks`: name, SHA-256, Python and architecture of each; `pythons`: digests; `folders`: of
        weights.
        """
        rows = self.index["locks"]
        same = [r for r in rows if (r["name"], r["sha256"], r["python"], r["arch"]) in locks]
        kept = {file for row in same for file in row["files"]}
        kept |= {row["file"] for row in self.index["pythons"] if row["sha256"] in pythons}
        files = self.index["files"]
        return sum(r["bytes"] for r in files if r["path"] in kept or r["path"].startswith(folders))

    def list_removed(self, index: Bundle) -> list[str]:
        """List what it has and the newer bundle does not need, which lies beside it then."""
        names = {row["path"] for row in self.index["files"]}
        names |= {row["signature"] for row in self.index["archives"]}
        names |= set(self.index.get("removed") or ())
        present = {row["path"] for row in index["files"]}
        present |= {row["signature"] for row in index["archives"]}
        return sorted(names - present)

    def leave_out(self, folder: Path, index: Bundle) -> None:
        """Remove from a folder what the earlier bundle has, and say so in the newer index."""
        had = {(row["path"], row["sha256"]) for row in self.index["files"]}
        size = 0
        for row in index["files"]:
            if (row["path"], row["sha256"]) in had:
                (folder / row["path"]).unlink()
            else:
                size += row["bytes"]
        digest = bundles.compute_sha256(self.folder / bundles.INDEX)
        index["since"] = {"index_sha256": digest, "bytes": size}
        index["removed"] = self.list_removed(index)
