"""Plugins through which Ansible calls this package."""
