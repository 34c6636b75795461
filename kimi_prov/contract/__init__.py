"""What the code on a machine and the control side agree on: paths, errors, unit files."""
