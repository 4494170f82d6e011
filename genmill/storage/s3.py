"""Objects in a bucket of any S3-protocol server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from genmill.errors import NotFound, StorageUnavailable
from genmill.storage.port import CHUNK_BYTES, StoredObject, checked_key, is_key

_ABSENT = frozenset({"NoSuchKey", "404"})


class S3Storage:
    """Credentials and region come from boto3's own chain. Gives up within seconds; the caller retries."""

    def __init__(self, bucket: str, prefix: str = "", *, endpoint_url: str | None = None) -> None:
        self.bucket = bucket
        self.prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._s3 = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint_url,
            config=Config(
                connect_timeout=2,
                read_timeout=10,
                retries={"total_max_attempts": 2, "mode": "standard"},
                max_pool_connections=32,
                # Servers other than AWS often do not know the newer checksum trailers.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def put(self, key: str, body: bytes, content_type: str) -> None:
        full = self.prefix + checked_key(key)
        with _reachable():
            self._s3.put_object(Bucket=self.bucket, Key=full, Body=body, ContentType=content_type)

    def get(self, key: str) -> StoredObject:
        if not is_key(key):
            raise NotFound
        with _reachable():
            answer = self._s3.get_object(Bucket=self.bucket, Key=self.prefix + key)
            with answer["Body"] as stream:
                return StoredObject(stream.read(), answer["ContentType"])

    def chunks(self, key: str) -> Iterator[bytes]:
        if not is_key(key):
            raise NotFound
        with _reachable(), self._s3.get_object(Bucket=self.bucket, Key=self.prefix + key)["Body"] as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk

    def delete_prefix(self, prefix: str) -> None:
        key = self.prefix + checked_key(prefix.rstrip("/"))
        with _reachable():
            self._s3.delete_object(Bucket=self.bucket, Key=key)
            for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=key + "/"):
                if found := [{"Key": item["Key"]} for item in page.get("Contents", [])]:
                    self._s3.delete_objects(Bucket=self.bucket, Delete={"Objects": found, "Quiet": True})

    def check(self) -> None:
        with _reachable():
            self._s3.head_bucket(Bucket=self.bucket)


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except ClientError as err:
        code = err.response.get("Error", {}).get("Code", "")
        if code in _ABSENT and err.operation_name == "GetObject":
            raise NotFound from None
        raise StorageUnavailable(f"The bucket answered {code or 'an error'} to {err.operation_name}") from err
    except BotoCoreError as err:
        raise StorageUnavailable(f"The bucket cannot be reached: {type(err).__name__}") from err
