"""A real PostgreSQL server on this machine, for the length of a test."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.mlflow_server import free_port

NO_POSTGRES = "PostgreSQL's programs are not installed here"
WHERE_DEBIAN_HAS_IT = Path("/usr/lib/postgresql")


@contextmanager
def postgres():
    """A PostgreSQL server of its own on this machine: the URI of a database in it.

    It never runs as root: then as the user whom the installation made for it, or as nobody.
    """
    found = programs()
    folder = Path(tempfile.mkdtemp())  # other users cannot look into pytest's
    user = server_user()
    if user is not None:
        shutil.chown(folder, user)
    data, port = folder / "data", free_port()
    make = [found / "initdb", "--pgdata", str(data), "--username", "mlflow", "--auth", "trust"]
    subprocess.run(make, user=user, check=True, capture_output=True, cwd=folder)
    options = ["-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen(
        [found / "postgres", "-D", data, *options],
        user=user,
        cwd=folder,
        stderr=subprocess.DEVNULL,
    )
    try:
        ask = ["--host", "127.0.0.1", "--port", str(port), "--username", "mlflow"]
        end = time.monotonic() + 60
        while subprocess.run([found / "pg_isready", *ask], capture_output=True).returncode:
            assert time.monotonic() < end and server.poll() is None
            time.sleep(0.2)
        subprocess.run([found / "createdb", *ask, "mlflow"], check=True, cwd=folder)
        yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/mlflow"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        shutil.rmtree(folder)


def programs():
    """The newest version's folder."""
    beside = shutil.which("initdb")
    if beside is not None:
        return Path(beside).resolve().parent
    found = sorted(WHERE_DEBIAN_HAS_IT.glob("*/bin/initdb"))
    if not found:
        pytest.skip(NO_POSTGRES)
    return found[-1].parent


def server_user():
    """Who runs the server: None for who runs this."""
    if os.geteuid() != 0:
        return None
    has_one = subprocess.run(["id", "postgres"], capture_output=True).returncode == 0
    return "postgres" if has_one else "nobody"
