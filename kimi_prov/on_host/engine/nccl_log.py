"""The network that NCCL took, by the lines that it logs at INFO.

The wording was read in the source of 2.27.5, 2.28.9, 2.29.7 and 2.30.7, the versions that the
engines' locks pin: src/init.cc ("Using network"), src/plugin/net.cc, src/transport/net.cc,
net_ib, net_socket.cc, src/misc/ibvsymbols.cc (whose newer form has "Count not open").
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal

    from kimi_prov.contract.documents.answers import NcclTransport

# Variables with which NCCL writes these lines; the engine's own run stays as it is.
VARIABLES = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
# One line names at most as many cards.
MAX_DEVICES = 64
_NETWORK = re.compile(r"NCCL INFO Using network ([A-Za-z0-9_. -]{1,40}?)\s*$", re.MULTILINE)
_CARDS = re.compile(r"NCCL INFO NET/IB : Using((?: \[\d+\][\w.-]+:\d+[\w:]*/\w+)+)")
_CARD = re.compile(r"\[\d+\]([\w.-]{1,64}):(\d{1,3})[\w:]*/(IB|RoCE)")
_DIRECT = re.compile(r"via NET/[^\s/]+/\d+(?:\(\d+\))?/GDRDMA")
_NO_LIBRARY = re.compile(
    r"(?:Failed to open|Count not open|Could not open) libibverbs\.so(?:\[\.1\]|\.1)"
)
_NO_DEVICE = "NET/IB : No device found"
# Why NCCL did not take a card.
NO_LIBRARY: Literal["no library"] = "no library"
NO_DEVICE: Literal["no device"] = "no device"


def read_transport(text: str) -> NcclTransport | None:
    """Return {"network", "devices", "direct", "reason"}; None where the lines name no network.

    `network`: IB, Socket, or the name of a plugin. `devices`: cards as DEVICE:PORT/LINK, with the
    link IB or RoCE. `direct`: cards read the GPUs' memory themselves. `reason`: why no card was
    taken, as far as NCCL says it.
    """
    named = _NETWORK.findall(text)
    if not named:
        return None
    cards = [card for line in _CARDS.findall(text) for card in _CARD.findall(line)]
    reason: Literal["no library", "no device"] | None = None
    if named[-1] != "IB":
        reason = NO_DEVICE if _NO_DEVICE in text else None
        reason = NO_LIBRARY if _NO_LIBRARY.search(text) else reason
    names = dict.fromkeys(f"{name}:{port}/{link}" for name, port, link in cards)
    return {
        "network": named[-1],
        "devices": list(names)[:MAX_DEVICES],
        "direct": bool(_DIRECT.search(text)),
        "reason": reason,
    }
