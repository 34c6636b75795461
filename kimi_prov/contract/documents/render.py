"""`kimi-prov/render/v1`: the record of a rendered folder."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import Rule, Sha256


class RenderRecord(TypedDict):
    """The record of a folder that `kimi-prov render` wrote."""

    schema: Literal["kimi-prov/render/v1"]
    kind: str
    """What the files are for: slurm, kubernetes, cloud-init or skypilot."""
    version: str
    """The version of kimi-prov that rendered them."""
    target: str
    """Name of the machine that was planned."""
    plan_digest: Sha256
    """SHA-256 of the plan."""
    files: list[RenderedFile]


class RenderedFile(TypedDict):
    """A file of the folder."""

    path: str
    """Path in the folder."""
    sha256: Sha256
    """SHA-256 of the rendered file."""
    mode: Annotated[str, Rule(pattern=r"^0[0-7]{3}$")]
