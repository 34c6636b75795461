"""The image that a machine is started with, in the forms that SkyPilot and the clouds take."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kimi_prov.contract.rendered_kinds import SKYPILOT
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from kimi_prov.planner.settings.parsing import Settings

_FAMILY = re.compile(
    r"projects/(?P<project>[\w.:-]+)/global/images/family/(?P<family>[\w-]+)", re.A
)
_GCP_NAME = re.compile(r"projects/[\w.:-]+/global/(images|machineImages)/[\w-]+", re.ASCII)
_AWS_NAME = re.compile(r"ami-[0-9a-f]{8,17}")
# A row of SkyPilot's own catalogue.
_TAG = re.compile(r"skypilot:[\w.-]+", re.ASCII)
# Of cloud-init on Google; everything else is chosen by the site or by SkyPilot.
_DEFAULT = "projects/debian-cloud/global/images/family/debian-12"
_FORMS = {
    "gcp": "projects/PROJECT/global/images/NAME (gcloud compute images list --project=PROJECT)",
    "aws": "ami-ID (aws ec2 describe-images --owners OWNER)",
}


def is_image_name(cloud: str, image: str) -> bool:
    """Whether SkyPilot and the cloud's own program take this as the name of an image."""
    return bool({"gcp": _GCP_NAME, "aws": _AWS_NAME}[cloud].fullmatch(image))


def check_image(settings: Settings, launcher: str) -> None:
    """Refuse an image that the launcher would not find. Raises UserError."""
    image = settings.cloud_image
    if image is None:
        return
    named = is_image_name(settings.cloud, image)
    family = _FAMILY.fullmatch(image) if settings.cloud == "gcp" else None
    if family and launcher == SKYPILOT:
        raise UserError(
            f"kimi_cloud_image: {image} is a family, and SkyPilot asks Google for one image",
            fix="remove it: SkyPilot takes an image of its own. Or name one of the family: "
            f"gcloud compute images describe-from-family {family['family']} "
            f"--project={family['project']} --format='value(name)'",
        )
    tag = launcher == SKYPILOT and _TAG.fullmatch(image)
    if not (named or family or tag):
        raise UserError(
            f"kimi_cloud_image: {image} is no image of {settings.cloud}",
            fix=f"name one as {_FORMS[settings.cloud]}",
        )


def make_gcloud_options(image: str | None) -> str:
    """Return the options of `gcloud compute instances create` that choose the image."""
    family = _FAMILY.fullmatch(image or _DEFAULT)
    if family:
        return f"--image-family {family['family']} --image-project {family['project']}"
    return (
        f"--source-machine-image={image}" if "/machineImages/" in str(image) else f"--image={image}"
    )
