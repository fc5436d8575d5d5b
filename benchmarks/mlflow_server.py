"""A local MLflow server, and a proxy in front of it that injects faults.

`python -m benchmarks.mlflow_server PORT` is the proxy: it prints its own port, then takes a mode
per line: `pass`, `refuse`, `full`, `swallow`, or `delay SECONDS`.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from workflows.runs.mlflow_run import create_store

FULL = b"HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
START_SECONDS = 120.0


class MlflowServer:
    """`mlflow server` in a process group of its own.

    Over a SQLite store and artifacts in `folder`, unless others are given.
    """

    def __init__(
        self, folder: Path, store_uri: str | None = None, artifacts: str | None = None
    ) -> None:
        self.folder = folder
        self.port = free_port()
        self.store_uri = store_uri or f"sqlite:///{folder / 'server.db'}"
        self.artifacts = artifacts or str(folder / "artifacts")
        create_store(self.store_uri)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """The tracking URI."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the server and waits until it answers; raises TimeoutError after two minutes."""
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", self.store_uri]
        command += ["--artifacts-destination", self.artifacts]
        environment = os.environ | {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                return
            time.sleep(0.3)
        self.kill()
        raise TimeoutError(f"mlflow server did not start: {self.folder / 'server.log'}")

    def kill(self) -> None:
        """Kills the server and its workers."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


class TroubledProxy:
    """The proxy as a process, so that it does not use the caller's interpreter."""

    def __init__(self, target_port: int) -> None:
        command = [sys.executable, "-m", "benchmarks.mlflow_server", str(target_port)]
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parent.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders = self._process.stdin
        self.uri = f"http://127.0.0.1:{self._process.stdout.readline().strip()}"

    def set_mode(self, mode: str) -> None:
        """Changes the mode for later requests."""
        self._orders.write(f"{mode}\n")
        self._orders.flush()
        time.sleep(0.2)

    def close(self) -> None:
        """Stops the proxy."""
        self._process.kill()
        self._process.communicate()


class Proxy:
    """Forwards bytes to a port, delayed or not at all, depending on its mode."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.mode = "pass"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handles a connection, which ends with its first refused or unanswered request."""
        with suppress(OSError):
            target_reader, target_writer = await asyncio.open_connection(
                "127.0.0.1", self.target_port
            )
            answers = asyncio.create_task(self._answers(target_reader, writer))
            await self._forward(reader, writer, target_writer)
            with suppress(OSError):
                target_writer.write_eof()
            await answers
            target_writer.close()
        writer.close()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        target_writer: asyncio.StreamWriter,
    ) -> None:
        last = 0.0
        while request := await reader.read(65536):
            if self.mode in ("refuse", "full"):
                writer.write(FULL if self.mode == "full" else b"")
                writer.close()
                return
            if self.mode.startswith("delay") and time.monotonic() - last > 0.2:
                await asyncio.sleep(float(self.mode.split()[1]))
            last = time.monotonic()
            target_writer.write(request)
            await target_writer.drain()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while answer := await reader.read(65536):
                if self.mode == "swallow":  # processed, but the client gets no response
                    writer.transport.abort()
                    return
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def serve(self) -> None:
        """Serves until standard input ends, taking a mode from each of its lines."""
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            self.mode = line.strip()


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    asyncio.run(Proxy(int(sys.argv[1])).serve())
