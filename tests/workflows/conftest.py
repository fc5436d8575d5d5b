"""Addresses for runs, as the tests of storage and of runs at an address use them."""

import pytest
from storage_addresses import CREDENTIALS, bucket_address, folder_address, s3_server


@pytest.fixture(scope="session")
def server():
    """What makes an s3:// address one of a server on this machine."""
    with s3_server() as query:
        yield query


@pytest.fixture(params=["file", "s3"])
def uri(request, tmp_path, monkeypatch):
    """An address with nothing behind it yet."""
    if request.param == "file":
        return folder_address(tmp_path / "some" / "where")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return bucket_address(request.getfixturevalue("server"), tmp_path.name.replace("_", "-"))
