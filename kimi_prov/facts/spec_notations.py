"""Rewrites the ways in which people write a spec sheet into the form that its schema describes.

"2x Xeon Platinum 8480+" where a mapping is wanted, "120,000" where a number is, terabytes, a price
in another currency, no `schema`: a value with one meaning is accepted. A value with two is refused
with the right form; any other value stays as it is and is checked by the schema.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.names import format_value
from kimi_prov.facts import seller_words, spec_prices
from kimi_prov.facts.rewritten import Rewritten
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
    "processors": "cpu",
    "accelerators": "gpus",
    "accelerator": "gpus",
    "graphics": "gpus",
    "drives": "disks",
    "disk_drives": "disks",
    "ssd": "disks",
    "networking": "nics",
    "price_usd": "price",
    "price_eur": "price",
    "cost": "price",
    "notes": "note",
}
# What offers say that no plan needs.
_NOT_USED = frozenset(
    {
        "vendor",
        "manufacturer",
        "maker",
        "brand",
        "seller",
        "supplier",
        "system",
        "server",
        "product",
        "sku",
        "part_number",
        "chassis",
        "case",
        "enclosure",
        "form_factor",
        "rack",
        "motherboard",
        "mainboard",
        "board",
        "bios",
        "bmc",
        "psu",
        "psus",
        "power_supply",
        "power_supplies",
        "power",
        "cooling",
        "cooler",
        "coolers",
        "fan",
        "fans",
        "raid",
        "controller",
        "hba",
        "tpm",
        "rails",
        "warranty",
        "support",
        "service",
        "shipping",
        "delivery",
        "lead_time",
        "quote",
        "quote_number",
        "offer",
        "date",
        "valid_until",
        "contact",
        "url",
        "comment",
        "comments",
        "description",
    }
)
# Parts that a sheet may list under numbered keys.
_LISTED = frozenset({"gpus", "disks", "nics"})
_NUMBERED = re.compile(r"[ _#-]*\d{1,2}$")
_OF_CPU = {"name": "model", "count": "sockets"}
_OF_GPUS = {"name": "model"}

_SIZE = re.compile(r"^(\d[\d.,' ]*?)\s*(tb|tib|gb|gib)\b(.*)$", re.IGNORECASE)
_SPEED = re.compile(r"^(?:ddr[345]\w*[ -])?(\d{4,5})\s*(?:mt/s|mhz)?$", re.IGNORECASE)
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

# Integers even where a schema says "number": a comma in them separates thousands.
_GROUPED_KEYS = frozenset({"size_gb", "purchase_usd", "hourly_usd", "purchase", "hourly"})


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
    _drop_unused(sheet, schema, rewritten)
    _move_system(sheet, rewritten)
    _move_prices(sheet, rewritten)
    sheet.setdefault("schema", schema["properties"]["schema"]["const"])
    sheet.setdefault("name", name)
    for key, part in _PARTS.items():
        if key in sheet:
            sheet[key] = part(sheet[key], (key,), rewritten)
    rewritten.sheet = _rewrite_numbers(sheet, schema, schema, (), rewritten, spelling)
    memory, cpu = (rewritten.sheet.get(key) for key in ("memory", "cpu"))
    sockets = cpu.get("sockets", 1) if isinstance(cpu, dict) else 1
    if isinstance(memory, dict) and isinstance(sockets, int):
        seller_words.count_all_modules(memory, sockets)
    return rewritten


def is_sheet(document: object) -> bool:
    """Whether the keys of a document without a schema are those of a sheet."""
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        return False
    names = {_rename_key(key, _TOP) for key in document if not _is_unused(key)}
    return "cpu" in names and names <= {"name", "note", "hosts", *_PARTS}


def _rename_key(key: str, names: Mapping[str, str]) -> str:
    """Return the form's name of a key: `CPU` and `Storage 2` are its `cpu` and `disks`."""
    low = key.strip().lower()
    name = names.get(low, low)
    if name in _PARTS or low in names:
        return name
    bare = _NUMBERED.sub("", low)
    name = names.get(bare, bare)
    return name if name in _LISTED else key


def _is_unused(key: str) -> bool:
    return re.sub(r"[ -]+", "_", _NUMBERED.sub("", key.strip().lower())) in _NOT_USED


