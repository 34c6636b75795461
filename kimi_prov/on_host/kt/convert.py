"""`convert`: convert the experts of verified weights to kt-kernel's AMXINT4 or AMXINT8.

    convert [--config FILE]            do it; returns at once when the mark still holds
    convert [--config FILE] --check    only say whether it holds (exit 0) or not (exit 1)
    convert --made-for N DIRECTORY     only say whether the files there are sliced for N pools

Runs as kimi-convert.service. Each layer becomes one file, renamed into place when it is complete
and on the disk, so being killed at any moment loses at most the present layer. The manifest and,
last, the mark are those of fetched weights.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths
from kimi_prov.contract.errors import EXIT_TRANSIENT, HostError
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.on_host.kt.quantise import KERNELS, compute_layer_bytes
from kimi_prov.on_host.system import file_lock
from kimi_prov.on_host.system.files import read_json, remove, sync_directory, write_json
from kimi_prov.on_host.system.job import run_job
from kimi_prov.on_host.system.process import run as run_program
from kimi_prov.on_host.weights import fetch, tensor_files
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.manifest import Entry, Manifest, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.on_host.system.progress import Progress

CONFIG = paths.CONVERT
_MATRICES = ("gate", "up", "down")
_EXPERT = re.compile(r"(?:.*\.)?layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.(\w+)")
_KINDS = ("BF16", "F16", "F8_E4M3")
_SLICE = re.compile(r"blk\.\d+\.ffn_up_exps\.0\.numa\.(\d+)\.weight")
_MARGIN_BYTES = 64 << 20


@dataclass(frozen=True)
class Config:
    """The plan's settings for the conversion, from /etc/kimi/convert.json."""

    weights: fetch.Config
    directory: str
    method: str
    python: str
    nodes: list[int]
    threads: int
    progress: str | None

    @classmethod
    def load(cls, path: str) -> Config:
        """Read the file. Raises HostError naming the key that is wrong."""
        document = read_json(path)
        if not document:
            raise HostError(f"{path}: is missing or not JSON", "run `kimi-prov apply` again")
        for key in ("weights", "dir", "python"):
            if not isinstance(document.get(key), str) or not document[key]:
                raise HostError(f"{path}: {key} is missing", "run `kimi-prov apply` again")
        if document.get("method") not in KERNELS:
            raise HostError(f"{path}: method: expected one of {', '.join(KERNELS)}")
        nodes, threads = document.get("nodes"), document.get("threads")
        if not isinstance(nodes, list) or not nodes or not isinstance(threads, int):
            raise HostError(f"{path}: expected nodes, a list, and threads, a number")
        return cls(
            weights=fetch.Config.load(document["weights"]),
            directory=document["dir"],
            method=document["method"],
            python=document["python"],
            nodes=[int(node) for node in nodes],
            threads=max(threads, len(nodes)),
            progress=document.get("progress"),
        )

    def identity(self, source: Manifest) -> str:
        """Return what identifies the result: a change of it means converting again."""
        return f"convert:{self.method}:{len(self.nodes)}:{source.sha256}"


@dataclass(frozen=True)
class Layers:
    """The routed experts of a checkpoint: dimensions, and the location of each tensor.

    `places`: for each layer, each matrix and each expert the file and name of weight and scale.
    """

    experts: int
    top_k: int
    hidden: int
    width: int
    block: list[int]
    places: dict[int, dict[str, list[dict[str, Any]]]]


def survey(directory: str, files: Sequence[str]) -> Layers:
    """Find the experts in the files of a checkpoint. Raises HostError for what kt cannot take."""
    shape = _read_dimensions(directory)
    places: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for name in files:
        path = os.path.join(directory, name)
        for tensor, row in tensor_files.read_header(path).items():
            found = _EXPERT.fullmatch(tensor)
            if found is None or found[4] not in ("weight", "weight_scale_inv"):
                if found is not None:
                    raise _make_unsupported_error(path, tensor, str(row.get("dtype")))
                continue
            if found[4] == "weight" and row["dtype"] not in _KINDS:
                raise _make_unsupported_error(path, tensor, row["dtype"])
            empty = [{"weight": None, "scale": None, "kind": None} for _ in range(shape["experts"])]
            every = places.setdefault(int(found[1]), {})
            rows = every.setdefault(found[3], empty)
            if int(found[2]) >= len(rows):
                raise HostError(f"{path}: {tensor}: config.json has {len(rows)} experts")
            key = "weight" if found[4] == "weight" else "scale"
            rows[int(found[2])][key] = [path, tensor]
            if key == "weight":
                rows[int(found[2])]["kind"] = row["dtype"]
    if not places:
        raise HostError(f"{directory}: has no routed experts; nothing can be converted")
    for layer, matrices in places.items():
        _check_complete(directory, layer, matrices)
    return Layers(**shape, places=places)


