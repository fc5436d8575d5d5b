"""Addresses for `--storage`: a folder as file://, and a bucket of an S3 server on this machine."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moto.server import ThreadedMotoServer

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "anybody",
    "AWS_SECRET_ACCESS_KEY": "anything",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""What pyarrow finds in the environment; this server takes any."""


@contextmanager
def s3_server() -> Iterator[str]:
    """An S3 server that speaks HTTP; yields what makes an s3:// address one of its own."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    try:
        yield f"scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"
    finally:
        server.stop()


def bucket_address(query: str, bucket: str) -> str:
    """The address of a folder in a new bucket of that server."""
    from pyarrow.fs import FileSystem

    files, path = FileSystem.from_uri(f"s3://{bucket}?{query}&allow_bucket_creation=true")
    files.create_dir(path)
    return f"s3://{bucket}/some/where?{query}"


def folder_address(folder: Path) -> str:
    """The address of a folder on this machine, which need not exist."""
    return folder.absolute().as_uri()
