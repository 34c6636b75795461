"""The requests under way of each key: each holds a place as long as its connection to the counter.

An engine that ends closes its connections, and a counter that ends forgets all places. So no crash
leaves a place that nobody frees.
"""

from __future__ import annotations


class Holder:
    """A connection, and the requests that it told of: key and id."""

    def __init__(self) -> None:
        self.held: set[tuple[str, str]] = set()


class Places:
    """Who holds which request of a key."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, Holder]] = {}

    def count(self, key: str, besides: str = "") -> int:
        """Return how many requests of a key are under way, without the request `besides`."""
        held = self._keys.get(key, {})
        return len(held) - (besides in held)

    def add(self, key: str, request: str, holder: Holder) -> None:
        """Give a request a place; if it has one, only its holder changes."""
        self.free(key, request)
        self._keys.setdefault(key, {})[request] = holder
        holder.held.add((key, request))

    def free(self, key: str, request: str) -> None:
        """Free the place of a request that has ended, whoever holds it."""
        held = self._keys.get(key, {})
        holder = held.pop(request, None)
        if holder is not None:
            holder.held.discard((key, request))
        if not held:
            self._keys.pop(key, None)

    def leave(self, holder: Holder) -> None:
        """Free all places of a connection that is gone."""
        for key, request in list(holder.held):
            self.free(key, request)
