#!/bin/bash
# Looks at what a start needs before anything is paid for: credentials, image, bucket, quota.
set -uo pipefail
failed=0
found() { echo "ok: $1"; }
warns() { echo "to ask for: $1" >&2; echo "  with: $2" >&2; }
lacks() { echo "missing: $1" >&2; echo "  fix: $2" >&2; failed=1; }
if aws sts get-caller-identity >/dev/null 2>&1; then found credentials; else
  lacks "credentials of aws" "aws configure"; exit 3; fi
if aws s3 ls s3://weights-of-site/kimi-k2.5/ >/dev/null 2>&1; then found s3://weights-of-site/kimi-k2.5; else
  lacks 'the bucket s3://weights-of-site/kimi-k2.5' 'kimi-prov weights seed hf://OWNER/NAME@REVISION s3://weights-of-site/kimi-k2.5'; fi
if aws ec2 describe-images --region us-east-2 --image-ids ami-0123456789abcdef0 >/dev/null 2>&1; then
  found 'image in us-east-2'; else
  lacks 'the image ami-0123456789abcdef0 in us-east-2' "name one of that region in kimi_cloud_image"; fi
have=$(aws service-quotas get-service-quota --region us-east-2 --service-code ec2 \
  --quota-code L-417A185B --query Quota.Value --output text 2>/dev/null)
if [ "${have%.*}" -ge 192 ] 2>/dev/null; then found 'L-417A185B in us-east-2'; else
  warns 'quota L-417A185B of 192 vCPUs in us-east-2, unless it is there: it could not be read, or is less' 'aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-417A185B --desired-value 192 --region us-east-2'; fi
[ "$failed" = 0 ] || exit 3
