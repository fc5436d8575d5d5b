"""Run the servers under test: how each is started, asked, watched and stopped, and its load.

A server is all of its processes: their CPU time and memory are counted together.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil
import yaml

from workflows.portable.settings import Format

ROOT = Path(__file__).parent.parent
START_SECONDS = 300
_POLL_SECONDS = 0.05
_END_SECONDS = 10

Command = Sequence[str | int | Path]
Route = Literal["classify", "rerank", "shared"]
"""`shared`: a model of embeddings and a reranker in one server, asked together."""

Scores = dict[str, float]
"""The score of each label in an answer, or of each passage by its number."""

Ranked = tuple[str, Sequence[str]]
"""A query, and the passages to be ordered for it."""


@dataclass(frozen=True)
class Kind:
    """A kind of server: how to start it, build its requests and read its answers.

    `command` builds the command line for a folder, a port and a working folder. `packages` are
    those of a peer's environment; ours have none and run in this one.
    """

    name: str
    command: Callable[[Path, int, Path], Command]
    path: str
    body: Callable[[Any], Any]
    scores: Callable[[Any], Scores]
    packages: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_peer(self) -> bool:
        """Whether it is not ours."""
        return bool(self.packages)

    def request(self, text: str | Sequence[str] | Ranked) -> bytes:
        """The HTTP request for a text, for several if the server supports it, or a ranking."""
        return request_of(self.path, json.dumps(self.body(text)).encode())


class BothKinds(Kind):
    """A server of embeddings and a reranker: a text is to be embedded, a ranking ordered."""

    def request(self, text: str | Sequence[str] | Ranked) -> bytes:
        """The HTTP request, to `/embed` or `/rerank`."""
        is_text = isinstance(text, str)
        body = _inputs(text) if is_text else _texts(text)  # pyright: ignore[reportArgumentType] - a ranking
        return request_of("/embed" if is_text else "/rerank", json.dumps(body).encode())


class Served:
    """A running server."""

    def __init__(self, kind: Kind, folder: Path, work: Path, threads: int | None = None) -> None:
        self.kind = kind
        self.port = free_port()
        self.log = work / f"{kind.name.replace(' ', '-')}.log"
        environment = {**os.environ, **kind.environment, "PYTHONPATH": str(ROOT)}
        if kind.is_peer:
            del environment["PYTHONPATH"]
            programs = environment_of(kind.name, work) / "bin"  # as if it were activated
            environment["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        if threads is not None:
            environment["OMP_NUM_THREADS"] = str(threads)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(each) for each in kind.command(folder, self.port, work)],
                env=environment,
                cwd=work,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._root = psutil.Process(self._process.pid)

    def wait(self, text: str | Ranked, right: Scores, *, tolerance: float) -> None:
        """Waits until it answers; asserts that its best label has the right score.

        Raises `RuntimeError` with the end of its log if it does not.
        """
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(OSError):
                connection = Connection(self.port)
                status, body = connection.ask(self.kind.request(text))
                connection.close()
                if status == 200:
                    found = self.kind.scores(json.loads(body))
                    best = max(found, key=lambda label: found[label])
                    assert abs(found[best] - right[best]) < tolerance, (self.kind.name, found)
                    return
                if status < 500 and status != 404:  # not routed yet
                    raise RuntimeError(f"{self.kind.name}: {status} {body[:500]!r}")
            time.sleep(_POLL_SECONDS)
        raise RuntimeError(f"{self.kind.name} did not start: {self.log.read_text()[-2000:]}")

    def processor_seconds(self) -> dict[int, float]:
        """CPU seconds of each of its processes."""
        found = {}
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found[process.pid] = times.user + times.system
        return found

    def processor_seconds_since(self, before: Mapping[int, float]) -> float:
        """CPU seconds of all its processes since then."""
        return sum(now - before.get(pid, 0.0) for pid, now in self.processor_seconds().items())

    @property
    def resident_bytes(self) -> int:
        """The memory of its processes; shared pages count once."""
        total = 0
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss
        return total

    @property
    def own_size(self) -> dict[str, int]:
        """Memory, threads and open files of its first process."""
        memory = self._root.memory_full_info()
        return {
            "resident_bytes": memory.rss,
            "unshared_bytes": memory.uss,
            "threads": self._root.num_threads(),
            "open_files": self._root.num_fds(),
        }

    def end(self) -> None:
        """Stops all its processes."""
        processes = self._processes()
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def _processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return [self._root, *self._root.children(recursive=True)]
        return []


def make_environment(kind: Kind, work: Path) -> None:
    """Creates the virtual environment of a peer, once; raises `CalledProcessError` on failure."""
    folder = environment_of(kind.name, work)
    done = folder / ".installed"
    if done.is_file() and done.read_text() == "\n".join(kind.packages):
        return
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *kind.packages], check=True)
    done.write_text("\n".join(kind.packages))


def environment_of(name: str, work: Path) -> Path:
    """The virtual environment of a peer."""
    return work / "environments" / name.replace(" ", "-")


def free_port() -> int:
    """An unused port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


