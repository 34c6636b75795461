#!/bin/bash
# Looks at what a start needs before anything is paid for: credentials, image, bucket, quota.
set -uo pipefail
failed=0
found() { echo "ok: $1"; }
warns() { echo "to ask for: $1" >&2; echo "  with: $2" >&2; }
lacks() { echo "missing: $1" >&2; echo "  fix: $2" >&2; failed=1; }
if gcloud auth print-access-token >/dev/null 2>&1; then found credentials; else
  lacks "credentials of gcloud" "gcloud auth login"; exit 3; fi
if gcloud storage ls gs://weights-of-site/kimi-k2.5/ >/dev/null 2>&1; then found gs://weights-of-site/kimi-k2.5; else
  lacks 'the bucket gs://weights-of-site/kimi-k2.5' 'kimi-prov weights seed hf://OWNER/NAME@REVISION gs://weights-of-site/kimi-k2.5'; fi
have=$(gcloud beta quotas info describe PREEMPTIBLE-NVIDIA-H100-GPUS-per-project-region --service=compute.googleapis.com \
  --project="$(gcloud config get-value project 2>/dev/null)" \
  --format='value(dimensionsInfos[].details.value)' 2>/dev/null | tr -s ';,' '\n' | sort -n | tail -1)
if [ "${have:-0}" -ge 8 ] 2>/dev/null; then found PREEMPTIBLE-NVIDIA-H100-GPUS-per-project-region; else
  warns 'quota PREEMPTIBLE-NVIDIA-H100-GPUS-per-project-region of 8, unless it is there: it could not be read, or is less' 'gcloud beta quotas preferences create --preferred-value=8 --quota-id=PREEMPTIBLE-NVIDIA-H100-GPUS-per-project-region --service=compute.googleapis.com --project=PROJECT --dimensions=region=REGION --email=YOU'; fi
[ "$failed" = 0 ] || exit 3
