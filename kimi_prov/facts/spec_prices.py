"""Rewrites the price of a spec sheet: amounts with signs, other currencies, "per hour" in words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kimi_prov.facts.written_numbers import parse_number

if TYPE_CHECKING:
    from kimi_prov.facts.rewritten import Rewritten
    from kimi_prov.facts.schema_check import Key

_MAX_LENGTH = 200
_PRICED = re.compile(r"^(purchase|hourly)_([a-z]{3})$", re.IGNORECASE)
_RATED = re.compile(r"^usd_per_([a-z]{3})$", re.IGNORECASE)
_CODE = re.compile(r"^[A-Z]{3}$")
_SIGNS = {"$": "USD", "us$": "USD", "€": "EUR", "£": "GBP"}
_MONEY = re.compile(r"^(us\$|[$€£]|[a-z]{3})?\s*(\d.*?)\s*([$€£]|[a-z]{3})?$", re.IGNORECASE)
# Thousands apart by blanks, as in "1 499".
SPACED = r"(?<![\w.,])\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)"
_AMOUNT = re.compile(
    rf"(?:us\$|[$€£]|\b(?:usd|eur|gbp|chf)\b)? ?(?:{SPACED}|\d[\d.,']*)"
    r"(?: ?(?:[$€£]|\b(?:usd|eur|gbp|chf)\b))?"
)
_DIGITS = re.compile(rf"{SPACED}|\d[\d.,']*\d|\d")
_KINDS = {
    "hourly": re.compile(
        r"/ ?(?:h(?:r|our)?|std|stunde|heure)\b|\b(?:per|an|each) hour\b|\bhourly\b"
        r"|\bpro stunde\b|\bpar heure\b"
    ),
    "monthly": re.compile(
        r"/ ?(?:mo(?:nth|nat|is)?|mtl)\b|\b(?:per|a|each) month\b|\bmonthly\b"
        r"|\bpro monat\b|\bmonatlich\b|\bpar mois\b"
    ),
    "purchase": re.compile(
        r"\bto buy\b|\bbuy\b|\bpurchase|\bone[- ]time\b|\blist price\b|\bto own\b"
    ),
}
_HOURS_OF_A_MONTH = 730
_A_PRICE = "price: {purchase_usd: 250000}, or price: {hourly_usd: 26}"


def rewrite_price(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    """Rewrite `purchase_eur` and similar keys to an amount, its currency and its rate."""
    if isinstance(value, str):
        value = parse_phrase(value)
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        rewritten.add_fault(path, f"to buy or by the hour? write {_propose(value)}")
        return None
    if not isinstance(value, dict):
        return value
    part: dict[Any, Any] = {}
    codes: dict[str, Key] = {}
    for key, amount in value.items():
        name, code, signed = _parse_price_key(key, amount)
        if code is not None:
            codes.setdefault(code, (*path, key))
        if name in part:
            rewritten.add_fault((*path, key), f"there twice: {name} is given already; keep one")
            continue
        if name != key:
            rewritten.written[*path, name] = (*path, key)
        part[name] = signed
    if len(codes) > 1:
        first, second = list(codes)[:2]
        rewritten.add_fault(
            codes[second], f"{second} here and {first} before it: keep to one currency"
        )
        return None
    return _merge_currency(part, next(iter(codes), None), path, rewritten)


def is_price_key(key: object) -> bool:
    """Whether a sheet's own key is one of a price: `purchase_usd` beside `cpu`."""
    return isinstance(key, str) and _PRICED.match(key) is not None


def _propose(value: float | str) -> str:
    """Return both forms of a price, with the amount of the sheet where it is in dollars."""
    amounts = _AMOUNT.findall(str(value).lower())
    money = _MONEY.match(amounts[0].strip(" .,")) if len(amounts) == 1 else None
    sign = (money[1] or money[3] or "$") if money else ""
    amount = parse_number(money[2], grouped=True) if money else None
    if isinstance(amount, (int, float)) and _SIGNS.get(sign, sign.upper()) == "USD":
        return f"price: {{purchase_usd: {amount:g}}}, or price: {{hourly_usd: {amount:g}}}"
    return _A_PRICE


def parse_phrase(text: str) -> Any:  # noqa: ANN401
    """Return the price of "$26 per hour" or "$250,000 to buy"; other text as it is."""
    low = text[:_MAX_LENGTH].lower()
    kinds = [kind for kind, words in _KINDS.items() if words.search(low)]
    amounts = _AMOUNT.findall(low)
    if len(kinds) != 1 or len(amounts) != 1:
        return text
    kind = kinds[0]
    amount = amounts[0].strip(" .,")
    if kind != "monthly":
        return {kind: amount}
    digits = _DIGITS.search(amount)
    value = parse_number(digits[0], grouped=True) if digits else None
    if digits is None or value is None or isinstance(value, str):
        return text
    return {"hourly": amount.replace(digits[0], f"{value / _HOURS_OF_A_MONTH:.4f}")}


def _parse_price_key(key: Any, amount: Any) -> tuple[Any, str | None, Any]:  # noqa: ANN401
    """Return the form's key, the currency in key or amount, and the amount without it."""
    low = key.lower() if isinstance(key, str) else ""
    if low == "currency":
        code = _SIGNS.get(amount.lower(), amount.upper()) if isinstance(amount, str) else None
        return low, code, code or amount
    rated = _RATED.match(low)
    if rated:
        return "usd_per_unit", rated[1].upper(), amount
    named = _PRICED.match(low)
    name = named[1] if named else low if low in ("purchase", "hourly") else None
    if name is None:
        return key, None, amount
    code = named[2].upper() if named else None
    money = _MONEY.match(amount.strip()[:_MAX_LENGTH]) if isinstance(amount, str) else None
    sign = (money[1] or money[3]) if money else None
    if money and sign:
        said = _SIGNS.get(sign.lower(), sign.upper())
        if code in (None, said):
            return name, said, money[2]
    return name, code, amount


def _merge_currency(
    part: dict[Any, Any], code: str | None, path: Key, rewritten: Rewritten
) -> dict[Any, Any] | None:
    """Add the currency once; every currency but dollars needs a rate."""
    amounts = [key for key in ("purchase", "hourly") if key in part]
    if code is not None and not _CODE.match(code):
        return part
    undirected = [key for key in part if key in ("rate", "exchange_rate", "fx")]
    unit = code if code and code != "USD" else "EUR"
    right = f"{{{(amounts or ['purchase'])[0]}: 250000, currency: {unit}, usd_per_unit: RATE}}"
    for key in undirected:
        part.pop(key)
        rewritten.add_fault(
            (*path, key),
            f"which way round? write usd_per_unit, the dollars for one {unit}",
            f"price: {right}",
        )
    if code is None:
        if amounts:
            problem = f"in which currency? write {amounts[0]}_usd, or {right}"
            rewritten.add_fault((*path, amounts[0]), problem)
            return None
        return part
    if code == "USD":
        part.pop("currency", None)
        part.pop("usd_per_unit", None)
        for key in amounts:
            rewritten.written[*path, f"{key}_usd"] = rewritten.place((*path, key))
            part[f"{key}_usd"] = part.pop(key)
        return part
    part["currency"] = code
    if amounts and part.get("usd_per_unit") is None and not undirected:
        rewritten.add_fault(
            (*path, amounts[0]),
            f"{code} without a rate: wanted usd_per_unit, the dollars for one {code}; "
            "there is no table of rates here",
            f"price: {right}, with the rate of your bank or of the quote's day as RATE",
        )
        return None
    return None if undirected else part
