import multiprocessing
import os
import time

import pytest

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.runner import locks


def hold(path, state, ready):
    with locks.hold_lock(path, "apply", state):
        ready.set()
        time.sleep(60)


@pytest.fixture
def holder(hosts_file, state):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold, args=(hosts_file, state, ready))
    process.start()
    assert ready.wait(30)
    yield process
    process.kill()
    process.join()


def test_the_second_is_told_who_holds_it_and_the_lock_dies_with_its_holder(
    holder, hosts_file, state, tmp_path
):
    link = tmp_path / "link.yml"
    link.symlink_to(hosts_file)
    with pytest.raises(UserError) as refused, locks.hold_lock(link, "destroy", state):
        pass
    assert refused.value.exit_code is ExitCode.BLOCKED
    assert f"process {holder.pid}" in refused.value.message
    assert "kimi-prov apply" in refused.value.message
    holder.kill()
    holder.join()
    with locks.hold_lock(hosts_file, "apply", state):
        pass


def test_another_inventory_is_another_lock(holder, state, tmp_path):
    with locks.hold_lock(tmp_path / "other", "apply", state) as descriptor:
        assert not os.get_inheritable(descriptor)


def test_a_link_in_the_locks_place_is_refused_and_led_nowhere(hosts_file, state, tmp_path):
    with locks.hold_lock(hosts_file, "apply", state):
        (lock,) = (state / "locks").iterdir()
    lock.unlink()
    other = tmp_path / "other"
    other.write_text("kept")
    lock.symlink_to(other)
    with (
        pytest.raises(UserError, match="the lock cannot be made"),
        locks.hold_lock(hosts_file, "apply", state),
    ):
        pass
    assert other.read_text() == "kept"


def test_folders_that_were_left_open_are_closed(hosts_file, state):
    folder = state / "locks"
    folder.mkdir(parents=True)
    for path in (state, folder):
        path.chmod(0o777)
    with locks.hold_lock(hosts_file, "apply", state):
        modes = {path.stat().st_mode & 0o777 for path in (state, folder)}
    assert modes == {0o700}