NAME = "classifier"
UVICORN, RAY_SERVE = "ours, uvicorn", "ours, Ray Serve"
INT8 = f"{UVICORN}, int8"
EXPORTED: dict[str, tuple[Format, bool]] = {
    "onnxruntime": ("onnx", False),
    "onnxruntime, int8": ("onnx", True),
    "openvino": ("openvino", False),
    "openvino, int8": ("openvino", True),
}
"""Peers that serve a folder of workflows/export.py: its format, and whether it is in int8."""
ONE_ENCODER, TWO_ENCODERS = "one encoder", "two encoders"
BOTH = ("search", "reranker")
"""The models of a server of the route `shared`, and their folders."""
RAY_VARIABLES = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "RAY_ADDRESS": "local",
}
"""Those of infra/ray-serve.env, and its own cluster."""

_TORCH = ("transformers", "torch>=2.11,<2.14")
_GRAPH = ("fastapi", "uvicorn", "numpy", "tokenizers")
_INFINITY = (
    *("infinity-emb[server,torch]==0.0.77", "torch>=2.11,<2.14"),
    # Needed by its last version, of 2025.
    *("numpy<2", "transformers<5", "sentence-transformers<4", "click<8.2", "typer<0.13"),
)


def kinds(route: Route = "classify") -> dict[str, Kind]:
    """All servers of a route by name, ours first."""
    if route == "rerank":
        of_pairs = ("fastapi", "uvicorn", "sentence-transformers", *_TORCH)
        found = [
            *_ours("/rerank", _texts, _ranks),
            _peer("cross-encoder", "/rerank", of_pairs, _texts, _ranks),
            _peer("infinity", "/rerank", _INFINITY, _documents, _ranks_of_infinity),
        ]
        return {kind.name: kind for kind in found}
    if route == "shared":
        both = (_both, "", _inputs, lambda answer: {"0": answer[0][0]})
        return {name: BothKinds(name, *both) for name in (ONE_ENCODER, TWO_ENCODERS)}
    ours = _ours("/v1/classify", _inputs, _scores_of_ours)
    peers = [
        _peer("pipeline", "/classify", ("fastapi", "uvicorn", *_TORCH), _inputs, _scores),
        _peer("litserve", "/predict", ("litserve", *_TORCH), _inputs, _scores),
        _peer("mlflow", "/invocations", ("mlflow", "psutil", *_TORCH), _row, _scores_of_mlflow),
        _peer("infinity", "/classify", _INFINITY, _input, _scores_of_infinity),
        *(
            _peer(name, "/classify", (*_GRAPH, name.partition(",")[0]), _inputs, _scores)
            for name in EXPORTED
        ),
    ]
    return {kind.name: kind for kind in (*ours, *peers)}


def _ours(path: str, body: Any, scores: Any) -> list[Kind]:  # noqa: ANN401
    return [
        Kind(UVICORN, _uvicorn, path, body, scores),
        Kind(INT8, _uvicorn, path, body, scores),
        Kind(RAY_SERVE, _ray_serve, path, body, scores, environment=RAY_VARIABLES),
    ]


def _peer(name: str, path: str, packages: tuple[str, ...], body: Any, scores: Any) -> Kind:  # noqa: ANN401
    telemetry = {"DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "HF_HUB_OFFLINE": "1"}
    return Kind(name, partial(_of_peer, name), path, body, scores, packages, telemetry)


def _of_peer(name: str, folder: Path, port: int, work: Path) -> Command:
    python = environment_of(name, work) / "bin" / "python"
    if name == "litserve":
        return [python, Path(__file__).with_name("serving_litserve.py"), folder, port]
    return [python, Path(__file__).with_name("serving_peers.py"), name, folder, port]


def _uvicorn(folder: Path, port: int, work: Path) -> Command:
    del work
    model = f"{NAME}={folder}"
    return [sys.executable, "-m", "serving", "--model", model, "--port", port]


def _both(folder: Path, port: int, work: Path) -> Command:
    del work
    models = [part for name in BOTH for part in ("--model", f"{name}={folder / name}")]
    return [sys.executable, "-m", "serving", *models, "--port", port]


def _ray_serve(folder: Path, port: int, work: Path) -> Command:
    config = {
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {
                "name": "bertline",
                "route_prefix": "/",
                "import_path": "serving.deployment:build",
                "args": {"model": [f"{NAME}={folder}"], "insecure": True},
                "deployments": [{"name": "Server", "ray_actor_options": {"num_cpus": 2}}],
            }
        ],
    }
    path = work / "serve.yaml"
    path.write_text(yaml.safe_dump(config))
    return [Path(sys.executable).with_name("serve"), "run", path]


