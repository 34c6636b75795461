"""Code that runs on the managed machine: standard library only, Python 3.9 or newer."""
