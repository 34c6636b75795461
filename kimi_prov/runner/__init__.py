"""Runs playbooks by ansible-runner; keeps each run's log and result."""