def _read_dimensions(directory: str) -> dict[str, Any]:
    path = os.path.join(directory, "config.json")
    document = read_json(path)
    shown = document.get("text_config", document)
    keys = {
        "experts": "n_routed_experts",
        "top_k": "num_experts_per_tok",
        "hidden": "hidden_size",
        "width": "moe_intermediate_size",
    }
    for key in keys.values():
        if not isinstance(shown.get(key), int):
            raise HostError(f"{path}: {key}: expected a number")
    quantised = shown.get("quantization_config") or document.get("quantization_config")
    block = (quantised or {}).get("weight_block_size") or [128, 128]
    return {**{name: shown[key] for name, key in keys.items()}, "block": block}


def _make_unsupported_error(path: str, tensor: str, kind: str) -> HostError:
    return HostError(
        f"{path}: {tensor} ({kind}): only experts in bf16, fp16 or fp8 with block scales can be "
        "converted",
        "remove kimi_kt_method to serve these weights as they are, or name converted "
        "ones in kimi_kt_weights_source",
    )


def _check_complete(directory: str, layer: int, matrices: dict[str, list[dict[str, Any]]]) -> None:
    for name in _MATRICES:
        for expert, row in enumerate(matrices.get(name, [{"weight": None}])):
            if row["weight"] is None or (row["kind"] == "F8_E4M3" and row["scale"] is None):
                raise HostError(
                    f"{directory}: layer {layer}, expert {expert}: {name}_proj is missing or has "
                    "no scale",
                    "name the complete checkpoint in kimi_weights_source",
                )


def read_verified(config: Config) -> Manifest | None:
    """Return the result's manifest, where its mark is valid and made from these weights."""
    source = fetch.find_recorded_manifest(config.weights)
    written = manifests.load(os.path.join(config.directory, manifests.NAME))
    if source is None or written is None or written.source != config.identity(source):
        return None
    return written if manifests.is_mark_valid(config.directory, written) else None


def run(config: Config, progress: Progress) -> Manifest:
    """Convert every layer into the directory, verified; return the manifest.

    Raises HostError; every complete layer is kept.
    """
    manifest = read_verified(config)
    if manifest is not None:
        return manifest
    source = fetch.find_verified_manifest(config.weights)
    if source is None:
        raise HostError(
            f"{config.weights.directory}: is not verified; kimi-fetch.service has to succeed first",
            retryable=True,
        )
    shards = [e.path for e in source.files if e.path.endswith(".safetensors")]
    layers = survey(config.weights.directory, shards)
    identity = config.identity(source)
    try:
        with file_lock.lock(os.path.join(config.directory, manifests.LOCK)):
            records = _resume(config.directory, identity)
            _convert(config, layers, records, progress, identity)
            return _finish(config.directory, records, identity)
    except file_lock.TakenError as error:
        raise HostError(
            f"{config.directory}: another conversion is at work here: {error}", "wait for it to end"
        ) from None


def _build_scratch_path(directory: str) -> str:
    return os.path.join(directory, manifests.PARTIAL)


def _build_journal_path(directory: str) -> str:
    return os.path.join(_build_scratch_path(directory), "journal.json")


