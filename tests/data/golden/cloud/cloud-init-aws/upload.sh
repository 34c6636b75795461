#!/bin/bash
# Puts the wheel that the machine installs into the bucket of the weights; user-data has its SHA-256.
set -euo pipefail
cd "$(dirname "$0")"
echo "c8d27a58c983d63f54eb1a984251ffd58f5c3e993f28582340275e5b1a26a2c0  kimi_prov-0.1.0-py3-none-any.whl" | sha256sum --check --quiet
aws s3 cp --only-show-errors --region us-east-2 \
  kimi_prov-0.1.0-py3-none-any.whl s3://weights-of-site/kimi-prov/c8d27a58c983d63f54eb1a984251ffd58f5c3e993f28582340275e5b1a26a2c0/kimi_prov-0.1.0-py3-none-any.whl
