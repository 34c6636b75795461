"""`kt_load.py RESULT SOURCE`: converted experts through kt-kernel's own loader, as its server does.

Computes some tokens with layer 1 and holds them against the checkpoint's own weights in float32.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, "/srv/kimi/lib/kimi-target.pyz")
from kimi_prov.on_host.kt import convert, layer

kt_kernel = importlib.import_module("kt_kernel")
result, source = sys.argv[1:]
files = [path.name for path in Path(source).glob("*.safetensors")]
told = convert.survey(source, files)
shape = layer.Shape(told.experts, told.top_k, told.hidden, told.width, 32)
held = importlib.import_module("kt_kernel.utils.loader").SafeTensorLoader(result)
held = held.load_experts("blk.1")
pools = len(held["gate"])
pool = layer.start_pool(kt_kernel.kt_kernel_ext, list(range(pools)), pools)
config = layer.build_configuration(kt_kernel, torch, pool, shape, 1)
for name in ("gate", "up", "down"):
    for kind, suffix in (("_projs", ""), ("_scales", "_scale")):
        places = [[array.ctypes.data for array in part] for part in held[name + suffix]]
        setattr(config, name + kind, places)
config.load = True
kernel = importlib.import_module("kt_kernel.utils.amx").AMXInt4_MOE(config)
order = torch.arange(shape.experts, dtype=torch.int64)
pool.submit(kernel.load_weights_task(order.data_ptr()))
pool.sync()
safe_open = importlib.import_module("safetensors").safe_open
weights = {
    name: [
        safe_open(row["weight"][0], framework="pt").get_tensor(row["weight"][1])
        for row in told.places[1][name]
    ]
    for name in ("gate", "up", "down")
}
torch.manual_seed(1)
tokens = torch.randn(4, shape.hidden).to(torch.bfloat16)
chosen = torch.stack([torch.randperm(shape.experts)[: shape.top_k] for _ in range(4)])
shares = torch.rand(4, shape.top_k)
out = layer.compute_layer(torch, pool, kernel, tokens, chosen, shares)
right = layer.compute_reference(torch, weights, tokens.float(), chosen, shares)
error = float((out.float() - right).norm() / right.norm())
print("\n" + json.dumps({"pools": pools, "error": round(error, 5)}), flush=True)  # noqa: T201 - what it is for
os._exit(0)
