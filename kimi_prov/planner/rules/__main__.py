"""Prints the documentation of every finding."""

from kimi_prov.planner.rules import table

print(table(), end="")  # noqa: T201  (it is what the command is for)
