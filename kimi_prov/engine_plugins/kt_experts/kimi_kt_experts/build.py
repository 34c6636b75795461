"""`python -m kimi_kt_experts.build`: compile the kernel on the machine it is for, and prove it.

A C compiler and the C library's headers are all that it takes (Debian's gcc and libc6-dev): neither
torch's headers nor Python's. Each set of instructions is compiled for itself, and which of them
runs is decided when the library is loaded: the machine may be another after a migration.
`python -m kimi_kt_experts.prove` proves it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCES = Path(__file__).resolve().parent / "native"
LIBRARY = SOURCES / "experts.so"
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
BUILDS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "amx": (*_AVX512, "-mamx-tile", "-mamx-int8"),
}
# Torch's OpenMP has the name that the library is linked to: one runtime, one set of threads.
_FLAGS = ("-O3", "-fPIC", "-std=gnu11", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")


class BuildError(Exception):
    """The compiler is not there, or refused."""


def build(
    into: Path = LIBRARY, compiler: str = "", more: dict[str, tuple[str, ...]] | None = None
) -> Path:
    """Compile the library. `more`: further arguments for one of the builds."""
    program = compiler or os.environ.get("CC", "gcc")
    extra = more or {}
    with TemporaryDirectory() as folder:
        parts = {
            f"{name}-{source}": (*flags, f"-DBUILD={name}", *extra.get(name, ()), f"{source}.c")
            for name, flags in BUILDS.items()
            for source in ("kernel", "dense", "step")
        } | {
            f"main-{source}": (*_AVX2, *extra.get("main", ()), f"{source}.c")
            for source in ("experts", "layers", "shares")
        }
        jobs = {
            name: (program, *_FLAGS, *arguments, "-c", "-o", f"{folder}/{name}.o")
            for name, arguments in parts.items()
        }
        with ThreadPoolExecutor() as pool:
            list(pool.map(_compile, jobs.values()))
        # By its own name it appears whole or not at all.
        made = into.with_name(f".{into.name}.{os.getpid()}")
        objects = (f"{folder}/{name}.o" for name in jobs)
        _compile((program, "-shared", "-fopenmp", "-o", str(made), *objects))
        made.replace(into)
    return into


def _compile(argv: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(argv, cwd=SOURCES, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{argv[0]}: {error.strerror}; install gcc and libc6-dev") from error
    if done.returncode:
        raise BuildError(f"{argv[0]} failed: {done.stderr.strip()[-1500:]}")


def main(argv: list[str]) -> int:
    """Build, then compute a small layer with each build that runs here; `--unproven`: build alone.

    Alone it needs the standard library, so that any Python runs this file as a script.
    """
    try:
        build()
    except BuildError as error:
        sys.stderr.write(f"kimi-kt-experts: {error}\n")
        return 1
    if argv == ["--unproven"]:
        return 0
    # In a process of its own, which loads what was built: one that crashes is told of.
    proof = (sys.executable, "-m", "kimi_kt_experts.prove")
    status = subprocess.run(proof, check=False).returncode
    if status < 0:
        sys.stderr.write(f"kimi-kt-experts: the proof was ended by signal {-status}\n")
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
