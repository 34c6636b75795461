"""Thin plugins that let Ansible call this package."""
