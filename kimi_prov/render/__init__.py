"""Render files that serve a model where kimi-prov does not provision the machines."""
