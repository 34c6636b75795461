"""The sources of an image: its Containerfile, and the programs that run in its build."""
