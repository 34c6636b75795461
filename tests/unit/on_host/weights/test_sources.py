"""What a source may lead to: no way out of https, of a repository, or of what a path can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.weights.sources import DirectorySource, HubSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from weights_server import Server

    Start = Callable[..., Server]


@pytest.mark.parametrize("url", ["hf://a/b@..", "hf://../b", "hf://a/b/c", "hf://a/-b", "hf://a"])
def test_what_is_no_repository_of_the_hub_is_not_asked_for(url: str) -> None:
    with pytest.raises(HostError, match="names no repository of the hub"):
        HubSource(url, "/usr/bin/python3", None, None, None, 5.0)


def test_a_path_that_cannot_be_is_refused() -> None:
    with pytest.raises(HostError, match="names no directory"):
        DirectorySource("file:///srv/%00")
