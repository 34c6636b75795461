"""Check and bench documents as reports: Markdown, HTML, text, a bill of materials.

Decides: the report of `check`.
Held by: tests/component/show/report/test_rendering.py.
"""
