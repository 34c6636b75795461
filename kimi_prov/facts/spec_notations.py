"""Rewrites the ways in which people write a spec sheet into the form that its schema describes.

"2x Xeon Platinum 8480+" where a mapping is wanted, "120,000" where a number is, terabytes, a price
in another currency, no `schema`: a value with one meaning is accepted. A value with two is refused
with the right form; any other value stays as it is and is checked by the schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.names import format_value
from kimi_prov.facts.schema_check import MisfitError
from kimi_prov.facts.written_numbers import DOTTED, describe_ambiguity, parse_number, strip_unit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kimi_prov.facts.schema_check import Key

_GIB = 1 << 30
_GB = 10**9
_MAX_LENGTH = 200
# Other names of a sheet's top-level keys, and of the keys of its parts.
_TOP = {
    "gpu": "gpus",
    "disk": "disks",
    "storage": "disks",
    "nic": "nics",
    "network": "nics",
    "interconnect": "link",
    "fabric": "link",
    "ram": "memory",
    "cpus": "cpu",
    "processor": "cpu",
}
_OF_CPU = {"name": "model", "count": "sockets"}
_OF_GPUS = {"name": "model"}

_COUNTED = re.compile(r"^(\d{1,4})\s*[x\u00d7*]\s*(?=\S)(.+)$", re.IGNORECASE)
_COUNTED_AFTER = re.compile(r"^(.+\S)(?:\s+[x\u00d7]\s*|\s*[\u00d7*]\s*)(\d{1,4})$", re.IGNORECASE)
_BEFORE_LANES = ("pcie", "pci-e", "gen3", "gen4", "gen5", "gen6")
_SIZE = re.compile(r"^(\d[\d.,' ]*?)\s*(tb|tib|gb|gib)\b(.*)$", re.IGNORECASE)
_SPEED = re.compile(r"^(?:ddr[345]\w*[ -])?(\d{4,5})\s*(?:mt/s|mhz)?$", re.IGNORECASE)
_LINK = re.compile(r"^(\d+(?:\.\d+)?)\s*(?:gbit/s|gb/s|gbps|gbe|gbit|g)$", re.IGNORECASE)
# The network between hosts: kinds by their words, and speeds of InfiniBand's generations.
_FABRICS = {
    "infiniband": "infiniband",
    "ib": "infiniband",
    "roce": "roce",
    "rocev2": "roce",
    "ethernet": "ethernet",
    "tcp": "ethernet",
}
_RATES = {"edr": 100, "hdr": 200, "ndr": 400, "xdr": 800}
_FABRIC_SPEED = re.compile(r"(\d+(?:\.\d+)?)\s*(gbit/s|gb/s|gbps|gbe|gbit|gige|g)\b", re.IGNORECASE)
_A_LINK = '"400 Gbit/s InfiniBand", "2x 100 GbE", "RoCE", or {kind: roce, speed_gbit_s: 200}'
_SYSTEM = re.compile(r"^([a-z]+)[ -]+(?:linux[ -]+)?(\d[\d.]*)(?: lts)?$", re.IGNORECASE)
_KINDS = ("nvme", "ssd", "hdd", "network")

# Integers even where a schema says "number": a comma in them separates thousands.
_GROUPED_KEYS = frozenset({"size_gb", "purchase_usd", "hourly_usd", "purchase", "hourly"})

_PRICED = re.compile(r"^(purchase|hourly)_([a-z]{3})$", re.IGNORECASE)
_RATED = re.compile(r"^usd_per_([a-z]{3})$", re.IGNORECASE)
_CODE = re.compile(r"^[A-Z]{3}$")
_SIGNS = {"$": "USD", "us$": "USD", "€": "EUR", "£": "GBP"}
_MONEY = re.compile(r"^(us\$|[$€£]|[a-z]{3})?\s*(\d.*?)\s*([$€£]|[a-z]{3})?$", re.IGNORECASE)
_A_PRICE = "price: {purchase_usd: 250000}, or price: {hourly_usd: 26}"


@dataclass
class Rewritten:
    """A sheet in the schema's form, its ambiguous values, and the original keys.

    `written` maps keys of the form to those of the text, where they differ.
    """

    sheet: Any
    faults: list[MisfitError] = field(default_factory=list)
    written: dict[Key, Key] = field(default_factory=dict)

    def place(self, path: Key) -> Key:
        """Return the keys in the text of the value at `path` in the form."""
        for size in range(len(path), 0, -1):
            if path[:size] in self.written:
                return (*self.written[path[:size]], *path[size:])
        return path


def rewrite_sheet(
    document: Any,  # noqa: ANN401  (whatever was parsed)
    schema: Mapping[str, Any],
    *,
    name: str,
    spelling: Callable[[Key], str | None],
) -> Rewritten:
    """Bring a parsed sheet into the form of its schema.

    `name` is the default name. `spelling` returns a value's original text: a parsed number does not
    show whether it was written 120.000.
    """
    if not isinstance(document, dict):
        return Rewritten(document)
    rewritten = Rewritten({})
    sheet = _rename_keys(document, (), _TOP, rewritten)
    sheet.setdefault("schema", schema["properties"]["schema"]["const"])
    sheet.setdefault("name", name)
    for key, part in _PARTS.items():
        if key in sheet:
            sheet[key] = part(sheet[key], (key,), rewritten)
    rewritten.sheet = _rewrite_numbers(sheet, schema, schema, (), rewritten, spelling)
    return rewritten


def is_sheet(document: object) -> bool:
    """Whether the keys of a document without a schema are those of a sheet."""
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        return False
    names = {_TOP.get(key.lower(), key) for key in document}
    return "cpu" in names and names <= {"name", "note", "hosts", *_PARTS}


def _add_fault(rewritten: Rewritten, path: Key, problem: str, fix: str | None = None) -> None:
    rewritten.faults.append(MisfitError(rewritten.place(path), problem, fix))


def _rename_keys(
    mapping: Mapping[Any, Any], path: Key, names: Mapping[str, str], rewritten: Rewritten
) -> dict[Any, Any]:
    """Rename keys to the schema's names; a value that is given twice is a fault."""
    made: dict[Any, Any] = {}
    for key, value in mapping.items():
        name = names.get(key.lower(), key) if isinstance(key, str) else key
        if name != key and name in mapping:
            _add_fault(
                rewritten, (*path, key), f"there twice: as {key!r} and as {name!r}; keep one"
            )
            continue
        if name != key:
            rewritten.written[*path, name] = (*rewritten.place(path), key)
        made[name] = value
    return made


