"""`kimi-prov weights seed`: from a local hub into buckets of both protocols, by the real rclone."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING, Any

import bucket_servers
import closed_form
import command_line
import forked
import pytest
from waiting import until
from weights_server import COMMIT, HubHandler, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bucket_servers import Cloud

pytestmark = pytest.mark.skipif(
    bucket_servers.missing() is not None, reason=str(bucket_servers.missing())
)
ADDRESS = f"hf://{HubHandler.repository}@main"


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311


FILES = {
    "model-1.safetensors": noise(1, 3_000_000),
    "model-2.safetensors": noise(2, 2_000_001),
    "config.json": b"{}\n",
    "sub/empty.txt": b"",
    ".gitattributes": b"*.safetensors lfs\n",
}
KEPT = {name: body for name, body in FILES.items() if not name.startswith(".")}


@pytest.fixture(scope="module", params=["s3", pytest.param("gs", marks=pytest.mark.slow)])
def provider(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    serve = {"s3": bucket_servers.s3, "gs": bucket_servers.gs}[request.param]
    with serve(tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.fixture
def cloud(provider: Cloud) -> Iterator[Cloud]:
    provider.behaviour.reset()
    yield provider
    provider.behaviour.reset()


@pytest.fixture
def hub() -> Iterator[Server]:
    server = Server(dict(FILES), type("Here", (HubHandler,), {}))
    yield server
    server.stop()


def line(cloud: Cloud, folder: str, *more: str) -> list[str]:
    keys = ("--credentials-file", str(cloud.good), "--endpoint", cloud.door.url)
    return ["weights", "seed", ADDRESS, cloud.url(folder), *keys, *more]


def seed(cloud: Cloud, hub: Server, folder: str, *more: str) -> command_line.Done:
    return run(hub, *line(cloud, folder, *more))


def run(hub: Server, *words: str) -> command_line.Done:
    with command_line.surroundings({**os.environ, "HF_ENDPOINT": hub.url}):
        return command_line.run(*words)


def held(cloud: Cloud, folder: str) -> dict[str, bytes]:
    """What lies in the bucket, without what is kept for ourselves."""
    bucket = cloud.bucket(folder)
    names = [name for name in bucket.objects() if not name.startswith((".kimi", "kimi-"))]
    return {name: bucket.read(name, 1 << 26) or b"" for name in names}


def test_a_bucket_is_filled_and_its_manifest_is_the_last_thing(cloud: Cloud, hub: Server) -> None:
    done = seed(cloud, hub, "whole", "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "seed")
    assert (document["complete"], document["revision"]) == (True, COMMIT)
    assert document["uploaded_bytes"] == sum(map(len, KEPT.values()))
    assert held(cloud, "whole") == KEPT
    manifest = json.loads(cloud.bucket("whole").read("kimi-manifest.json", 1 << 20) or b"")
    assert [row["path"] for row in manifest["files"]] == sorted(KEPT)
    assert manifest["revision"] == COMMIT
    # A second run sends nothing, and asks the hub for no shard.
    cloud.behaviour.reset()
    hub.behaviour.requests.clear()
    again = seed(cloud, hub, "whole")
    assert again.returncode == 0, again.stderr
    assert f"kimi_weights_source: {cloud.url('whole')}" in again.stdout
    assert not [path for path in cloud.behaviour.paths if path.startswith(("PUT", "POST"))]
    assert not [path for path, _ in hub.behaviour.requests if path.endswith(".safetensors")]


def test_what_it_takes_is_told_without_doing_it(cloud: Cloud, hub: Server) -> None:
    done = seed(cloud, hub, "asked", "--estimate", "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["complete"], document["uploaded_bytes"]) == (False, 0)
    assert document["missing_bytes"] == sum(map(len, KEPT.values()))
    assert held(cloud, "asked") == {}


@pytest.mark.slow
def test_a_hub_that_cuts_is_asked_for_the_rest(cloud: Cloud, hub: Server) -> None:
    hub.behaviour.cut_after, hub.behaviour.cuts_left = 400_000, 3
    done = seed(cloud, hub, "cut")
    assert done.returncode == 0, done.stderr
    assert hub.behaviour.cuts_left == 0
    assert held(cloud, "cut") == KEPT
    asked = [headers.get("Range") for path, headers in hub.behaviour.requests if "model" in path]
    assert any(asked)


@pytest.mark.slow
def test_a_throttled_upload_is_tried_again(cloud: Cloud, hub: Server) -> None:
    cloud.behaviour.statuses = [503, 503, 429]
    done = seed(cloud, hub, "throttled", "--workers", "1")
    # The first questions are of the listing, before any work: those end the run.
    while done.returncode == 1 and cloud.behaviour.statuses:
        done = seed(cloud, hub, "throttled", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert held(cloud, "throttled") == KEPT


def test_wrong_bytes_make_no_object(cloud: Cloud, hub: Server) -> None:
    true = HubHandler.info

    def info(handler: Any) -> dict[str, Any]:
        answer = true(handler)
        for row in answer["siblings"]:
            if row["rfilename"] == "model-2.safetensors":
                row["lfs"]["sha256"] = "0" * 64
        return answer

    hub.RequestHandlerClass.info = info  # type: ignore[attr-defined]
    done = seed(cloud, hub, "wrong", "--workers", "1")
    assert done.returncode == 1
    assert "model-2.safetensors: its sha256 is" in done.stderr
    there = set(cloud.bucket("wrong").objects())
    assert "model-2.safetensors" not in there
    assert "kimi-manifest.json" not in there


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_with_what_is_missing(cloud: Cloud, hub: Server) -> None:
    hub.behaviour.rate = 2_000_000
    environment = {**os.environ, "HF_ENDPOINT": hub.url}
    words, quiet = line(cloud, "killed", "--workers", "1"), forked.DEVNULL
    process = forked.Process(*words, env=environment, stdout=quiet, stderr=quiet)
    try:
        assert until(lambda: ".kimi-seed.json" in cloud.bucket("killed").objects(), every_s=0.2)
    finally:
        process.kill()
        process.wait()
    assert "kimi-manifest.json" not in cloud.bucket("killed").objects()
    hub.behaviour.rate = None
    hub.behaviour.requests.clear()
    done = seed(cloud, hub, "killed")
    assert done.returncode == 0, done.stderr
    assert held(cloud, "killed") == KEPT
    asked = [path for path, _ in hub.behaviour.requests if path.endswith(".safetensors")]
    assert not [path for path in asked if "model-1" in path]


@pytest.mark.slow
def test_an_object_that_was_written_over_since_is_brought_again(cloud: Cloud, hub: Server) -> None:
    assert seed(cloud, hub, "over").returncode == 0
    cloud.put("over", {"model-1.safetensors": noise(9, len(FILES["model-1.safetensors"]) - 1)})
    done = seed(cloud, hub, "over")
    assert done.returncode == 0, done.stderr
    assert held(cloud, "over") == KEPT


def test_wrong_credentials_are_told_with_their_fix(cloud: Cloud, hub: Server) -> None:
    words = line(cloud, "refused")
    words[words.index(str(cloud.good))] = str(cloud.bad)
    done = run(hub, *words)
    assert done.returncode == 1
    assert "credentials are refused" in done.stderr
    assert "--credentials-file" in done.stderr


@pytest.mark.parametrize("target", ["weights", "s3://weights", "s3://a b/x", "az://x/y"])
def test_what_is_no_folder_of_a_bucket_is_refused(target: str) -> None:
    done = command_line.run("weights", "seed", ADDRESS, target)
    assert done.returncode == 2
    assert "expected s3://BUCKET/FOLDER or gs://BUCKET/FOLDER" in done.stderr
