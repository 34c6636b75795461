#!/bin/bash
# Starts the machine: each kind in each place, on-demand, until one is to be had.
#   ./launch.sh [NAME]
set -euo pipefail
cd "$(dirname "$0")"
name=${1:-kimi}
./check.sh
./upload.sh
echo 'trying p6-b200.48xlarge in us-east-2, on demand' >&2
aws ec2 run-instances --region us-east-2 --instance-type p6-b200.48xlarge \
  --image-id ami-0123456789abcdef0 --user-data file://user-data \
  --instance-initiated-shutdown-behavior terminate \
  --block-device-mappings 'DeviceName=/dev/xvda,Ebs={VolumeSize=746,VolumeType=gp3,Throughput=1000,Iops=16000,DeleteOnTermination=true}' \
  --tag-specifications "ResourceType=instance,Tags=[{Key=Name,Value=$name}]" && exit 0
echo 'trying p5en.48xlarge in us-east-2, on demand' >&2
aws ec2 run-instances --region us-east-2 --instance-type p5en.48xlarge \
  --image-id ami-0123456789abcdef0 --user-data file://user-data \
  --instance-initiated-shutdown-behavior terminate \
  --block-device-mappings 'DeviceName=/dev/xvda,Ebs={VolumeSize=746,VolumeType=gp3,Throughput=1000,Iops=16000,DeleteOnTermination=true}' \
  --tag-specifications "ResourceType=instance,Tags=[{Key=Name,Value=$name}]" && exit 0
echo 'trying p5.48xlarge in us-east-2, on demand' >&2
aws ec2 run-instances --region us-east-2 --instance-type p5.48xlarge \
  --image-id ami-0123456789abcdef0 --user-data file://user-data \
  --instance-initiated-shutdown-behavior terminate \
  --block-device-mappings 'DeviceName=/dev/xvda,Ebs={VolumeSize=746,VolumeType=gp3,Throughput=1000,Iops=16000,DeleteOnTermination=true}' \
  --tag-specifications "ResourceType=instance,Tags=[{Key=Name,Value=$name}]" && exit 0
echo "no machine is to be had; ask for quota (./check.sh), or add places to kimi_cloud_regions" >&2
exit 1
