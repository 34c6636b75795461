"""What `verify --suite full` asks a served model, and how the answers are judged.

Decides: what `verify --suite full` asks, and how answers are judged.
Applied by: playbooks/verify.yml.
Held by: tests/component/on_host/acceptance/test_full_suite.py.
"""
