"""A bucket on a server of our own that behaves like S3. Tests that need it are skipped without moto or s3fs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

BUCKET = "minray-tests"


@contextmanager
def bucket() -> Iterator[str]:
    """Start the server and yield the bucket's URL. Meanwhile the environment says how to get there."""
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem(skip_instance_cache=True).makedirs(BUCKET, exist_ok=True)
        yield f"s3://{BUCKET}"
    server.stop()


def names_in(url: str) -> list[str]:
    import s3fs

    found: list[str] = s3fs.S3FileSystem(skip_instance_cache=True).find(url)
    return found
