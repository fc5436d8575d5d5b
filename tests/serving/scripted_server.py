"""A real HTTP server that answers as it is told: refusals, hung up connections, then answers."""

import json
import socket
import struct
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RESET, CLOSE, HALF, GARBAGE, SILENCE = "reset", "close", "half", "garbage", "silence"


class ScriptedServer(ThreadingHTTPServer):
    """Each POST takes the next step of the script; after the last one all are answered.

    A step is a status, a status with headers, or one of the words above. An answer has each text as
    its own label. More than `most_items`, or characters of texts than `most_characters`, get 413.
    """

    request_queue_size = 64

    def __init__(self, script=(), limits=None, most_items=None, most_characters=None, delay=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = list(script)
        self.limits = limits or {}
        self.most_items = most_items
        self.most_characters = most_characters
        self.delay = delay or (lambda _: 0)
        self.lock = threading.Lock()
        self.asked = []  # when, and what, each POST
        self.paths, self.headers = [], []
        self.num_now, self.most_at_once = 0, 0
        self.ending = threading.Event()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def shutdown_request(self, request):
        """Without an orderly end, so that a socket which does not linger is reset."""
        self.close_request(request)

    def handle_error(self, request, client_address):
        """A client that has gone is none of the test's business."""


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        """Nothing."""

    def do_GET(self):
        if self.path == "/info" and self.server.limits is not None:
            info = {"version": "1", "models": {}, "limits": self.server.limits, "new": 1}
            self._answer(200, info)
        else:
            self._answer(404, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.asked.append((time.monotonic(), body))
            self.server.paths.append(self.path)
            self.server.headers.append(dict(self.headers))
            self.server.num_now += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.num_now)
            step = self.server.script.pop(0) if self.server.script else 200
        try:
            self._do(step, json.loads(body))
        finally:
            with self.server.lock:
                self.server.num_now -= 1

    def _do(self, step, body):
        status, headers = step if isinstance(step, tuple) else (step, {})
        self.close_connection = status in (RESET, CLOSE, HALF, GARBAGE, SILENCE)
        if status == RESET:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        elif status == HALF:
            self.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"model"')
        elif status == GARBAGE:
            self.wfile.write(b"220 mail.example.org ready\r\n\r\n")
        elif status == SILENCE:
            self.server.ending.wait(30)
        elif status == 200:
            self._answer_texts(body)
        elif status != CLOSE:
            self._answer(status, {}, headers)

    def _answer_texts(self, body):
        given = body["inputs"]
        inputs = given if isinstance(given, list) else [given]
        time.sleep(self.server.delay(inputs))
        most, characters = self.server.most_items, self.server.most_characters
        too_many = most is not None and len(inputs) > most
        if too_many or (characters is not None and sum(map(len, inputs)) > characters):
            problem = {"title": "Too many tokens", "status": 413, "detail": "d", "field": "inputs"}
            self._answer(413, problem)
            return
        if "wrong" in inputs:
            where = f"inputs[{inputs.index('wrong')}]" if given is inputs else "inputs"
            problem = {"title": "Wrong", "status": 422, "detail": "d", "field": where}
            self._answer(422, problem, {"X-Request-Id": "abc"})
            return
        results = [{"label": each, "n_tokens": 1, "truncated": False} for each in inputs]
        self._answer(200, {"model": "m", "results": results}, {"X-Model-Version": "7"})

    def _answer(self, status, content, headers=None):
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def scripted(*script, **settings):
    """A server that answers so, until the end of the block."""
    server = ScriptedServer(script, **settings)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.ending.set()
        server.shutdown()
        thread.join()
        server.server_close()
