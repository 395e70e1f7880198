"""The files seam over an S3 API on a real socket."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import boto3
import pytest
import s3fs
from moto.server import ThreadedMotoServer

from shoal.core import files
from shoal.core.errors import ConflictError, NotFoundError, UnavailableError
from shoal.testing.suites.files import FilesSuite

pytestmark = pytest.mark.integration

BUCKET = "shoal-tests"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 API that the environment names, as it would on a user's machine."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anyone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "anything")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=BUCKET)
    s3fs.S3FileSystem.clear_instance_cache()
    yield endpoint
    s3fs.S3FileSystem.clear_instance_cache()


class TestS3(FilesSuite):
    __test__ = True

    @pytest.fixture
    def root(self, s3: str) -> str:
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def test_a_discarded_upload_leaves_no_parts_behind(self, root: str, s3: str) -> None:
        with files.open_file(files.join(root, "a"), "wb") as file:
            file.write(b"x" * 60 * 1024 * 1024)
            file.discard()
        uploads = boto3.client("s3", endpoint_url=s3).list_multipart_uploads(Bucket=BUCKET)
        assert uploads.get("Uploads", []) == []
        assert not files.exists(files.join(root, "a"))

    def test_what_another_program_wrote_is_seen_at_once(self, root: str, s3: str) -> None:
        files.write_atomic(files.join(root, "a"), b"1")
        assert len(files.list_files(root)) == 1
        key = files.join(root, "b").removeprefix(f"s3://{BUCKET}/")
        boto3.client("s3", endpoint_url=s3).put_object(Bucket=BUCKET, Key=key, Body=b"2")
        assert [files.name(entry.path) for entry in files.list_files(root)] == ["a", "b"]
        assert files.read_bytes(files.join(root, "b")) == b"2"


def test_an_object_that_is_replaced_while_it_is_read(s3: str) -> None:
    path = f"s3://{BUCKET}/replaced"
    files.write_atomic(path, b"1" * 100)
    with files.open_file(path) as file:
        files.write_atomic(path, b"2" * 100)
        with pytest.raises(ConflictError):
            file.read()


def test_a_bucket_that_does_not_exist(s3: str) -> None:
    with pytest.raises(NotFoundError) as raised:
        files.write_atomic("s3://no-such-bucket/a", b"1")
    assert raised.value.facts["name"] == "s3://no-such-bucket/a"
    assert not files.exists("s3://no-such-bucket/a")


def test_nobody_answers(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UnavailableError) as raised:
        files.write_atomic(f"s3://{BUCKET}/a", b"1")
    assert f"s3://{BUCKET}/a" in raised.value.message
