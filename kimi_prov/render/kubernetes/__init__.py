"""Render a plan as Kubernetes objects: pods without root, behind a Service."""
