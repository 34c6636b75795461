"""Shared by control machine and managed machine: paths, units, errors, types of documents."""
