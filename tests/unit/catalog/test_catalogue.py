"""The catalogue is whole, and names what it does not know with what is near."""

from __future__ import annotations

import re

import pytest

from kimi_prov.catalog.loader import load
from kimi_prov.errors import UserError


def test_names_are_the_repository_s_in_lower_case() -> None:
    for model in load().models:
        assert model.name == model.name.lower()
        if model.repo:
            assert model.name == model.repo.rsplit("/", 1)[1].lower()
        assert model.native_format in model.formats
        assert model.source


def test_a_model_is_found_by_name_alias_and_repository() -> None:
    catalogue = load()
    for name in ("kimi-k2.5", "Kimi-K2.5", "moonshotai/Kimi-K2.5"):
        assert catalogue.model(name).name == "kimi-k2.5"
    assert catalogue.model("kimi-k2-0905").name == "kimi-k2-instruct-0905"


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean kimi-k2\.5"):
        load().model("kimi-k25")


def test_every_engine_of_the_lab_has_a_lock() -> None:
    engine = load().engine("vllm", "cpu")
    assert engine is not None
    assert engine.lock_name("3.11") in load().locks


def test_every_lock_is_named_for_an_engine_of_the_catalogue() -> None:
    known = {e.lock_name(python) for e in load().engines for python in e.python}
    for name in load().locks:
        if re.search(r"-cp3\d+\.txt$", name):
            assert name in known
