"""The type of every document: facts, plans, and the answers of commands and machines.

`make docs` generates the JSON Schemas and their pages from these.
"""
