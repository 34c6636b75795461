"""Judges what the hosts of a group measured of the network between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# Less of what the link promises is no matter of protocol or of a busy machine.
_SHARE = 1 / 3
# Over TCP the processors copy, and an engine keeps them busy: a faster link is not filled by this
# measurement, and is not judged by more than this. A third of it shows a link that fell to 1 Gbit/s.
_MOST_OF_TCP = 3e9
_BITS = 8


def check(
    plan: Mapping[str, Any], proofs: Mapping[str, Mapping[str, Any] | None]
) -> dict[str, Any]:
    """Return the check `network` of a group's head.

    `proofs`: what `network-proof` answered on each host, by name; None or {"error"} where nothing
    came.
    """
    members = [member["host"] for member in plan["group"]["members"]]
    wrong = [text for name in members if (text := _silent(name, proofs.get(name)))]
    if wrong:
        return _row("fail", "; ".join(wrong))
    known = {name: proof for name in members if (proof := proofs.get(name))}
    found = known[members[0]]["found"]
    rate = float(found["bandwidth_bytes_s"]) * _BITS
    links = {name: proof["link"] for name, proof in known.items()}
    way = {"gloo": "Gloo", "nccl": "NCCL"}.get(found["backend"], str(found["backend"]))
    detail = (
        f"{way} between {len(members)} hosts: {_gbit(rate)}, "
        f"{float(found['latency_s']) * 1e6:.0f} µs for a small sum"
    )
    promise, told = _promise(links, nccl=found["backend"] == "nccl")
    detail = f"{detail}; {told}"
    mtus = {name: row.get("mtu") for name, row in links.items() if row.get("mtu")}
    if len(set(mtus.values())) > 1:
        shown = ", ".join(f"{name} {mtu}" for name, mtu in mtus.items())
        detail = f"{detail}; the MTU differs: {shown}"
    if promise is not None and rate < promise * _SHARE:
        return _row(
            "fail",
            f"{detail}: less than {_gbit(promise * _SHARE)}; look at the speed that was negotiated "
            "(ethtool, ibstat), at errors (ip -s link), at the MTU of hosts and switches, and at "
            "what else uses the network",
        )
    return _row("ok", detail)


def of_rank(plan: Mapping[str, Any], proof: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the check `network` of a host that is not its group's head: whether it took part."""
    group = plan["group"]
    own = group["members"][group["rank"]]["host"]
    wrong = _silent(own, proof)
    head = group["members"][0]["host"]
    return (
        _row("fail", wrong) if wrong else _row("ok", f"took part; {head} tells what was measured")
    )


def _silent(name: str, proof: Mapping[str, Any] | None) -> str:
    """Say why a host measured nothing; empty where it did."""
    if not proof:
        return f"{name} was not asked: verify all hosts of the group at once"
    if proof.get("error"):
        return f"{name}: {proof['error']}"
    if not proof.get("found"):
        return f"{name}: {proof.get('said') or 'no reason given'}"
    return ""


def _promise(links: Mapping[str, Mapping[str, Any]], *, nccl: bool) -> tuple[float | None, str]:
    """Return the bits a second that the slowest host promises, as far as judged; and in words."""
    rdma = {name: row.get("rdma_bits_per_s") for name, row in links.items()}
    if nccl and all(rdma.values()):
        slowest = min(rdma, key=lambda name: rdma[name] or 0)
        return rdma[slowest], f"RDMA promises {_gbit(rdma[slowest] or 0)}"
    speeds = {name: row.get("speed_bits_per_s") for name, row in links.items()}
    unknown = [
        f"{name} ({links[name].get('interface')})" for name, speed in speeds.items() if not speed
    ]
    if unknown:
        return None, f"not judged: no speed is known of {', '.join(unknown)}"
    slowest = min(speeds, key=lambda name: speeds[name] or 0)
    speed = speeds[slowest] or 0
    told = f"{links[slowest].get('interface')} of {slowest} promises {_gbit(speed)}"
    if speed > _MOST_OF_TCP:
        told = f"{told}, judged as {_gbit(_MOST_OF_TCP)} over TCP"
    return min(speed, _MOST_OF_TCP), told


def _gbit(bits: float) -> str:
    return f"{bits / 1e9:.3g} Gbit/s"


def _row(status: str, detail: str) -> dict[str, Any]:
    return {"name": "network", "status": status, "detail": detail, "seconds": 0.0}
