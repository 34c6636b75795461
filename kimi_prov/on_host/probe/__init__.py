"""Describe the machine; change nothing.

Decides: what the probe reports.
Held by: tests/unit/on_host/probe/test_probe.py,
  tests/component/on_host/probe/test_probe_of_this_machine.py.
"""
