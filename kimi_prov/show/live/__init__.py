"""Screens that change while a command runs."""
