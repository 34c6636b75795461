"""What the counter remembers: limits, days, clocks, and what ends in the middle."""

from __future__ import annotations

import json
import sqlite3

import pytest

from kimi_prov.on_host.usage import exposition, store
from kimi_prov.on_host.usage.clock import Clock
from kimi_prov.on_host.usage.counter import Counter
from kimi_prov.on_host.usage.places import Holder

# The 24th of November 2026, 12:00:00 UTC.
NOON = 1795521600.0
DAY_S = 86400


class Time:
    """A machine's two clocks, as a test turns them."""

    def __init__(self) -> None:
        self.wall, self.steady = NOON, 1000.0

    def go(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def clock(self, latest: float = 0.0) -> Clock:
        return Clock(latest, lambda: self.wall, lambda: self.steady)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def db(tmp_path, time):
    made = store.Store(tmp_path / "usage.db", keep_days=400, clock=time.clock())
    yield made
    made.close()


def ask(db, name, **limits):
    refusal = db.ask(name, name.partition("-")[0], limits)
    return (refusal.reason, refusal.wait_s) if refusal else None


def use(db, name, prompt=0, completion=0, *, ended=True):
    db.tell(name, name.partition("-")[0], prompt, completion, ended=ended)


def sums(db, day=store.EVER):
    return {
        row["key"]: (row["requests"], row["prompt_tokens"], row["completion_tokens"])
        for row in db.rows(day, day)
    }


def test_requests_a_minute_are_those_of_any_sixty_seconds(db, time):
    for number, pause in enumerate((0, 10, 10)):
        time.go(pause)
        assert ask(db, f"a-{number}", requests_per_minute=3) is None
    assert ask(db, "a-3", requests_per_minute=3) == ("requests_per_minute", 40)
    assert ask(db, "b-0", requests_per_minute=3) is None
    time.go(39)
    assert ask(db, "a-4", requests_per_minute=3) == ("requests_per_minute", 1)
    time.go(1)
    assert ask(db, "a-5", requests_per_minute=3) is None
    assert ask(db, "a-6", requests_per_minute=3) == ("requests_per_minute", 10)


def test_tokens_a_minute_keep_out_until_enough_of_them_are_a_minute_ago(db, time):
    assert ask(db, "a-0", tokens_per_minute=100) is None
    use(db, "a-0", 30, 30)
    time.go(20)
    assert ask(db, "a-1", tokens_per_minute=100) is None
    use(db, "a-1", 10, 60)
    assert ask(db, "a-2", tokens_per_minute=100) == ("tokens_per_minute", 40)
    assert ask(db, "a-2", tokens_per_minute=60) == ("tokens_per_minute", 60)
    time.go(40)
    assert ask(db, "a-3", tokens_per_minute=100) is None


def test_a_day_is_utcs_and_the_longest_wait_is_told(db, time):
    time.go(DAY_S / 2 - 30)
    assert ask(db, "a-0", requests_per_day=1, requests_per_minute=1) is None
    assert ask(db, "a-1", requests_per_day=1, requests_per_minute=1) == ("requests_per_minute", 60)
    assert ask(db, "a-2", requests_per_day=1) == ("requests_per_day", 30)
    use(db, "a-0", 5, 5)
    assert ask(db, "a-3", tokens_per_day=10) == ("tokens_per_day", 30)
    time.go(30)
    assert ask(db, "a-4", requests_per_day=1, tokens_per_day=10) is None
    refused = {row["day"]: row["refused"] for row in db.rows()}
    assert refused["2026-11-24"] == {
        "requests_per_minute": 1, "requests_per_day": 1, "tokens_per_day": 1,
    }  # fmt: skip
    assert refused["2026-11-25"] == {}


def test_what_was_told_twice_or_asked_twice_counts_once(db):
    assert ask(db, "a-0", requests_per_minute=1) is None
    assert ask(db, "a-0", requests_per_minute=1) is None
    use(db, "a-0", 4, 3, ended=False)
    use(db, "a-0", 4, 9)
    use(db, "a-0", 4, 9)
    # It began while the counter was away.
    use(db, "a-1", 1, 1)
    use(db, "a-1", 1, 1)
    assert sums(db) == {"a": (2, 5, 10)}


def test_a_clock_that_is_set_back_gives_no_day_and_no_minute_back(db, time):
    assert ask(db, "a-0", requests_per_day=1) is None
    time.wall -= DAY_S / 2 + 60
    assert ask(db, "a-1", requests_per_day=1) == ("requests_per_day", DAY_S / 2)
    time.go(30)
    [reason, left] = ask(db, "a-2", requests_per_minute=1)
    assert (reason, left < 60) == ("requests_per_minute", True)
    time.go(90)
    assert ask(db, "a-3", requests_per_minute=1) is None


@pytest.mark.parametrize("every", [1, 10, 3600])
def test_a_clock_that_was_ahead_is_the_machines_again_and_never_went_back(time, every):
    time.wall += DAY_S / 3
    clock = time.clock()
    told = [clock.now()]
    time.wall -= DAY_S / 3
    for _ in range(2):
        for _ in range(int(DAY_S / 2 / every)):
            time.go(every)
            told.append(clock.now())
        # The counter is started anew.
        clock = time.clock(told[-1])
    assert told == sorted(set(told))
    assert told[-1] == time.wall


def test_a_clock_that_was_far_ahead_is_believed_again_and_the_days_are_still_there(tmp_path, time):
    path = tmp_path / "usage.db"
    db = store.Store(path, keep_days=4000, clock=time.clock())
    assert ask(db, "a-0", requests_per_day=1) is None
    time.wall += 365 * DAY_S
    assert ask(db, "a-1", requests_per_day=1) == ("requests_per_day", DAY_S / 2)
    assert ask(db, "a-9", requests_per_day=2) is None
    time.wall -= 365 * DAY_S
    assert ask(db, "a-2", requests_per_day=1) == ("requests_per_day", DAY_S / 2)
    db.close()


@pytest.mark.parametrize("jumps", [(1,), (-2,), (1, -1, 3, -3), (400, -400), (0.5, -3)])
def test_a_clock_that_jumps_gives_nobody_a_second_day(tmp_path, time, jumps):
    path = tmp_path / "usage.db"
    db = store.Store(path, keep_days=4000, clock=time.clock())
    for number in range(10):
        assert ask(db, f"a-{number}", requests_per_day=10) is None
    for days in jumps:
        time.wall += days * DAY_S
        time.go(60)
        reason, wait_s = ask(db, "a-x", requests_per_day=10)
        assert reason == "requests_per_day"
        assert wait_s <= DAY_S / 2
        assert db.recent()["keys"]["a"]["day"] == [10, 0]
    # The day that was left is over, whichever days have come again since.
    time.go(3 * DAY_S)
    assert ask(db, "a-y", requests_per_day=10) is None
    db.close()


def test_a_clock_that_is_corrected_at_midnight_takes_no_day_from_anybody(db, time):
    ask(db, "a-0", requests_per_day=1)
    time.go(DAY_S / 2 - 20)
    time.wall += 40
    assert ask(db, "a-1", requests_per_day=1) == ("requests_per_day", 20)
    time.go(20)
    assert ask(db, "a-2", requests_per_day=1) is None


def test_a_counter_that_starts_anew_remembers_the_day_that_the_clock_left(tmp_path, monkeypatch):
    path, seconds = tmp_path / "usage.db", {"wall": 1_800_000_000.0 // DAY_S * DAY_S, "steady": 9.0}
    clocks = (lambda: seconds["wall"], lambda: seconds["steady"])
    monkeypatch.setattr(store, "Clock", lambda latest, since=None: Clock(latest, *clocks, since))

    db = store.Store(path, keep_days=400, boot="one")
    assert ask(db, "a-0", requests_per_day=1) is None
    db.settle()
    db.close()
    # It jumps while no counter runs, and again.
    for _ in range(2):
        seconds["wall"] += DAY_S
        seconds["steady"] += 30
        db = store.Store(path, keep_days=400, boot="one")
        assert ask(db, "a-1", requests_per_day=1)[0] == "requests_per_day"
        db.settle()
        db.close()
    # After a boot the machine's clock is believed.
    db = store.Store(path, keep_days=400, boot="two")
    assert ask(db, "a-2", requests_per_day=1) is None
    db.close()


def test_a_start_after_the_clock_was_set_back_goes_on_at_the_last_time(tmp_path, time):
    path = tmp_path / "usage.db"
    db = store.Store(path, keep_days=400, clock=time.clock())
    ask(db, "a-0")
    db.settle()
    db.close()
    [(latest,)] = sqlite3.connect(path).execute("SELECT latest FROM clock").fetchall()
    time.wall -= 3600
    db = store.Store(path, keep_days=400, clock=time.clock(latest))
    assert ask(db, "a-1", requests_per_minute=1) == ("requests_per_minute", 60)
    db.close()


def test_days_go_after_their_time_and_the_sum_of_all_stays(tmp_path, time):
    db = store.Store(tmp_path / "usage.db", keep_days=2, clock=time.clock())
    for number in range(4):
        ask(db, f"a-{number}")
        use(db, f"a-{number}", 1, 1)
        time.go(DAY_S)
    db.settle()
    days = [row["day"] for row in db.rows() if row["day"]]
    assert days == ["2026-11-27"]
    assert sums(db) == {"a": (4, 4, 4)}
    tables = sqlite3.connect(tmp_path / "usage.db")
    assert tables.execute("SELECT count(*) FROM minute").fetchone() == (0,)
    assert tables.execute("SELECT count(*) FROM request").fetchone() == (0,)


def kept(path):
    """The days that a counter's file has."""
    return [row["day"] for row in store.read(path) if row["day"]]


def test_a_clock_that_is_years_ahead_for_an_hour_takes_hardly_a_day_of_the_history(tmp_path, time):
    path = tmp_path / "usage.db"
    db = store.Store(path, keep_days=400, clock=time.clock())
    for number in range(400):
        ask(db, f"a-{number}")
        time.go(DAY_S)
    db.settle()
    before = kept(path)
    time.wall += 3650 * DAY_S
    for _ in range(6):
        # Started anew, as by an apply.
        db.close()
        db = store.Store(path, keep_days=400, clock=time.clock())
        db.settle()
        time.go(600)
        db.settle()
    time.wall -= 3650 * DAY_S
    db.settle()
    assert set(before[3:]) <= set(kept(path))
    db.close()


def test_a_machine_that_was_off_for_long_forgets_its_days_at_last(tmp_path, time):
    path = tmp_path / "usage.db"
    db = store.Store(path, keep_days=2, clock=time.clock())
    ask(db, "a-0")
    db.settle()
    db.close()
    time.wall += 60 * DAY_S
    for _ in range(4):
        db = store.Store(path, keep_days=2, clock=time.clock())
        time.go(DAY_S)
        db.settle()
        db.close()
    assert kept(path) == []


def test_what_was_counted_while_the_clock_was_years_ahead_keeps_no_key_out(tmp_path, time):
    path = tmp_path / "usage.db"
    db = store.Store(path, keep_days=400, clock=time.clock())
    time.wall += 1095 * DAY_S
    assert ask(db, "a-0") is None
    use(db, "a-0", 2, 3, ended=False)
    time.wall -= 1095 * DAY_S
    assert ask(db, "a-1", requests_per_minute=1, tokens_per_minute=1) is None
    assert [row["minute"] for row in db.recent()["keys"].values()] == [[[0, 1, 0]]]
    db.settle()
    # It goes on, and counts once.
    use(db, "a-0", 2, 4)
    assert sums(db) == {"a": (2, 2, 4)}
    time.go(DAY_S + 1)
    db.settle()
    with sqlite3.connect(path) as tables:
        assert tables.execute("SELECT count(*) FROM minute").fetchone() == (0,)
        assert tables.execute("SELECT count(*) FROM request").fetchone() == (0,)
    db.close()


def test_a_reader_sees_what_the_writer_has(db, tmp_path):
    ask(db, "a-0")
    use(db, "a-0", 2, 3)
    path = tmp_path / "usage.db"
    assert [r["requests"] for r in store.read(path, "2026-01-01", "2026-12-31")] == [1]
    assert store.read(tmp_path / "none.db") == []


def test_what_was_saved_comes_back_once_and_what_is_there_stays(db, tmp_path, time):
    ask(db, "a-0", requests_per_day=2)
    use(db, "a-0", 2, 3)
    assert ask(db, "a-1", requests_per_day=1) is not None
    rows = list(store.parse_rows(json.loads(store.export_rows(tmp_path / "usage.db"))))
    new = store.Store(tmp_path / "new.db", keep_days=400, clock=time.clock())
    ask(new, "b-0")
    for _ in range(2):
        store.import_rows(tmp_path / "new.db", rows)
        assert sums(new) == {"a": (1, 2, 3), "b": (1, 0, 0)}
        assert sums(new, "2026-11-24") == sums(new)
    assert ask(new, "a-2", requests_per_day=1)[0] == "requests_per_day"
    new.close()


@pytest.mark.parametrize(
    "row",
    [
        {"key": "a b"}, {"day": "today"}, {"requests": -1}, {"requests": "1"},
        {"requests": 1 << 70}, {"last_at": None}, {"refused": {"other": 1}},
        {"refused": {"requests_per_day": True}},
    ],
)  # fmt: skip
def test_rows_of_a_backup_that_are_none_are_refused(row):
    good = {"key": "a", "day": "2026-11-24", "requests": 1, "prompt_tokens": 1,
            "completion_tokens": 1, "last_at": 1, "refused": {}}  # fmt: skip
    assert list(store.parse_rows([good])) == [good]
    with pytest.raises((ValueError, KeyError, TypeError)):
        list(store.parse_rows([{**good, **row}]))


def test_the_sums_are_written_as_prometheus_reads_them(db):
    ask(db, "a-0")
    use(db, "a-0", 2, 3)
    ask(db, "a-1", requests_per_day=1)
    lines = exposition.render_rows(db.rows(until=store.EVER)).splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'kimi_usage_requests_total{key="a"} 1',
        'kimi_usage_prompt_tokens_total{key="a"} 2',
        'kimi_usage_completion_tokens_total{key="a"} 3',
        'kimi_usage_refused_total{key="a",reason="requests_per_day"} 1',
    ]


def test_names_of_keys_have_a_form_and_a_number_at_most(tmp_path, time, monkeypatch):
    monkeypatch.setattr(store, "MAX_NAMES", 3)
    counter = Counter(
        store.Store(tmp_path / "usage.db", keep_days=400, clock=time.clock()), tmp_path / "prom"
    )

    def ask_for(key):
        return counter.answer({"do": "ask", "id": f"of {key}", "key": key}, Holder())

    for name in ("a", "b.c", "D_e-9"):
        assert ask_for(name) == {"ok": True}
    # Whoever reads a backup takes no other names.
    for name in ("", "x" * 65, "a b", "a\n", "\u00e4", 'a"', None, 7):
        with pytest.raises(ValueError, match="no name"):
            ask_for(name)
    with pytest.raises(ValueError, match="more than 3 names"):
        ask_for("one-more")
    assert ask_for("a") == {"ok": True}
    counter.settle()
    # Also after a start.
    db = store.Store(tmp_path / "usage.db", keep_days=400, clock=time.clock())
    with pytest.raises(ValueError, match="more than 3 names"):
        db.require_name("one-more")
    assert db.require_name("b.c") == "b.c"
    db.close()
