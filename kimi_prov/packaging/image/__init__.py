"""What an image is built from: its Containerfile, and the programs that run in its build."""
