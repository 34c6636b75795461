"""Take a bare Linux server to a served, verified Kimi model, and say beforehand whether it can."""

__version__ = "0.1.0"
