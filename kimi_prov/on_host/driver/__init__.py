"""Change the NVIDIA driver."""
