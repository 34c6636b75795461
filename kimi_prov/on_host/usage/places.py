"""The requests under way of each key, each with a place for each of its answers.

A request holds its places as long as its connection to the counter.

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
        self._keys: dict[str, dict[str, tuple[Holder, int]]] = {}

    def count(self, key: str, besides: str = "") -> int:
        """Return how many answers of a key are under way, without those of `besides`."""
        held = self._keys.get(key, {})
        return sum(answers for request, (_, answers) in held.items() if request != besides)

    def add(self, key: str, request: str, holder: Holder, answers: int = 1) -> None:
        """Give a request its places; if it has some, the holder changes, and they never shrink."""
        _, had = self._keys.get(key, {}).get(request, (holder, 1))
        self.free(key, request)
        self._keys.setdefault(key, {})[request] = (holder, max(had, answers))
        holder.held.add((key, request))

    def free(self, key: str, request: str) -> None:
        """Free the places of a request that has ended, whoever holds them."""
        held = self._keys.get(key, {})
        had = held.pop(request, None)
        if had is not None:
            had[0].held.discard((key, request))
        if not held:
            self._keys.pop(key, None)

    def leave(self, holder: Holder) -> None:
        """Free all places of a connection that is gone."""
        for key, request in list(holder.held):
            self.free(key, request)
