"""What a managed machine tells of itself, in the form of the documents."""

from __future__ import annotations

UNIT = {
    "state": "active",
    "sub_state": "running",
    "enabled": True,
    "restarts": 2,
    "uptime_seconds": 4000.0,
}
SERVING = {
    "ok": True,
    "provisioned": True,
    "detail": "serving",
    "stand_ins": [],
    "units": {"kimi-serve@0.service": UNIT, "kimi-stage.service": {**UNIT, "uptime_seconds": None}},
    "versions": {
        "engine": "vllm",
        "engine_variant": "cpu",
        "engine_version": "0.32.0",
        "engine_directory": "/srv/kimi/engines/vllm-cpu-0.32.0-abc",
        "proxy": "2.6.12-1",
    },
    "model": {
        "name": "kimi-k2-lab",
        "revision": "lab-1",
        "served_names": ["kimi-k2-lab"],
        "directory": "/srv/kimi/ram/kimi-k2-lab/lab-1",
        "bytes": 12172576,
        "context": 4096,
        "weights_verified": True,
    },
    "disks": [
        {"path": "/srv/kimi", "size_bytes": 4 << 40, "free_bytes": 2 << 40},
        {"path": "/etc/kimi", "size_bytes": 12 << 30, "free_bytes": 0},
    ],
    "ram_disk": {
        "planned": True,
        "mounted": {"size_bytes": 80_000_000, "used_bytes": 12_000_000},
        "reason": "memory holds the weights twice",
    },
    "port": {
        "number": 8000,
        "listening": ["any"],
        "allowed_networks": [],
        "guarded": False,
        "certificate_sha256": "ab",
        "certificate": {
            "mode": "acme",
            "state": "failing",
            "detail": "it ends on 2026-12-20T10:00:00Z, in 28 days; the order of "
            "2026-11-22T10:00:00Z failed: connection refused",
            "fix": "let the authority reach port 80",
            "names": ["kimi.example.com"],
            "issuer": "CN=Example CA",
            "not_before": "2026-09-21T10:00:00Z",
            "not_after": "2026-12-20T10:00:00Z",
            "last_order": None,
        },
        "keys": ["operator", "verify"],
        "key_not_shown_yet": True,
        "engines": [{"name": "engine0", "status": "UP", "requests": 0}],
    },
    "memory": {
        "host_total_bytes": 25_000_000_000,
        "host_available_bytes": 20_000_000_000,
        "engines": [{"index": 0, "cgroup_bytes": None, "resident_bytes": 2_700_000_000}],
    },
    "placement": [
        {
            "index": 0,
            "cpus": ["0-1"],
            "policies": ["bind:0", "default"],
            "bytes_by_node": {"0": 2_600_000_000},
            "threads": 57,
            "huge_bytes": 1_000_000_000,
        }
    ],
    "updates": {
        "lists_age_seconds": 7200,
        "waiting": [
            {
                "name": "linux-image-amd64",
                "installed": "6.1.76-1",
                "candidate": "6.1.119-1",
                "kind": "kernel",
                "held": False,
            }
        ],
        "others": 3,
        "restart_reasons": ["intel-microcode was installed after the start"],
        "stale_units": ["kimi-serve@0.service"],
    },
    "updates_error": None,
    "uptime_seconds": 9000.5,
}
