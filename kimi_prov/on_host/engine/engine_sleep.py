"""Has the engines of this machine sleep with their weights in host memory, and wakes them.

Their processes stay; only the memory of the GPUs is free. The order goes through the control socket
of each engine.

Decides: whether an idle engine sleeps with its weights in host memory (the order).
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from typing import TYPE_CHECKING, Callable

from kimi_prov.contract import clean_text, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.on_host.endpoint import stop_state
from kimi_prov.on_host.engine import control, ready
from kimi_prov.on_host.system import units
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.engine import InstancePlan
    from kimi_prov.contract.paths import Paths
    from kimi_prov.on_host.system.kept_state import State

# In the stop state of a machine whose engines sleep: MiB that each GPU has in use all the same.
HELD = "held_mib"
# The first sleep pins the host memory, at some GB/s; a wake copies at the speed of the bus.
_SLEEP_LIMIT_S, _WAKE_LIMIT_S = 900.0, 300.0
_GPU_TIMEOUT_S = 20.0
_STOP_LIMIT_S = 900.0
# Bytes of an answer.
_MAX_BYTES = 1 << 16


class GpusHeldError(HostError):
    """Other programs hold the memory of the GPUs: the engines sleep on."""


def is_engine_asleep(rest: Mapping[str, object]) -> bool:
    """Return whether the engines sleep and were not stopped, by the machine's stop state."""
    return rest.get("state") == stop_state.ASLEEP and HELD in rest


def put_to_sleep(paths: Paths, plan: MachinePlan, tell: Callable[[str], None]) -> dict[str, int]:
    """Have every engine sleep; return the MiB that each GPU has in use then. Raises HostError.

    Where one cannot, those that sleep already are woken: the machine goes on serving.
    """
    try:
        for row in plan["instances"]:
            tell(f"{unit_names.get_engine_unit(row)} falls asleep: its weights go to host memory")
            _give_order(paths, row, control.SLEEP, _SLEEP_LIMIT_S)
    except HostError:
        wake(paths, plan, {})
        raise
    return ready.read_used_mib() or {}


def wake(paths: Paths, plan: MachinePlan, held_mib: Mapping[str, int]) -> bool:
    """Wake every engine that sleeps, and have it answer one token; return whether all answer.

    An engine whose process is gone is left: its unit starts it. `held_mib`: what the sleeping
    engines themselves have in use on each GPU. Raises HostError.
    """
    awake = True
    shown = units.read_states(*map(unit_names.get_engine_unit, plan["instances"]))
    for row in plan["instances"]:
        name = unit_names.get_engine_unit(row)
        if shown.get(name, {}).get("state") != "active":
            awake = False
            continue
        if _give_order(paths, row, control.STATE, _WAKE_LIMIT_S):
            # Whoever called has an answer to write to the standard output.
            with contextlib.redirect_stdout(sys.stderr):
                held = row["gpus"] and ready.wait_for_gpus(row["gpus"], _GPU_TIMEOUT_S, held_mib)
            if held:
                raise GpusHeldError(
                    f"{name} sleeps on: other programs hold the memory of its GPUs",
                    "nvidia-smi  names them; end them, and ask again",
                )
            _give_order(paths, row, control.WAKE, _WAKE_LIMIT_S)
        if port := row["port"]:
            refusal = ready.request_token(port, plan["model"]["served_names"][0])
            if refusal:
                raise HostError(f"{name} was woken, and does not answer: {refusal}")
    return awake


def wake_or_stop(paths: Paths, plan: MachinePlan, rest: State, tell: Callable[[str], None]) -> bool:
    """Wake the engines; return False where one has to be started, for it cannot be woken.

    Then its unit starts it as after any stop. Raises GpusHeldError.
    """
    try:
        return wake(paths, plan, rest[HELD])
    except GpusHeldError:
        raise
    except HostError as error:
        tell(f"{error.message}: the engine is stopped and started instead")
        names = map(unit_names.get_engine_unit, plan["instances"])
        run("systemctl", "stop", *names, timeout=_STOP_LIMIT_S)
        return False


def _give_order(paths: Paths, instance: InstancePlan, order: str, limit_s: float) -> bool:
    """Give an engine an order; return whether it sleeps then. Raises HostError."""
    name = unit_names.get_engine_unit(instance)
    control_socket = paths.locate(str(instance["env"].get(layout.CONTROL_VARIABLE)))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(limit_s)
            connection.connect(str(control_socket))
            connection.sendall(order.encode() + b"\n")
            with connection.makefile("rb") as stream:
                answer = json.loads(stream.readline(_MAX_BYTES))
        error, asleep = answer.get("error"), bool(answer.get("asleep"))
    except (OSError, ValueError, AttributeError) as problem:
        raise HostError(
            f"{name} takes no order to {order}: {describe_error(problem)}",
            f"journalctl -u {name}; kimi_idle_action: stop ends the engine instead",
        ) from None
    ordered = {control.SLEEP: True, control.WAKE: False}.get(order, asleep)
    if error or asleep != ordered:
        reason = clean_text.clean_line(str(error or "it says that it did not"))[:300]
        raise HostError(f"{name} was told to {order}: {reason}", f"journalctl -u {name}")
    return asleep
