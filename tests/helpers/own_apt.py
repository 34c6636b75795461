"""apt with sources, lists, preferences and installed packages of a test's own."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class OwnApt:
    """Everything lies below one folder; the machine's own apt is neither read nor changed."""

    root: Path
    sources: str

    def __post_init__(self) -> None:
        for name in ("lists/partial", "cache/archives/partial", "etc/preferences.d"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "sources.list").write_text(self.sources)
        (self.root / "status").touch()

    def prefer(self, text: str) -> None:
        """Set the one file of preferences."""
        (self.root / "etc" / "preferences.d" / "test.pref").write_text(text)

    def install(self, **versions: str) -> None:
        """Let these packages seem installed."""
        (self.root / "status").write_text("".join(map(_installed, versions.items())))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of apt."""
        settings = {
            "Dir::Etc": str(self.root / "etc"),
            "Dir::Etc::SourceList": str(self.root / "sources.list"),
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": str(self.root / "lists"),
            "Dir::State::Status": str(self.root / "status"),
            "Dir::Cache": str(self.root / "cache"),
            "APT::Sandbox::User": "root",
            "APT::Update::Error-Mode": "any",
            "APT::Architecture": "amd64",
        }
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        return subprocess.run(
            [*words, *options],
            env={**os.environ, "LC_ALL": "C", "APT_CONFIG": ""},
            text=True,
            capture_output=True,
            check=False,
        )


def _installed(package: tuple[str, str]) -> str:
    name = package[0].replace("_", "-")
    return (
        f"Package: {name}\nStatus: install ok installed\nVersion: {package[1]}\n"
        "Architecture: amd64\nMaintainer: a test <test@example.com>\nDescription: a test\n\n"
    )
