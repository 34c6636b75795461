"""The type of every document: facts, plans, and what commands and machines answer.

The JSON Schemas and their pages are made from these by `make docs`.
"""