def _rename_keys(
    mapping: Mapping[Any, Any], path: Key, names: Mapping[str, str], rewritten: Rewritten
) -> dict[Any, Any]:
    """Rename keys to the schema's names; a value that is given twice is a fault."""
    made: dict[Any, Any] = {}
    numbered = _count_numbered(mapping, names)
    for key, value in mapping.items():
        name = _rename_key(key, names) if isinstance(key, str) else key
        if name in numbered:
            rows = made.setdefault(name, [])
            rewritten.written[*path, name, len(rows)] = (*rewritten.place(path), key)
            rows.append(value)
            continue
        if name != key and (name in mapping or name in made):
            rewritten.add_fault((*path, key), f"there twice: as {key!r} and as {name!r}; keep one")
            continue
        if name != key:
            rewritten.written[*path, name] = (*rewritten.place(path), key)
        made[name] = value
    return made


def _count_numbered(mapping: Mapping[Any, Any], names: Mapping[str, str]) -> set[str]:
    """Return the parts that several numbered keys list, as `storage 1` and `storage 2`."""
    numbered = [key for key in mapping if isinstance(key, str) and _NUMBERED.search(key)]
    renamed = [_rename_key(key, names) for key in numbered]
    return {name for name in renamed if name in _LISTED and name not in mapping}


def _drop_unused(sheet: dict[Any, Any], schema: Mapping[str, Any], rewritten: Rewritten) -> None:
    """Take away the keys that no plan needs: motherboard, warranty and the like."""
    for key in list(sheet):
        if isinstance(key, str) and _is_unused(key) and key.lower() not in schema["properties"]:
            del sheet[key]
            rewritten.unused.append(str(key))


def _move_system(sheet: dict[Any, Any], rewritten: Rewritten) -> None:
    """Move an operating system among the sheet's own keys to where the schema has it."""
    keys = [key for key in ("os", "operating_system") if isinstance(sheet.get(key), str)]
    software = sheet.get("software")
    if not keys or not (software is None or isinstance(software, dict)):
        return
    if software and "os" in software:
        rewritten.add_fault((keys[0],), "there twice: software.os says it too; keep one")
    sheet["software"] = {**(software or {}), "os": sheet.pop(keys[0])}
    rewritten.written["software", "os"] = (keys[0],)


def _move_prices(sheet: dict[Any, Any], rewritten: Rewritten) -> None:
    """Move purchase_usd and the like from among the sheet's own keys into its price."""
    keys = [key for key in sheet if spec_prices.is_price_key(key)]
    price = sheet.get("price")
    if keys and (price is None or isinstance(price, dict)):
        sheet["price"] = {**(price or {}), **{key: sheet.pop(key) for key in keys}}
        rewritten.written |= {("price", key): (key,) for key in keys}


