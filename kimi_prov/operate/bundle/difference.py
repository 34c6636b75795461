"""The difference to an earlier bundle: what that one has is not downloaded or carried again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.packaging import bundles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
