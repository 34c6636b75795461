"""The engine's image: which one a pod needs, and which ones that people type cannot serve.

Decides: objects for a Kubernetes cluster (the engine's image).
Held by: tests/unit/render/test_kubernetes_images.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan.engine import EnginePlan

# Owners of the engines' published images, by the part of a name before the last /. They have the
# engine and none of what the objects run: kimi-pod, its user, the gate that asks for keys.
_STOCK_OWNERS = frozenset({"vllm", "lmsysorg", "approachingai"})
ENTRY = "/opt/kimi/bin/kimi-pod"


def is_stock(image: str) -> bool:
    """Whether an image is a published one of an engine, also through a site's mirror."""
    path = image.partition("@")[0].split("/")
    return len(path) > 1 and path[-2] in _STOCK_OWNERS


def make_commands(engine: EnginePlan, image: str) -> list[str]:
    """Return the lines that make and push the image that a plan needs."""
    name = f"{engine['name']}-{engine['variant']}-{engine['version']}"
    return [
        f"kimi-prov image {name} --python {engine['python_version']} --output kimi-image",
        f"buildah build --tag {image} kimi-image && buildah push {image}",
    ]
