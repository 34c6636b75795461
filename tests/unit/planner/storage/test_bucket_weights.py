"""Weights from buckets: what the plan says of them, and what of an address is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import closed_form
import pytest
from plan_inputs import found, gpu_facts, plan

from kimi_prov.errors import UserError
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.runner import redaction

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = "s3://weights/kimi-k2.5"


@pytest.mark.parametrize("source", [SOURCE, "gs://weights-of.site/models/kimi-k2.5"])
def test_a_bucket_needs_rclone_and_says_how_it_is_reached(source: str) -> None:
    document = plan(gpu_facts(8), model="kimi-k2.5", weights_source=source)
    closed_form.validate(document, "plan")
    assert "rclone" in document["packages"]
    assert document["weights"]["source"] == source
    role = {"credentials_file": None, "endpoint": None, "region": None}
    assert document["weights"]["bucket"] == role
    assert document["control"]["bucket_credentials_file"] is None
    # Nothing pins what lies there but a manifest.
    assert "manifest" in found(document, "weights.unpinned")[0]["fix"]


def test_without_a_bucket_nothing_of_it_is_planned(tmp_path: Path) -> None:
    keys = tmp_path / "credentials"
    keys.write_text("[default]\n")
    document = plan(gpu_facts(8), model="kimi-k2.5", bucket_credentials_file=str(keys))
    assert "rclone" not in document["packages"]
    assert "bucket" not in document["weights"]
    assert "bucket_credentials_file" not in document["control"]


def test_credentials_have_their_place_on_the_machine(tmp_path: Path) -> None:
    keys = tmp_path / "credentials"
    keys.write_text("[default]\naws_secret_access_key = canary-of-the-bucket\n")
    document = plan(
        gpu_facts(8),
        model="kimi-k2.5",
        weights_source=SOURCE,
        bucket_credentials_file=str(keys),
        bucket_region="eu-central-1",
    )
    place = "/etc/kimi/keys/bucket-credentials"
    assert document["weights"]["bucket"]["credentials_file"] == place
    assert document["weights"]["bucket"]["region"] == "eu-central-1"
    assert document["control"]["bucket_credentials_file"] == str(keys)
    assert "canary-of-the-bucket" not in str(document)
    assert "canary-of-the-bucket" in redaction.find_plan_secrets(document)


@pytest.mark.parametrize(
    "source",
    [
        *("s3://", "s3://AB/x", "s3://a/x", "s3://weights/../x", "s3://weights/a b"),
        *("s3://weights//x", "s3://weights/.hidden", "s3://weights/-flag"),
        *("gs://key:secret@weights/x", "abs://weights/x"),
    ],
)
def test_what_is_no_address_of_a_bucket_is_refused(source: str) -> None:
    with pytest.raises(UserError, match="s3://BUCKET/FOLDER"):
        parse_settings({"kimi_model": "kimi-k2.5", "kimi_weights_source": source}, host="h1")


def test_an_endpoint_in_clear_is_refused() -> None:
    variables: dict[str, Any] = {"kimi_model": "kimi-k2.5", "kimi_weights_source": SOURCE}
    endpoint = {"kimi_bucket_endpoint": "http://objects.example.com"}
    with pytest.raises(UserError, match="kimi_bucket_endpoint: expected https"):
        parse_settings(variables | endpoint, host="h1")
    parse_settings(variables | {"kimi_bucket_endpoint": "http://127.0.0.1:9000"}, host="h1")