def _make_model_rewriter(
    count: str, names: Mapping[str, str]
) -> Callable[[Any, Key, Rewritten], Any]:
    """Return a function that rewrites a processor or a GPU; `count` is the key of their number."""

    def rewrite_model(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
        if count == "sockets":
            value = _join_equal(value)
        if isinstance(value, str):
            many, model = seller_words.split_count(value)
            for key in ("model", count):
                rewritten.written[*path, key] = rewritten.place(path)
            return {"model": model} | ({count: many} if many is not None else {})
        if not isinstance(value, dict):
            return value
        part = _rename_keys(value, path, names, rewritten)
        if isinstance(part.get("model"), str):
            many, model = seller_words.split_count(part["model"])
            if many is not None and count not in part:
                rewritten.written[*path, count] = rewritten.place((*path, "model"))
                part |= {"model": model, count: many}
            elif many is not None and part[count] == many:
                part["model"] = model
            elif many is not None:
                rewritten.add_fault(
                    (*path, count),
                    f"{many} by its name, {format_value(part[count])} here",
                )
                part["model"] = model
        return part

    return rewrite_model


def _join_equal(value: Any) -> Any:  # noqa: ANN401
    """Write a list of one, or of several equal texts, as one text with their number."""
    texts = {item for item in value if isinstance(item, str)} if isinstance(value, list) else set()
    if len(texts) != 1 or not all(isinstance(item, str) for item in value):
        return value
    [text] = texts
    return text if len(value) == 1 else f"{len(value)}x {text}"


def _make_list_rewriter(
    part: Callable[[Any, Key, Rewritten], Any],
    parse: Callable[[str, Key, Rewritten], list[Any]],
    *,
    always_a_list: bool,
) -> Callable[[Any, Key, Rewritten], Any]:
    """Return a function that rewrites parts of one kind; a text may list several of them."""

    def rewrite_parts(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
        if value is None or not isinstance(value, (str, dict, list)):
            return value
        if isinstance(value, dict) and not always_a_list:
            return part(value, path, rewritten)
        items = value if isinstance(value, list) else [value]
        made: list[Any] = []
        for index, item in enumerate(items):
            origin = rewritten.place((*path, index) if isinstance(value, list) else path)
            rows = (
                parse(item, origin, rewritten)
                if isinstance(item, str)
                else [part(item, origin, rewritten)]
            )
            for row in rows:
                rewritten.written[*path, len(made)] = origin
                for key in row if isinstance(item, str) else ():
                    rewritten.written[*path, len(made), key] = origin
                made.append(row)
        if len(made) == 1 and not always_a_list and isinstance(value, str):
            for key in made[0]:
                rewritten.written[*path, key] = rewritten.place(path)
            return made[0]
        return made

    return rewrite_parts


def _rewrite_memory(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    value = _join_equal(value)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        rows = [_parse_memory(item, path, rewritten) for item in value]
        return reduce(seller_words.add_memory, rows)
    if isinstance(value, str):
        return _parse_memory(value, path, rewritten)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        rewritten.add_fault(path, f"{value:g} of what? write memory: {{total_gb: {value:g}}}")
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
    for name in ("total_gb", "dimms", "dimm_gb", "speed_mt_s", "configured_mt_s", "type"):
        rewritten.written[*path, name] = rewritten.place(path)
    try:
        return seller_words.parse_memory(text)
    except seller_words.SellerWordsError as error:
        form = '"1536 GB", "24x 64 GB DDR5-4800", or {dimms: 24, dimm_gb: 64, speed_mt_s: 4800}'
        _refuse_words(f"memory as {form}", text, error, path, rewritten)
        return {"total_gb": 1}


def _refuse_words(
    expected: str,
    text: str,
    error: seller_words.SellerWordsError,
    path: Key,
    rewritten: Rewritten,
) -> None:
    rewritten.add_fault(path, f"wanted {expected}, found {format_value(text)}: {error}")


def _convert_to_gb(size: re.Match[str], tera: int, path: Key, rewritten: Rewritten) -> float:
    size_value = parse_number(size[1].strip(), grouped=True)
    if size_value is None or isinstance(size_value, str):
        rewritten.add_fault(
            path,
            size_value or f"wanted a size such as 3.84 TB, found {format_value(size[0])}",
        )
        return 1
    return seller_words.round_size(size_value * (tera if size[2].lower().startswith("t") else 1))


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
        rewritten.add_fault((*path, sizes[1]), f"there twice: {sizes[0]} says it too; keep one")
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
        rewritten.add_fault(
            path,
            f'wanted a size with its unit, such as "3.84 TB", found {format_value(value)}',
        )
        return 1
    amount = parse_number(value.strip(), grouped=True) if isinstance(value, str) else value
    if isinstance(amount, str):
        rewritten.add_fault(path, amount)
        return 1
    if isinstance(amount, bool) or not isinstance(amount, (int, float)) or factor == 1:
        return amount
    return seller_words.round_size(amount * factor)


def _rewrite_disk(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    if not isinstance(value, dict):
        return value
    part = _rename_keys(value, path, {}, rewritten)
    if isinstance(part.get("kind"), str):
        part["kind"] = part["kind"].lower()
    return _rewrite_size(part, path, rewritten, "size_gb", tera=1000, unit=_GB)


def _keep_part(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401, ARG001
    return value


def _parse_disks(text: str, path: Key, rewritten: Rewritten) -> list[Any]:
    try:
        return seller_words.parse_disks(text)
    except seller_words.SellerWordsError as error:
        form = '"2x 3.84 TB NVMe" or {kind: nvme, size_gb: 3840, count: 2}'
        _refuse_words(f"a disk as {form}", text, error, path, rewritten)
        return [{"size_gb": 1}]


def _parse_nics(text: str, path: Key, rewritten: Rewritten) -> list[Any]:
    try:
        return seller_words.parse_nics(text)
    except seller_words.SellerWordsError as error:
        form = '"2x 100 Gbit/s" or {speed_gbit_s: 100, count: 2}'
        _refuse_words(f"a network card as {form}", text, error, path, rewritten)
        return [{"speed_gbit_s": 1}]


def _parse_gpus(text: str, path: Key, rewritten: Rewritten) -> list[Any]:  # noqa: ARG001
    return [_parse_gpu(piece) for piece in seller_words.split_list(text, _is_gpu_name)]


def _is_gpu_name(text: str) -> bool:
    return bool(re.search(r"[a-z]+ ?\d", text, re.IGNORECASE))


def _parse_gpu(text: str) -> seller_words.Part:
    """Split "8x H200", "HGX B200 8-GPU" and "2x HGX H100 8-GPU" into model and number."""
    many, model = seller_words.split_count(text)
    count = seller_words.count_gpus(many, model)
    return {"model": model} | ({"count": count} if count is not None else {})


def _rewrite_link(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    """Parse "8x 400 Gbit/s InfiniBand", "HDR InfiniBand", "100 GbE" and "RoCE"."""
    if isinstance(value, dict) and isinstance(value.get("kind"), str):
        kind = value["kind"].strip().lower()
        return {**value, "kind": _FABRICS.get(kind, kind)}
    if not isinstance(value, str):
        return value
    for key in ("kind", "speed_gbit_s", "count"):
        rewritten.written[*path, key] = rewritten.place(path)
    many, rest = seller_words.split_count(value)
    speed = _FABRIC_SPEED.search(rest)
    words = _FABRIC_SPEED.sub(" ", rest, count=1).lower().replace(",", " ").split()
    rates = [_RATES[word] for word in words if word in _RATES]
    kinds = {_FABRICS[word] for word in words if word in _FABRICS}
    if speed and speed[2].lower() in ("gbe", "gige") and not kinds:
        kinds = {"ethernet"}
    kinds |= {"infiniband"} if rates else set()
    strange = [word for word in words if word not in _FABRICS and word not in _RATES]
    if strange or len(kinds) > 1 or (rates and (speed or len(rates) > 1)):
        rewritten.add_fault(
            path,
            f"wanted what joins the hosts as {_A_LINK}, found {format_value(value)}",
        )
        return {"kind": "ethernet"}
    if not kinds:
        problem = (
            f"by InfiniBand, RoCE or Ethernet? write it as {_A_LINK}, found {format_value(value)}"
        )
        rewritten.add_fault(path, problem)
        return {"kind": "ethernet"}
    part: seller_words.Part = {"kind": kinds.pop()}
    part |= {"speed_gbit_s": seller_words.round_size(float(speed[1]))} if speed else {}
    part |= {"speed_gbit_s": rates[0]} if rates else {}
    return part | ({"count": many} if many is not None else {})


def _rewrite_software(value: Any, path: Key, rewritten: Rewritten) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        rewritten.written[*path, "os"] = rewritten.place(path)
        value = {"os": value}
    if not isinstance(value, dict) or not isinstance(value.get("os"), str):
        return value
    return {**value, "os": seller_words.parse_system(value["os"]) or value["os"]}


_PARTS: dict[str, Callable[[Any, Key, Rewritten], Any]] = {
    "cpu": _make_model_rewriter("sockets", _OF_CPU),
    "memory": _rewrite_memory,
    "gpus": _make_list_rewriter(
        _make_model_rewriter("count", _OF_GPUS), _parse_gpus, always_a_list=False
    ),
    "disks": _make_list_rewriter(_rewrite_disk, _parse_disks, always_a_list=True),
    "nics": _make_list_rewriter(_keep_part, _parse_nics, always_a_list=True),
    "link": _rewrite_link,
    "software": _rewrite_software,
    "price": spec_prices.rewrite_price,
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
                rewritten.add_fault(path, problem)
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
            rewritten.add_fault(path, describe_ambiguity(text))
        return value
    if not isinstance(value, str):
        return value
    text = strip_unit(value.strip()[:_MAX_LENGTH], key)
    read = parse_number(text, grouped=kind == "integer" or key in _GROUPED_KEYS)
    if isinstance(read, str):
        rewritten.add_fault(path, read)
        return schema.get("minimum", 1)
    return value if read is None else read
