"""What a machine is at now: its engines, GPUs and memory, sampled within a second or two."""