def _resume(directory: str, identity: str) -> dict[str, Record]:
    """Return the layers that are complete; remove what an interrupted run left incomplete.

    Files that were never ours are left alone.
    """
    kept: dict[str, Record] = {}
    for path, key in (
        (_build_journal_path(directory), "identity"),
        (_build_mark_path(directory), None),
    ):
        document = read_json(path)
        if not document:
            continue
        records = manifests.parse_records(document)
        written = manifests.load(os.path.join(directory, manifests.NAME))
        recorded = document.get(key) if key else (written.source if written else None)
        for name, record in records.items():
            final = os.path.join(directory, name)
            if recorded == identity and record.holds(final):
                kept[name] = record
            elif name not in kept:
                remove(final)
    remove(_build_mark_path(directory))
    for name in _list_entries(_build_scratch_path(directory)):
        path = os.path.join(_build_scratch_path(directory), name)
        if name.startswith("_layer_"):
            shutil.rmtree(path)
        elif name.endswith(".part"):
            remove(path)
    write_json(_build_journal_path(directory), _format_records(identity, kept))
    return kept


def _build_mark_path(directory: str) -> str:
    return os.path.join(directory, manifests.MARK)


def _list_entries(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def _format_records(identity: str, records: dict[str, Record]) -> dict[str, Any]:
    return {
        "identity": identity,
        "verified": {path: record.to_json() for path, record in records.items()},
    }


def _build_file_name(layer: int) -> str:
    return f"layer-{layer:05d}.safetensors"


def _convert(
    config: Config,
    layers: Layers,
    records: dict[str, Record],
    progress: Progress,
    identity: str,
) -> None:
    """Convert what is missing, one layer after the other."""
    size = compute_layer_bytes(
        config.method, layers.experts, layers.hidden, layers.width, len(config.nodes)
    )
    missing = [layer for layer in sorted(layers.places) if _build_file_name(layer) not in records]
    require_room(config.directory, size, len(missing))
    count = len(layers.places)
    progress.expect(size * count)
    progress.add(size * (count - len(missing)), moved=False)
    progress.say(
        f"{count} layers of {layers.experts} experts to {config.method}: {len(missing)} to "
        f"convert, {format_bytes(size)} each"
    )
    for layer in missing:
        progress.say(f"layer {layer}: {count - len(missing) + missing.index(layer)} are done")
        error = _quantise(config, layers, layer)
        record = _pack(config, layers, layer)
        records[_build_file_name(layer)] = record
        write_json(_build_journal_path(config.directory), _format_records(identity, records))
        progress.add(size)
        progress.say(f"layer {layer}: {format_bytes(record.size)}, relative error {error}")


def require_room(directory: str, size: int, count: int) -> None:
    """Raise HostError before anything is written where the disk has no space for the rest.

    `size` bytes for each of `count` layers, and once more for the layer at work.
    """
    needed = size * (count + 1) + _MARGIN_BYTES if count else 0
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise HostError(
            f"{directory}: no space for the converted experts: {format_bytes(needed)} are still "
            f"needed and {format_bytes(free)} are free",
            f"free {format_bytes(needed - free)} or mount a larger disk there",
        )


def _quantise(config: Config, layers: Layers, layer: int) -> float:
    """Let kt-kernel write its own files of the layer; return the relative error that it saw."""
    job = {
        "layer": layer,
        "method": config.method,
        "experts": layers.experts,
        "top_k": layers.top_k,
        "hidden": layers.hidden,
        "width": layers.width,
        "block": layers.block,
        "nodes": config.nodes,
        "threads": config.threads,
        "scratch": _build_scratch_path(config.directory),
        "places": layers.places[layer],
    }
    ended = run_program(
        config.python,
        "-I",
        paths.ZIPAPP,
        "kt-quantise",
        stdin=json.dumps(job),
        timeout=None,
        env=os.environ,
        capture_stderr=False,  # The journal of our own unit has kt-kernel's output as it comes.
    )
    report = _parse_last(ended.stdout)
    if ended.returncode < 0:
        raise HostError(
            f"layer {layer}: kt-kernel was killed by signal {-ended.returncode}: 9 means out "
            "of memory, 4 means instructions that this CPU lacks",
            "read the kernel's messages: journalctl -k",
            retryable=True,
        )
    # A comparison with NaN is false.
    if ended.returncode != 0 or not report.get("relative_error", 1.0) < 1.0:
        raise HostError(
            f"layer {layer}: kt-kernel did not convert it (exit status {ended.returncode}, "
            f"{report or 'no output'})",
            "read what it wrote: journalctl -u kimi-convert",
        )
    return float(report["relative_error"])


def _parse_last(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _pack(config: Config, layers: Layers, layer: int) -> Record:
    """Join kt-kernel's files of a layer into one file, with the names that its loader reads."""
    scratch = _build_scratch_path(config.directory)
    made = os.path.join(scratch, f"_layer_{layer}")
    parts: list[tensor_files.Part] = []
    kind = config.method[len("AMX") :]
    for pool in range(len(config.nodes)):
        folder = os.path.join(made, f"_numa_{pool}")
        pattern = re.compile(rf"{kind}_(gate|up|down)_(\d+)_\d+Byte_(quant|scale)_\.kt")
        found = {
            match.groups(): name
            for name in _list_entries(folder)
            if (match := pattern.fullmatch(name))
        }
        for expert in range(layers.experts):
            for matrix in _MATRICES:
                for piece, named, type_ in (("quant", "weight", "I8"), ("scale", "scale", "F32")):
                    name = found.get((matrix, str(expert), piece))
                    if name is None:
                        raise HostError(
                            f"{folder}: kt-kernel wrote no {piece} of {matrix} {expert}; this "
                            "version names its files otherwise"
                        )
                    key = f"blk.{layer}.ffn_{matrix}_exps.{expert}.numa.{pool}.{named}"
                    parts.append(tensor_files.Part(key, type_, os.path.join(folder, name)))
    partial = os.path.join(scratch, f"{_build_file_name(layer)}.part")
    final = os.path.join(config.directory, _build_file_name(layer))
    _, sha256 = tensor_files.write(partial, parts)
    os.replace(partial, final)
    sync_directory(config.directory)
    shutil.rmtree(made)
    return Record.from_file(final, sha256)


def _finish(directory: str, records: dict[str, Record], identity: str) -> Manifest:
    """Write the manifest, then the mark last."""
    entries = [Entry(path, r.size, r.sha256) for path, r in sorted(records.items())]
    manifest = Manifest(entries, source=identity)
    write_json(os.path.join(directory, manifests.NAME), manifest.to_json())
    manifests.write_mark(directory, manifest, records)
    shutil.rmtree(_build_scratch_path(directory), ignore_errors=True)
    return manifest


def require_pools(directory: str, pools: int) -> None:
    """Raise HostError unless the files are sliced for so many pools.

    kt-kernel does not check this, and would read past the end of its buffers.
    """
    found = 0
    for name in sorted(_list_entries(directory)):
        if name.endswith(".safetensors"):
            for tensor in tensor_files.read_header(os.path.join(directory, name)):
                match = _SLICE.fullmatch(tensor)
                found = max(found, int(match[1]) + 1) if match else found
    if found != pools:
        raise HostError(
            f"{directory}: holds converted experts for {found} thread pool(s), and the plan has "
            f"{pools}",
            "name others in kimi_kt_weights_source, or set kt-threadpool-count",
        )


def main(argv: list[str]) -> int:
    """Entry point of the subcommand; see the module's docstring."""
    os.umask(0o022)
    parser = argparse.ArgumentParser(prog="convert")
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--made-for", type=int, metavar="N")
    parser.add_argument("directory", nargs="?")
    options = parser.parse_args(argv)
    if options.made_for is not None:
        return _check_pools(parser, options.directory, options.made_for)

    def work(config: Config, progress: Progress) -> int:
        if options.check:
            done = read_verified(config) is not None
            print(f"{config.directory}: {'converted' if done else 'not converted'}")
            return 0 if done else EXIT_TRANSIENT
        with progress:
            manifest = run(config, progress)
            progress.done(
                f"{config.directory}: {len(manifest.files)} layers in {config.method}, "
                f"{format_bytes(manifest.total_bytes)}, manifest {manifest.sha256[:12]}"
            )
        return 0

    return run_job(
        "convert",
        lambda: Config.load(options.config),
        lambda config: None if options.check else config.progress,
        work,
    )


def _check_pools(parser: argparse.ArgumentParser, directory: str | None, pools: int) -> int:
    if directory is None:
        parser.error("--made-for needs the directory of converted experts")
    try:
        require_pools(directory, pools)
    except HostError as error:
        parser.exit(error.exit_status, f"{error.line}\n")
    return 0