def _split_count(text: str) -> tuple[int | None, str]:
    """Split "8x H200" and "H200 x8" into number and name."""
    text = text[:_MAX_LENGTH].strip()
    before = _COUNTED.match(text)
    if before:
        return int(before[1]), before[2].strip()
    after = _COUNTED_AFTER.match(text)
    if after is None or after[1].lower().endswith(_BEFORE_LANES):
        return None, text
    return int(after[2]), after[1].strip()


def _make_model_rewriter(
    count: str, names: Mapping[str, str]
) -> Callable[[Any, Key, Rewritten], Any]:
    """Return a function that rewrites a processor or a GPU; `count` is the key of their number."""

    def rewrite_model(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
        if isinstance(value, str):
            many, model = _split_count(value)
            for key in ("model", count):
                rewritten.written[*path, key] = rewritten.place(path)
            return {"model": model} | ({count: many} if many is not None else {})
        if not isinstance(value, dict):
            return value
        part = _rename_keys(value, path, names, rewritten)
        if isinstance(part.get("model"), str):
            many, model = _split_count(part["model"])
            if many is not None and count not in part:
                rewritten.written[*path, count] = rewritten.place((*path, "model"))
                part |= {"model": model, count: many}
            elif many is not None and part[count] == many:
                part["model"] = model
            elif many is not None:
                _add_fault(
                    rewritten,
                    (*path, count),
                    f"{many} by its name, {format_value(part[count])} here",
                )
                part["model"] = model
        return part

    return rewrite_model


def _make_list_rewriter(
    part: Callable[[Any, Key, Rewritten], Any], *, always_a_list: bool
) -> Callable[[Any, Key, Rewritten], Any]:
    def rewrite_parts(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
        if isinstance(value, list):
            return [part(one, (*path, index), rewritten) for index, one in enumerate(value)]
        if value is None or not isinstance(value, (str, dict)):
            return value
        if not always_a_list:
            return part(value, path, rewritten)
        rewritten.written[*path, 0] = rewritten.place(path)
        return [part(value, (*path, 0), rewritten)]

    return rewrite_parts


def _rewrite_memory(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return _parse_memory(value, path, rewritten)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _add_fault(rewritten, path, f"{value:g} of what? write memory: {{total_gb: {value:g}}}")
        return {"total_gb": 1}
    if not isinstance(value, dict):
        return value
    part = _rename_keys(value, path, {}, rewritten)
    for key in ("speed_mt_s", "configured_mt_s"):
        speed = _SPEED.match(part[key].strip()) if isinstance(part.get(key), str) else None
        if speed:
            part[key] = int(speed[1])
    return _rewrite_size(part, path, rewritten, "total_gb", tera=1024, unit=_GIB)


def _parse_memory(text: str, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    """Parse "1.5 TB" and "24x 64 GB DDR5-4800"."""
    many, rest = _split_count(text)
    size = _SIZE.match(rest)
    speed = _SPEED.match(size[3].strip()) if size and size[3].strip() else None
    if size is None or (size[3].strip() and speed is None):
        form = '"1536 GB", "24x 64 GB DDR5-4800", or {dimms: 24, dimm_gb: 64, speed_mt_s: 4800}'
        _add_fault(rewritten, path, f"wanted memory as {form}, found {format_value(text)}")
        return {"total_gb": 1}
    key = "total_gb" if many is None else "dimm_gb"
    for name in ("total_gb", "dimms", "dimm_gb", "speed_mt_s"):
        rewritten.written[*path, name] = rewritten.place(path)
    part: dict[str, Any] = {key: _convert_to_gb(size, 1024, path, rewritten)}
    part |= {"dimms": many} if many is not None else {}
    return part | ({"speed_mt_s": int(speed[1])} if speed else {})


def _convert_to_gb(size: re.Match[str], tera: int, path: Key, rewritten: Rewritten) -> float:
    size_value = parse_number(size[1].strip(), grouped=True)
    if size_value is None or isinstance(size_value, str):
        _add_fault(
            rewritten,
            path,
            size_value or f"wanted a size such as 3.84 TB, found {format_value(size[0])}",
        )
        return 1
    return _round_float(size_value * (tera if size[2].lower().startswith("t") else 1))


def _round_float(value: float) -> float:
    """Write 3840.0000000000005 as 3840."""
    near = round(value, 6)
    return int(near) if float(near).is_integer() else near


def _rewrite_size(
    part: dict[Any, Any], path: Key, rewritten: Rewritten, form: str, *, tera: int, unit: int
) -> dict[Any, Any]:
    """Rewrite a size to the form's key and unit."""
    stem = form.removesuffix("_gb")
    factors: dict[str, float] = {}
    for name in {stem, "size", "total"}:
        factors |= {f"{name}_gb": 1, f"{name}_tb": tera, f"{name}_bytes": 1 / unit, name: 0}
    sizes = [key for key in part if isinstance(key, str) and key in factors]
    if len(sizes) > 1:
        _add_fault(rewritten, (*path, sizes[1]), f"there twice: {sizes[0]} says it too; keep one")
    values = {key: part.pop(key) for key in sizes}
    for key, value in list(values.items())[:1]:
        if key != form:
            rewritten.written[*path, form] = (*rewritten.place(path), key)
        part[form] = _convert_size(value, factors[key], tera, (*path, form), rewritten)
    return part


def _convert_size(value: Any, factor: float, tera: int, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    size = _SIZE.match(value.strip()[:_MAX_LENGTH]) if isinstance(value, str) else None
    if size is not None and not size[3].strip():
        return _convert_to_gb(size, tera, path, rewritten)
    if factor == 0:
        _add_fault(
            rewritten,
            path,
            f'wanted a size with its unit, such as "3.84 TB", found {format_value(value)}',
        )
        return 1
    amount = parse_number(value.strip(), grouped=True) if isinstance(value, str) else value
    if isinstance(amount, str):
        _add_fault(rewritten, path, amount)
        return 1
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or factor == 1:
        return amount
    return _round_float(amount * factor)


def _rewrite_disk(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        many, rest = _split_count(value)
        size = _SIZE.match(rest)
        words = (size[3] if size else "").lower().replace(",", " ").split()
        if size is None or len(words) > 1 or (words and words[0] not in _KINDS):
            form = '"2x 3.84 TB NVMe" or {kind: nvme, size_gb: 3840, count: 2}'
            _add_fault(rewritten, path, f"wanted a disk as {form}, found {format_value(value)}")
            return {"size_gb": 1}
        for key in ("kind", "size_gb", "count"):
            rewritten.written[*path, key] = rewritten.place(path)
        part: dict[str, Any] = {"size_gb": _convert_to_gb(size, 1000, path, rewritten)}
        part |= {"kind": words[0]} if words else {}
        return part | ({"count": many} if many is not None else {})
    if not isinstance(value, dict):
        return value
    part = _rename_keys(value, path, {}, rewritten)
    if isinstance(part.get("kind"), str):
        part["kind"] = part["kind"].lower()
    return _rewrite_size(part, path, rewritten, "size_gb", tera=1000, unit=_GB)


def _rewrite_nic(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    if not isinstance(value, str):
        return value
    many, rest = _split_count(value)
    link = _LINK.match(rest)
    if link is None:
        form = '"2x 100 Gbit/s" or {speed_gbit_s: 100, count: 2}'
        _add_fault(rewritten, path, f"wanted a network card as {form}, found {format_value(value)}")
        return {"speed_gbit_s": 1}
    for key in ("speed_gbit_s", "count"):
        rewritten.written[*path, key] = rewritten.place(path)
    return {"speed_gbit_s": _round_float(float(link[1]))} | (
        {"count": many} if many is not None else {}
    )


def _rewrite_link(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    """Parse "8x 400 Gbit/s InfiniBand", "HDR InfiniBand", "100 GbE" and "RoCE"."""
    if isinstance(value, dict) and isinstance(value.get("kind"), str):
        kind = value["kind"].strip().lower()
        return {**value, "kind": _FABRICS.get(kind, kind)}
    if not isinstance(value, str):
        return value
    for key in ("kind", "speed_gbit_s", "count"):
        rewritten.written[*path, key] = rewritten.place(path)
    many, rest = _split_count(value)
    speed = _FABRIC_SPEED.search(rest)
    words = _FABRIC_SPEED.sub(" ", rest, count=1).lower().replace(",", " ").split()
    rates = [_RATES[word] for word in words if word in _RATES]
    kinds = {_FABRICS[word] for word in words if word in _FABRICS}
    if speed and speed[2].lower() in ("gbe", "gige") and not kinds:
        kinds = {"ethernet"}
    kinds |= {"infiniband"} if rates else set()
    strange = [word for word in words if word not in _FABRICS and word not in _RATES]
    if strange or len(kinds) > 1 or (rates and (speed or len(rates) > 1)):
        _add_fault(
            rewritten,
            path,
            f"wanted what joins the hosts as {_A_LINK}, found {format_value(value)}",
        )
        return {"kind": "ethernet"}
    if not kinds:
        problem = (
            f"by InfiniBand, RoCE or Ethernet? write it as {_A_LINK}, found {format_value(value)}"
        )
        _add_fault(rewritten, path, problem)
        return {"kind": "ethernet"}
    part: dict[str, Any] = {"kind": kinds.pop()}
    part |= {"speed_gbit_s": _round_float(float(speed[1]))} if speed else {}
    part |= {"speed_gbit_s": rates[0]} if rates else {}
    return part | ({"count": many} if many is not None else {})


def _rewrite_software(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        rewritten.written[*path, "os"] = rewritten.place(path)
        value = {"os": value}
    if not isinstance(value, dict) or not isinstance(value.get("os"), str):
        return value
    known = _SYSTEM.match(value["os"].strip()[:_MAX_LENGTH])
    return {**value, "os": f"{known[1].lower()}-{known[2]}"} if known else value


def _rewrite_price(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    """Rewrite `purchase_eur` and similar keys to an amount, its currency and its rate."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        _add_fault(rewritten, path, f"to buy or by the hour? write {_A_PRICE}")
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
            _add_fault(rewritten, (*path, key), f"there twice: {name} is given already; keep one")
            continue
        if name != key:
            rewritten.written[*path, name] = (*path, key)
        part[name] = signed
    if len(codes) > 1:
        first, second = list(codes)[:2]
        _add_fault(
            rewritten, codes[second], f"{second} here and {first} before it: keep to one currency"
        )
        return None
    return _merge_currency(part, next(iter(codes), None), path, rewritten)


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
        _add_fault(
            rewritten,
            (*path, key),
            f"which way round? write usd_per_unit, the dollars for one {unit}",
            f"price: {right}",
        )
    if code is None:
        if amounts:
            problem = f"in which currency? write {amounts[0]}_usd, or {right}"
            _add_fault(rewritten, (*path, amounts[0]), problem)
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
        _add_fault(
            rewritten,
            (*path, amounts[0]),
            f"{code} without a rate: wanted usd_per_unit, the dollars for one {code}; "
            "there is no table of rates here",
            f"price: {right}, with the rate of your bank or of the quote's day as RATE",
        )
        return None
    return None if undirected else part


_PARTS: dict[str, Callable[[Any, Key, Rewritten], Any]] = {
    "cpu": _make_model_rewriter("sockets", _OF_CPU),
    "memory": _rewrite_memory,
    "gpus": _make_list_rewriter(_make_model_rewriter("count", _OF_GPUS), always_a_list=False),
    "disks": _make_list_rewriter(_rewrite_disk, always_a_list=True),
    "nics": _make_list_rewriter(_rewrite_nic, always_a_list=True),
    "link": _rewrite_link,
    "software": _rewrite_software,
    "price": _rewrite_price,
}


def _rewrite_numbers(
    value: Any,  # noqa: ANN401
    schema: Mapping[str, Any],
    root: Mapping[str, Any],
    path: Key,
    rewritten: Rewritten,
    spelling: Callable[[Key], str | None],
) -> Any:  # noqa: ANN401
    """Read numbers that were written as text, where the schema expects a number."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    if isinstance(value, dict):
        schemas = [schema, *schema.get("anyOf", ())]
        known = {
            k: s for one in schemas for k, s in _resolve_schema(one, root)["properties"].items()
        }
        made = {}
        for key, part in value.items():
            if isinstance(key, int) and part is None:
                # {purchase_usd: 120,000}
                problem = "between { and } a comma ends a value: write the number without it"
                _add_fault(rewritten, path, problem)
                continue
            inner = known.get(key) if isinstance(key, str) else None
            made[key] = (
                part
                if inner is None
                else _rewrite_numbers(part, inner, root, (*path, key), rewritten, spelling)
            )
        return made
    if isinstance(value, list):
        items = next((s["items"] for s in [schema, *schema.get("anyOf", ())] if "items" in s), None)
        if items is None:
            return value
        parts = enumerate(value)
        return [
            _rewrite_numbers(part, items, root, (*path, n), rewritten, spelling)
            for n, part in parts
        ]
    return _rewrite_number(value, schema, path, rewritten, spelling)


def _resolve_schema(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    return {"properties": {}, **schema}


def _rewrite_number(
    value: Any,  # noqa: ANN401
    schema: Mapping[str, Any],
    path: Key,
    rewritten: Rewritten,
    spelling: Callable[[Key], str | None],
) -> Any:  # noqa: ANN401
    kind, key = schema.get("type"), str(path[-1]) if path else ""
    if kind not in ("integer", "number"):
        return value
    if isinstance(value, float) and key.startswith("purchase"):
        text = spelling(rewritten.place(path)) or ""
        if DOTTED.match(text):
            _add_fault(rewritten, path, describe_ambiguity(text))
        return value
    if not isinstance(value, str):
        return value
    text = strip_unit(value.strip()[:_MAX_LENGTH], key)
    read = parse_number(text, grouped=kind == "integer" or key in _GROUPED_KEYS)
    if isinstance(read, str):
        _add_fault(rewritten, path, read)
        return schema.get("minimum", 1)
    return value if read is None else read
