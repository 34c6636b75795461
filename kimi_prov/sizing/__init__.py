"""How many machines carry a load, and how one of them behaves under it.

Pure functions on the documents of a check; nothing here plans a machine.

Decides: how many machines carry a load.
Held by: tests/unit/sizing/test_demand.py, tests/unit/commands/check/test_check_sizing.py.
"""
