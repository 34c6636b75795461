"""The questions of `verify --suite full` to a served model, and the checks of its answers.

Decides: what `verify --suite full` asks, and how answers are judged.
Applied by: playbooks/verify.yml.
Held by: tests/component/on_host/acceptance/test_full_suite.py.
"""