def _inputs(text: str | Sequence[str]) -> Any:  # noqa: ANN401 - JSON
    return {"inputs": text}


def _row(text: str) -> Any:  # noqa: ANN401 - JSON
    return {"inputs": [text]}


def _input(text: str) -> Any:  # noqa: ANN401 - JSON
    return {"model": NAME, "input": [text]}


def _scores(answer: Sequence[Mapping[str, Any]]) -> Scores:
    return {each["label"]: each["score"] for each in answer}


def _scores_of_ours(answer: Any) -> Scores:  # noqa: ANN401 - JSON
    return _scores(answer["results"][0]["scores"])


def _scores_of_mlflow(answer: Any) -> Scores:  # noqa: ANN401 - JSON
    return _scores(answer["predictions"])


def _scores_of_infinity(answer: Any) -> Scores:  # noqa: ANN401 - JSON
    return _scores(answer["data"][0])


def _texts(asked: Ranked) -> Any:  # noqa: ANN401 - JSON
    return {"query": asked[0], "texts": asked[1]}


def _documents(asked: Ranked) -> Any:  # noqa: ANN401 - JSON
    return {"model": NAME, "query": asked[0], "documents": asked[1]}


def _ranks(answer: Sequence[Mapping[str, Any]]) -> Scores:
    return {str(each["index"]): each["score"] for each in answer}


def _ranks_of_infinity(answer: Any) -> Scores:  # noqa: ANN401 - JSON
    return {str(each["index"]): each["relevance_score"] for each in answer["results"]}


_TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Turn:
    """A timed turn of requests: the latency of each, and the total seconds."""

    latencies: list[float]
    seconds: float


class Connection:
    """A keep-alive connection with minimal overhead per request."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the response; raises `ConnectionError` if the server closes."""
        self._socket.sendall(request)
        head, _, body = self._receive_until(b"", b"\r\n\r\n").partition(b"\r\n\r\n")
        status, headers = int(head.split(b" ", 2)[1]), head.lower()
        name = b"\r\ncontent-length:"
        if name in headers:
            length = int(headers.split(name, 1)[1].split(b"\r\n", 1)[0])
            while len(body) < length:
                body += self._receive()
        else:  # chunked; no answer contains the end mark
            body = self._receive_until(body, b"0\r\n\r\n")
        return status, body

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _receive_until(self, found: bytes, mark: bytes) -> bytes:
        while mark not in found:
            found += self._receive()
        return found

    def _receive(self) -> bytes:
        if not (received := self._socket.recv(65536)):
            raise ConnectionError("the server has closed the connection")
        return received


def request_of(path: str, body: bytes) -> bytes:
    """The bytes of an HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def ask_for_a_while(
    port: int, requests: Sequence[bytes], *, clients: int, seconds: float, first: int = 0
) -> Turn:
    """Sends requests from concurrent clients, one after another each, until the time is over.

    Requests in progress at the end are completed and counted. Raises `RuntimeError` for a response
    that is not 200. `first` is the index of the first request.
    """
    latencies: list[float] = []
    failures: list[str] = []
    numbers = iter(range(first, 1 << 62))
    connections = [Connection(port) for _ in range(clients)]
    begin = time.perf_counter()

    def ask(connection: Connection) -> None:
        while (started := time.perf_counter()) - begin < seconds and not failures:
            try:
                status, body = connection.ask(requests[next(numbers) % len(requests)])
            except OSError as error:
                failures.append(str(error))
                return
            latencies.append(time.perf_counter() - started)
            if status != 200:
                failures.append(f"{status}: {body[:200]!r}")

    threads = [threading.Thread(target=ask, args=(each,)) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended = time.perf_counter()
    for connection in connections:
        connection.close()
    if failures:
        raise RuntimeError(failures[0])
    return Turn(latencies, ended - begin)
