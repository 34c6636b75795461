"""Reads results of `bench` from a file, and refuses those that are no measurement."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from kimi_prov import documents, schemas
from kimi_prov.acceptance import tune_results
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MAX_BYTES = 16 << 20
# Only the first faults are looked for: in a document that is all wrong the search takes minutes.
_MAX_FAULTS = 20
_SPEEDS = ("decode_tok_s", "aggregate_tok_s", "prefill_tok_s")
_FIX = "measure with:  kimi-prov bench INVENTORY --format json --output bench.json"


def read_results(path: Path) -> dict[str, tune_results.Result]:
    """Return the hosts of a bench document, or the candidates of a tune.

    Raises UserError naming file, and line or key.
    """
    import jsonschema  # noqa: PLC0415  (a tenth of a second, which only readers of files pay)

    file_text = documents.read_document(path, what="results of a bench", limit=_MAX_BYTES, fix=_FIX)
    document = file_text.json(_FIX)
    tuned = isinstance(document, dict) and document.get("schema") == "kimi-prov/tune/v1"
    validator = jsonschema.Draft202012Validator(schemas.load("tune" if tuned else "bench"))
    errors = itertools.islice(validator.iter_errors(document), _MAX_FAULTS)
    error = jsonschema.exceptions.best_match(errors)
    if error is not None:
        key = error.json_path.removeprefix("$").lstrip(".") or "the document"
        raise UserError(f"{path}: {key[:200]}: {error.message[:200]}", fix=_FIX)
    hosts: dict[str, tune_results.Result] = document["hosts"]
    return tune_results.list_results(document["hosts"]) if tuned else hosts


def find_refusal(result: Mapping[str, Any]) -> str | None:  # noqa: PLR0911  (a reason each)
    """Return why a host's result is no measurement of a machine; None if it is one."""
    if "serve" not in result:
        return f"it was not measured: {result['detail']}"
    if not result["ok"]:
        return f"not all requests were answered: {result['detail']}"
    if result["stand_ins"]:
        return f"stand-ins are no measurement: {'; '.join(result['stand_ins'])}"
    if not result.get("machine") or not result.get("serving"):
        return "it does not say on what machine and how it was served: an older version wrote it"
    serve = result["serve"]
    if not (serve["input_tokens"] and serve["output_tokens"]):
        return "its requests had no tokens to read or to write"
    other = _describe_other_kind(serve.get("load") or {})
    if other:
        return f"its load was {other}: speeds are kept and predicted for random words, all at once"
    if any((level[name] or 0) < 0 for level in serve["levels"] for name in _SPEEDS):
        return "a speed in it is below 0"
    return None


def _describe_other_kind(load: Mapping[str, Any]) -> str | None:
    """Return why a load's speed does not hold for other loads; None if it does, as a chat's.

    At a rate it is unknown how many requests ran at once; another part of the model reads images;
    the prompts of a file have lengths of their own, and may be in the cache.
    """
    if load.get("rate_per_s"):
        return f"{load['rate_per_s']:g} requests a second"
    if load.get("images") or load.get("images_of_file"):
        return "with images"
    return "prompts of a file" if load.get("prompts") else None
