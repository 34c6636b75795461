"""The memory limit of an engine's unit, from the planned use of the host's memory."""

from __future__ import annotations

import pytest

from kimi_prov.planner.memory.unit_limit import Use, choose_limit

GIB = 1 << 30


def use(**changes: int) -> Use:
    """A host of 2 TiB that serves 595 GB from its RAM disk with one engine of 40 GiB."""
    known = {
        "memory": 2048 * GIB,
        "reserve": 40 * GIB,
        "ram_disk": 560 * GIB,
        "resident": 40 * GIB,
        "engines": 1,
    }
    return Use(**{**known, **changes})


def test_an_engine_may_take_what_nobody_else_is_planned_to_use() -> None:
    assert choose_limit(use()) == (2048 - 40 - 560) * GIB
    # Without a RAM disk the pages of the weights are the unit's: they have the room.
    assert choose_limit(use(ram_disk=0)) == (2048 - 40) * GIB


def test_each_of_several_engines_leaves_the_others_their_planned_memory() -> None:
    limit = choose_limit(use(ram_disk=0, resident=1200 * GIB, engines=2))
    assert limit == (2048 - 40 - 600) * GIB
    # One that runs away, with all others as planned, leaves the system its reserve.
    assert limit + 600 * GIB + 40 * GIB == 2048 * GIB


@pytest.mark.parametrize("engines", [1, 2, 8])
@pytest.mark.parametrize("resident", [1, 300, 900, 1400])
@pytest.mark.parametrize("ram_disk", [0, 560])
def test_a_limit_is_never_so_low_that_it_ends_a_planned_engine(
    engines: int, resident: int, ram_disk: int
) -> None:
    planned = use(engines=engines, resident=resident * GIB, ram_disk=ram_disk * GIB)
    limit = choose_limit(planned)
    fits = planned.resident + planned.reserve + planned.ram_disk <= planned.memory
    if limit is None:
        assert not fits or planned.memory - planned.reserve - planned.ram_disk < (
            1.05 * planned.resident + GIB
        )
    else:
        assert limit > planned.resident / engines


def test_where_memory_hardly_holds_the_engine_there_is_no_limit() -> None:
    assert choose_limit(use(resident=1447 * GIB)) is None
    assert choose_limit(use(resident=3000 * GIB)) is None
