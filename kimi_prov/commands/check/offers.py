"""Print the spec sheets of pasted offers: `kimi-prov check --text FILE`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov import documents
from kimi_prov.catalog import loader
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.facts import offer_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kimi_prov.contract.documents.offers import Offers, OfferSheet
    from kimi_prov.facts.offer_text import Offer
    from kimi_prov.show.output import Output

_FIX = "save the offer as UTF-8 text, or paste it into  kimi-prov check --text -"
_MAX_BYTES = 1 << 20


def print_sheets(paths: Sequence[Path], output: Output) -> ExitCode:
    """Print the sheet of each offer; exits 2 where one names neither a processor nor memory."""
    if output.format not in ("text", "json"):
        raise UserError(
            f"--text has no form {output.format}", fix="use --format text (YAML) or --format json"
        )
    match = [(path, _read(path)) for path in paths]
    document: Offers = {
        "schema": "kimi-prov/offers/v1",
        "offers": [_build_row(path, offer) for path, offer in match],
    }
    output.write(
        document,
        lambda: "---\n".join(
            offer_text.format_offer(offer, documents.format_path_name(path))
            for path, offer in match
        ),
    )
    for path, offer in match:
        if len(offer.missing) > 1:
            raise UserError(
                f"{documents.format_path_name(path)}: neither a processor nor memory stands in it",
                fix="name them as the offer does, such as  2x EPYC 9654, 24x 64GB DDR5-4800",
            )
    return ExitCode.OK


def _read(path: Path) -> Offer:
    document = documents.read_document(path, what="an offer", limit=_MAX_BYTES, fix=_FIX)
    name = path.stem if path != documents.STANDARD_INPUT else "offer"
    return offer_text.read_offer(document.text, loader.load_catalogue(), name)


def _build_row(path: Path, offer: Offer) -> OfferSheet:
    return {
        "source": documents.format_path_name(path),
        "sheet": offer.sheet,
        "missing": offer.missing,
        "price": offer.price,
        "unread": [{"line": line, "text": text} for line, text in offer.unread],
    }
