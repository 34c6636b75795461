"""What a rendered folder is for, as its record says: a command finds the folder's kind by that.

A record is lost easily; some files are only in such a folder, and tell its kind as well.
"""

from __future__ import annotations

CLOUD_INIT, SKYPILOT = "cloud-init", "skypilot"
KUBERNETES = "kubernetes"
SLURM = "slurm"
RECORD = "render.json"
# A file that only a folder of the kind has.
MARKERS = {
    "kimi.sky.yaml": SKYPILOT,
    "user-data": CLOUD_INIT,
    "kustomization.yaml": KUBERNETES,
    "cluster.env": SLURM,
}
