"""Copies files to a lab host when it is brought up (`lab_files`)."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab import model_shapes, nvidia_smi
from kimi_prov.lab.shell import make_tool_environment
from kimi_prov.user_dirs import find_cache_home

if TYPE_CHECKING:
    from kimi_prov.lab.inventory import Lab, LabFile, LabHost
    from kimi_prov.lab.model_shapes import Experts, Shape
    from kimi_prov.lab.shell import Say
    from kimi_prov.lab.state import HostState

_MODEL = "model:"
# The synthetic models of the lab: the format of their experts, and their shape.
_MADE: dict[str, tuple[Experts, Shape]] = {
    "kimi-k2-lab": ("bf16", model_shapes.TINY),
    "kimi-k2-lab-int4": ("int4", model_shapes.TINY),
    "kimi-k2-lab-thirds": ("bf16", model_shapes.THIRDS),
    "kimi-k2-cut": ("int4", model_shapes.CUT),
    "kimi-k2.5-cut": ("int4", model_shapes.CUT_SEEING),
}


def resolve_all(lab: Lab) -> dict[str, Path]:
    """Return the control machine's path of each source that a host of the lab names.

    Paths are relative to the inventory; a synthetic model is made at its first use.
    Raises UserError (exit 2) where a source does not exist.
    """
    sources: dict[str, Path] = {}
    for host in lab.hosts:
        for file in host.files:
            if file.src not in sources:
                sources[file.src] = _resolve_source(lab, host, file)
    return sources


def _resolve_source(lab: Lab, host: LabHost, file: LabFile) -> Path:
    for name in _MADE:
        if file.src == _MODEL + name:
            return build_model(name)
    if file.src.startswith(nvidia_smi.SCHEME):
        return _write_nvidia_smi(lab.inventory / file.src.removeprefix(nvidia_smi.SCHEME))
    source = lab.inventory / file.src
    if not source.exists():
        models = " or ".join(_MODEL + name for name in _MADE)
        raise UserError(
            f"{lab.inventory}: host {host.name}: lab_files: {source} does not exist",
            fix=f"correct src: a path relative to the inventory, {models}, or "
            f"{nvidia_smi.SCHEME}RECORDING",
        )
    return source


def build_model(name: str) -> Path:
    """Return the folder of a synthetic model; it is made again when its code has changed."""
    from kimi_prov.lab import model, model_config, model_tensors, tokenizer  # noqa: PLC0415 - seldom needed

    experts, shape = _MADE[name]
    modules = (model, model_config, model_shapes, model_tensors, tokenizer)
    code = b"".join(Path(str(module.__file__)).read_bytes() for module in modules)
    cache = find_cache_home() / "models"
    made = cache / f"{name}-{hashlib.sha256(code).hexdigest()[:12]}"
    if not made.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".new-") as fresh:
            model.make_model(Path(fresh) / name, experts, shape)
            if not made.is_dir():
                (Path(fresh) / name).rename(made)
    return made


def _write_nvidia_smi(folder: Path) -> Path:
    """Write the program that answers from a recorded folder, named by its content."""
    source = nvidia_smi.make_program(folder)
    made = find_cache_home() / "nvidia-smi" / hashlib.sha256(source.encode()).hexdigest()[:12]
    made.mkdir(parents=True, exist_ok=True)
    file = made / "nvidia-smi"
    if not file.exists():
        file.write_text(source, encoding="utf-8")
        file.chmod(0o755)
    return file


def compute_fingerprint(source: Path) -> str:
    """Return a digest of the names, sizes and times below `source`: a new one needs a new copy."""
    entries = sorted(source.rglob("*")) if source.is_dir() else [source]
    lines = [
        f"{entry.relative_to(source)} {entry.stat().st_size} {entry.stat().st_mtime_ns}"
        for entry in entries
        if entry.is_file()
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def copy_changed(source: Path, dest: str, ssh: list[str], state: HostState, report: Say) -> None:
    """Copy `source` to `dest` on the host over `ssh`, unless the same was copied before."""
    digest = compute_fingerprint(source)
    mark = state.folder / f"copied-{hashlib.sha256(dest.encode()).hexdigest()[:12]}"
    if mark.exists() and mark.read_text() == digest:
        return
    report(f"{state.folder.name}: copying {source.name} to {dest}")
    _copy_tree(source, dest, ssh, state.folder.name)
    mark.write_text(digest)


def _copy_tree(source: Path, dest: str, ssh: list[str], host_name: str) -> None:
    """Send a folder or a file as one tar, readable for everyone and owned by root."""
    flags = ["--owner=0", "--group=0", "--mode=u+rwX,go+rX", "-cf", "-"]
    target = shlex.quote(dest)
    if source.is_dir():
        pack = ["tar", *flags, "-C", str(source), "."]
        unpack = f"mkdir -p {target} && tar -xf - -C {target}"
    else:
        pack = ["tar", *flags, "-C", str(source.parent), source.name]
        folder, packed = shlex.quote(str(Path(dest).parent)), shlex.quote(source.name)
        unpack = (
            f"mkdir -p {folder} && t=$(mktemp -d -p {folder}) && tar -xf - -C $t && "
            f"mv -f $t/{packed} {target} && rmdir $t"
        )
    environment = make_tool_environment()
    with subprocess.Popen(pack, stdout=subprocess.PIPE, env=environment) as packing:
        done = subprocess.run(
            [*ssh, unpack], check=False, stdin=packing.stdout, capture_output=True, env=environment
        )
    if done.returncode != 0 or packing.returncode != 0:
        raise UserError(
            f"lab host {host_name}: copying {source} to {dest} failed: "
            f"{done.stderr.decode(errors='replace').strip()}",
            fix="see whether the host has room:  kimi-prov lab ssh INVENTORY "
            f"{clean_text.quote_word(host_name)} df -h",
            exit_code=ExitCode.FAILED,
        )
