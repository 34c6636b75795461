#!/bin/bash
# Looks at what a start needs before anything is paid for: programs, login, permissions, bucket, places, quotas.
set -uo pipefail
failed=0 possible='' seen=,
ok() { echo "ok: $1"; }
warn() { echo "to ask for: $1" >&2; echo "  with: $2" >&2; }
fail() { echo "missing: $1" >&2; echo "  fix: $2" >&2; failed=1; }
need() { command -v "$1" >/dev/null || { fail "the program $1" "$2"; exit 3; }; }
need sky 'see docs.skypilot.co, Installation: skypilot[aws] in an environment of its own'
need aws "install it: https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html"
told=$(aws sts get-caller-identity 2>&1 >/dev/null) || {
  case $told in *xpired*) fail "a login of aws that is valid" "aws sso login" ;; *) fail "credentials of aws" "aws configure" ;; esac; exit 3; }
ok "login of aws"
place=$(aws s3api get-bucket-location --bucket weights-of-site --query LocationConstraint --output text 2>/dev/null)
[ "$place" != None ] || place=us-east-1
if ! aws s3 ls s3://weights-of-site/kimi-k2.5/ >/dev/null 2>&1; then
  fail 'the weights in s3://weights-of-site/kimi-k2.5' 'sky launch seed.sky.yaml -c kimi-seed --detach-run'
else ok s3://weights-of-site/kimi-k2.5; fi
quota() {
  local key="$1/$3" have
  case $seen in *",$key=no,"*) return 1 ;; *",$key=yes,"*) return 0 ;; esac
  have=$(aws service-quotas get-service-quota --region "$3" --service-code ec2 --quota-code "$1" \
    --query Quota.Value --output text 2>/dev/null) && have=${have%.*} || have=
  if [ -n "$have" ] && [ "$have" -ge "$2" ] 2>/dev/null; then
    seen="$seen$key=yes,"; ok "quota $1 in $3: $have vCPUs"; return 0
  fi
  warn "quota $1 in $3: $2 vCPUs are needed, ${have:-unknown} are there" \
    "aws service-quotas request-service-quota-increase --region $3 --service-code ec2 --quota-code $1 --desired-value $2"
  if [ -z "$have" ]; then seen="$seen$key=yes,"; return 0; fi
  seen="$seen$key=no,"; return 1
}
# may KIND REGION: whether this login may start that kind there; AWS says so without starting it.
may() {
  local told
  told=$(aws ec2 run-instances --dry-run --region "$2" --instance-type "$1" \
    --image-id ami-0123456789abcdef0 2>&1)
  case $told in
    *DryRunOperation*) return 0 ;;
    *UnauthorizedOperation*) fail "the permission to start machines in $2" "aws iam attach-user-policy --user-name YOU --policy-arn arn:aws:iam::aws:policy/AmazonEC2FullAccess" ;;
    *InvalidAMIID*) fail "the image ami-0123456789abcdef0 in $2" "name one of that region in kimi_cloud_image" ;;
    *Unsupported*|*InvalidParameterValue*) warn "$1 is not offered in $2" "aws ec2 describe-instance-type-offerings --region $2 --filters Name=instance-type,Values=$1   # and other kimi_cloud_regions" ;;
    *) return 0 ;;
  esac
  return 1
}
# near REGION: whether the bucket is there; from elsewhere the weights come slowly, and the traffic is paid.
near() {
  local answer=no
  case $seen in *",near/$1,"*) return 0 ;; esac
  seen="${seen}near/$1,"
  case ${place:-} in "" | "$1" | "${1%%-*}" | eur4 | nam4 | asia1) answer=yes ;; eu) [ "${1%%-*}" != europe ] || answer=yes ;; esac
  [ $answer = yes ] || warn "the bucket is in $place, and a machine in $1 would fetch 554.3 GiB from there" \
    "kimi_cloud_regions: a place in $place, or fill a bucket in $1"
}
this=yes
near us-east-2
may p6-b200.48xlarge us-east-2 || this=
quota L-417A185B 192 us-east-2 '' || this=
[ -z "$this" ] || possible=yes
this=yes
near us-east-2
may p5en.48xlarge us-east-2 || this=
quota L-417A185B 192 us-east-2 '' || this=
[ -z "$this" ] || possible=yes
this=yes
near us-east-2
may p5.48xlarge us-east-2 || this=
quota L-417A185B 192 us-east-2 '' || this=
[ -z "$this" ] || possible=yes
[ -n "$possible" ] || fail "a kind and a place that this account may start" "request one of the quotas above, or name other kimi_cloud_machines and kimi_cloud_regions"
[ "$failed" = 0 ] || exit 3
