"""Gather an offline bundle on a machine with access: the files, their index, its signature."""
