"""The key by which metrics are read: given by the control machine, or made here.

The proxy knows its hash. A key that was made here is also kept in clear, in
`/etc/kimi/keys/metrics.key`, for the operator who sets up a Prometheus; a key that was given is
not.

Decides: metrics: their port, networks and what is behind it (the key).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract.paths import PROXY_USER, Paths
from kimi_prov.on_host.keys.key_map import render_map
from kimi_prov.on_host.keys.publish import hash_key, make_key
from kimi_prov.on_host.system.files import read_text, remove, write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "metrics"


def read(paths: Paths) -> str:
    """Return the key that was made here; empty where there is none."""
    return read_text(paths.metrics_key).strip()


def ensure(paths: Paths, wanted: Mapping[str, Any] | None, *, check: bool = False) -> bool:
    """Converge the key to {"sha256": of a given key, or null}; None changes nothing.

    The file is kept where metrics are switched off: a rollback may need it; `destroy` removes it.
    Returns True when something was (or would be) changed.
    """
    if wanted is None:
        return False
    given = wanted.get("sha256")
    changed = bool(given) and paths.metrics_key.exists()
    if changed and not check:
        remove(str(paths.metrics_key))
    key = "" if given else read(paths)
    if not given and not key:
        key, changed = make_key(), True
        if not check:
            write_atomic(paths.metrics_key, key + "\n", 0o600)
    text = render_map({NAME: given or hash_key(key)})
    if read_text(paths.metrics_key_map) != text:
        changed = True
        if not check:
            write_atomic(paths.metrics_key_map, text, 0o640, PROXY_USER)
    return changed
