"""Stand-in machines: real systemd, no real hardware.

Decides: the lab.
Held by: tests/lab/test_lab.py, tests/unit/lab/test_gpus.py, tests/gpu/test_served.py.
"""
