"""What a rendered folder is for, as its record says: a command finds the folder's kind by that."""

from __future__ import annotations

CLOUD_INIT, SKYPILOT = "cloud-init", "skypilot"
KUBERNETES = "kubernetes"
SLURM = "slurm"
