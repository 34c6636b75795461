"""Judge what the hosts of a group measured of the network between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import NcclTransport
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.documents.plan.group import GroupRdma

    # An answer of `network-proof`; None or {"error"} without a measurement.
    Proof = Mapping[str, Any] | None

# A smaller share of the link's speed is not explained by the protocol or a busy machine.
_SHARE = 1 / 3
# Over TCP the processors copy, and an engine keeps them busy: the measurement cannot fill a faster
# link, so faster links are judged as this one. A third of it still shows a link at 1 Gbit/s.
_MAX_TCP_BYTES_S = 3e9
_BITS = 8
# What NCCL says about the cards that it did not take.
_REASONS = {
    "no library": "it found no libibverbs; apt-get install libibverbs1 ibverbs-providers, which "
    "apply does, and start the engine again",
    "no device": "it found no card; ibv_devinfo  lists those with a provider and an active port; "
    "ibverbs-providers has the providers",
    None: "it does not say why; see NCCL_NET, NCCL_IB_DISABLE and NCCL_IB_HCA in the engine's "
    "environment and in /etc/nccl.conf",
}


def check_head(plan: MachinePlan, proofs: Mapping[str, Proof]) -> dict[str, Any]:
    """Return the check `network` of a group's head; `proofs` by the name of the host."""
    group = groups.get_group(plan)
    members = [member["host"] for member in group["members"]]
    own = proofs.get(members[0])
    wrong = [text for name in members if (text := _explain_silence(name, proofs.get(name)))]
    if wrong or own is None:
        return _make_check("; ".join(wrong), "", own)
    if missed := _explain_transport(members[0], group["rdma"], own):
        return _make_check(missed, "", own)
    links = {name: proof["link"] for name in members if (proof := proofs.get(name))}
    devices = own["found"]
    nccl = devices["backend"] == "nccl"
    rate = float(devices["bandwidth_bytes_s"]) * _BITS
    promise, description = _compute_expected_rate(links, nccl=nccl)
    detail = (
        f"{_describe_network(own)} between {len(members)} hosts: "
        f"{_format_gbit(rate)}, "
        f"{float(devices['latency_s']) * 1e6:.0f} µs for a small sum; {description}"
    )
    mtus = {name: row.get("mtu") for name, row in links.items() if row.get("mtu")}
    if len(set(mtus.values())) > 1:
        shown = ", ".join(f"{name} {mtu}" for name, mtu in mtus.items())
        detail = f"{detail}; the MTU differs: {shown}"
    short = promise is not None and rate < promise * _SHARE
    wrong_text = (
        f"{detail}: less than a third; look at the speed that was negotiated (ethtool, ibstat), at "
        "errors (ip -s link), at the MTU of hosts and switches, and at what else uses the network"
    )
    return _make_check(wrong_text if short else "", detail, own)


def check_rank(plan: MachinePlan, proofs: Mapping[str, Proof]) -> dict[str, Any]:
    """Return the check `network` of a host that is not its group's head: whether it took part."""
    group = groups.get_group(plan)
    own, head = (group["members"][rank]["host"] for rank in (group["rank"], 0))
    proof = proofs.get(own)
    wrong = _explain_silence(own, proof) or _explain_transport(own, group["rdma"], proof)
    return _make_check(wrong, f"took part; {head} tells what was measured", proof)


def _explain_silence(name: str, proof: Proof) -> str:
    """Return why a host measured nothing; "" if it measured."""
    if not proof:
        return f"{name} was not asked: verify all hosts of the group at once"
    if proof.get("error"):
        return f"{name}: {proof['error']}"
    if not proof.get("found"):
        return f"{name}: {proof.get('said') or 'no reason given'}"
    return ""


def _read_transport(proof: Proof) -> NcclTransport | None:
    """Return the network that NCCL took; None where it did not run, or named none."""
    figures = (proof or {}).get("found") or {}
    taken: NcclTransport | None = figures.get("transport")
    return taken if figures.get("backend") == "nccl" else None


def _describe_network(proof: Proof) -> str:
    """Say what carried the measurement: Gloo, or NCCL with the network that it took."""
    if ((proof or {}).get("found") or {}).get("backend") != "nccl":
        return "Gloo"
    transport = _read_transport(proof)
    if not transport:
        return "NCCL"
    if transport["network"] == "Socket":
        return f"NCCL by TCP on {(proof or {})['link'].get('interface')}"
    cards = ", ".join(transport["devices"])
    direct = ", the cards read the GPUs' memory themselves" if transport["direct"] else ""
    return f"NCCL by {transport['network']}{f' ({cards}{direct})' if cards else ''}"


def _explain_transport(name: str, rdma: GroupRdma | None, proof: Proof) -> str:
    """Return why NCCL did not take the planned cards; "" where it did, or none are planned."""
    transport = _read_transport(proof)
    if rdma is None or not transport:
        return ""
    kind = "InfiniBand" if rdma["kind"] == "infiniband" else "RoCE"
    planned = f"the plan has {kind} by {', '.join(rdma['devices'])}"
    if transport["network"] == "Socket":
        interface = (proof or {})["link"].get("interface")
        return (
            f"{name}: NCCL took TCP on {interface}, and {planned}: {_REASONS[transport['reason']]}"
        )
    taken = {card.partition("/")[0] for card in transport["devices"]}
    missed = [card for card in rdma["devices"] if not _is_among(card, taken)]
    if transport["network"] == "IB" and missed:
        return (
            f"{name}: NCCL took {', '.join(transport['devices']) or 'no card'}, and {planned}: "
            f"see the state of {', '.join(missed)} with  ibv_devinfo , and run apply again where "
            "the cards have changed"
        )
    return ""


def _is_among(card: str, taken: set[str]) -> bool:
    """Whether a card of the plan, with or without its port, was taken as DEVICE:PORT."""
    return card in taken or any(name.partition(":")[0] == card for name in taken)


def _compute_expected_rate(
    links: Mapping[str, Mapping[str, Any]], *, nccl: bool
) -> tuple[float | None, str]:
    """Return the bits a second that the slowest host's link promises, None if unknown, and why."""
    rates = {name: row.get("rdma_bits_per_s") or 0 for name, row in links.items()}
    if nccl and all(rates.values()):
        slowest = min(rates.values())
        return slowest, f"RDMA promises {_format_gbit(slowest)}"
    speeds = {name: row.get("speed_bits_per_s") or 0 for name, row in links.items()}
    unknown = [f"{links[name].get('interface')} of {name}" for name in speeds if not speeds[name]]
    if unknown:
        return None, f"not judged: no speed is known of {', '.join(unknown)}"
    name = min(speeds, key=lambda host: speeds[host])
    description = f"{links[name].get('interface')} of {name} promises {_format_gbit(speeds[name])}"
    if speeds[name] > _MAX_TCP_BYTES_S:
        description = f"{description}, judged as {_format_gbit(_MAX_TCP_BYTES_S)} over TCP"
    return min(speeds[name], _MAX_TCP_BYTES_S), description


def _format_gbit(bits: float) -> str:
    return f"{bits / 1e9:.3g} Gbit/s"


def _make_check(wrong: str, right: str, proof: Proof) -> dict[str, Any]:
    seconds = float((proof or {}).get("seconds") or 0.0)
    status = "fail" if wrong else "ok"
    return {"name": "network", "status": status, "detail": wrong or right, "seconds": seconds}
