"""`kimi-prov/catalog/v1`: rows of the catalogue."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import Rule


class CatalogRows(TypedDict):
    """Rows of the catalogue, each with its source and its certainty.

    The keys contain the units; null is unknown.
    """

    schema: Literal["kimi-prov/catalog/v1"]
    kind: (
        Literal[
            "models",
            "unserved",
            "drafts",
            "formats",
            "cpus",
            "gpus",
            "servers",
            "engines",
            "flags",
            "systems",
            "pythons",
            "web",
            "drivers",
            "prices",
            "broken",
            "groups",
        ]
        | None
    )
    name: str | None
    rows: list[Annotated[CatalogRow, Rule(additional_properties=True)]]


class CatalogRow(TypedDict):
    """A row; its other keys are those of its part."""

    part: str
    """The part of the catalogue that contains the row, such as gpus or prices.api."""
    name: str
    source: Annotated[str, Rule(min_length=1)]
    confidence: Literal["high", "medium", "low"]
    checked: (
        Annotated[str, Rule(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$")]
        | None
    )
    """The day on which the row was last compared with its source, or written from memory; null
    where a site's own row does not say."""
    status: Literal["announced", "available", "end-of-life"]
    """announced: not sold or served yet."""
