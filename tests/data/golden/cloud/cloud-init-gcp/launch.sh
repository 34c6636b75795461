#!/bin/bash
# Starts the machine: each kind in each place, spot-first, until one is to be had.
#   ./launch.sh [NAME]
set -euo pipefail
cd "$(dirname "$0")"
name=${1:-kimi}
./check.sh
./upload.sh
echo 'trying a3-highgpu-8g in us-central1-a, spot' >&2
gcloud compute instances create "$name" --zone us-central1-a --machine-type a3-highgpu-8g \
  --provisioning-model SPOT --instance-termination-action DELETE \
  --maintenance-policy TERMINATE --image-family debian-12 --image-project debian-cloud \
  --boot-disk-size 746GB --boot-disk-type pd-ssd \
  --scopes cloud-platform --metadata-from-file user-data=user-data,startup-script=startup-script && exit 0
echo 'trying a3-highgpu-8g in europe-west4-b, spot' >&2
gcloud compute instances create "$name" --zone europe-west4-b --machine-type a3-highgpu-8g \
  --provisioning-model SPOT --instance-termination-action DELETE \
  --maintenance-policy TERMINATE --image-family debian-12 --image-project debian-cloud \
  --boot-disk-size 746GB --boot-disk-type pd-ssd \
  --scopes cloud-platform --metadata-from-file user-data=user-data,startup-script=startup-script && exit 0
echo 'trying a3-ultragpu-8g in us-central1-a, spot' >&2
gcloud compute instances create "$name" --zone us-central1-a --machine-type a3-ultragpu-8g \
  --provisioning-model SPOT --instance-termination-action DELETE \
  --maintenance-policy TERMINATE --image-family debian-12 --image-project debian-cloud \
  --boot-disk-size 746GB --boot-disk-type pd-ssd \
  --scopes cloud-platform --metadata-from-file user-data=user-data,startup-script=startup-script && exit 0
echo 'trying a3-ultragpu-8g in europe-west4-b, spot' >&2
gcloud compute instances create "$name" --zone europe-west4-b --machine-type a3-ultragpu-8g \
  --provisioning-model SPOT --instance-termination-action DELETE \
  --maintenance-policy TERMINATE --image-family debian-12 --image-project debian-cloud \
  --boot-disk-size 746GB --boot-disk-type pd-ssd \
  --scopes cloud-platform --metadata-from-file user-data=user-data,startup-script=startup-script && exit 0
echo 'trying a3-highgpu-8g in us-central1-a, on demand' >&2
gcloud compute instances create "$name" --zone us-central1-a --machine-type a3-highgpu-8g \
  --provisioning-model STANDARD \
  --maintenance-policy TERMINATE --image-family debian-12 --image-project debian-cloud \
  --boot-disk-size 746GB --boot-disk-type pd-ssd \
  --scopes cloud-platform --metadata-from-file user-data=user-data,startup-script=startup-script && exit 0
echo 'trying a3-highgpu-8g in europe-west4-b, on demand' >&2
gcloud compute instances create "$name" --zone europe-west4-b --machine-type a3-highgpu-8g \
  --provisioning-model STANDARD \
  --maintenance-policy TERMINATE --image-family debian-12 --image-project debian-cloud \
  --boot-disk-size 746GB --boot-disk-type pd-ssd \
  --scopes cloud-platform --metadata-from-file user-data=user-data,startup-script=startup-script && exit 0
echo 'trying a3-ultragpu-8g in us-central1-a, on demand' >&2
gcloud compute instances create "$name" --zone us-central1-a --machine-type a3-ultragpu-8g \
  --provisioning-model STANDARD \
  --maintenance-policy TERMINATE --image-family debian-12 --image-project debian-cloud \
  --boot-disk-size 746GB --boot-disk-type pd-ssd \
  --scopes cloud-platform --metadata-from-file user-data=user-data,startup-script=startup-script && exit 0
echo 'trying a3-ultragpu-8g in europe-west4-b, on demand' >&2
gcloud compute instances create "$name" --zone europe-west4-b --machine-type a3-ultragpu-8g \
  --provisioning-model STANDARD \
  --maintenance-policy TERMINATE --image-family debian-12 --image-project debian-cloud \
  --boot-disk-size 746GB --boot-disk-type pd-ssd \
  --scopes cloud-platform --metadata-from-file user-data=user-data,startup-script=startup-script && exit 0
echo "no machine is to be had; ask for quota (./check.sh), or add places to kimi_cloud_regions" >&2
exit 1
