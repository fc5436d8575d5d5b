"""A collector of OpenTelemetry over real HTTP, that takes spans, refuses them or hangs."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """What has come: the bodies, by the paths they came to."""

    def __init__(self):
        self.bodies, self.paths, self.headers = [], [], []
        self.status = 200
        self.hang = threading.Event()
        self.released = threading.Event()

    @property
    def raw(self):
        """Every byte that came."""
        return b"".join(self.bodies)

    @property
    def spans(self):
        """All spans, in the order of their beginning."""
        found = [
            span
            for resource in self._resources
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    @property
    def resource(self):
        """What all spans come from."""
        return attributes(self._resources[0].resource)

    @property
    def _resources(self):
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return [each for request in requests for each in request.resource_spans]


def attributes(item):
    """Those of a span or a resource, by name."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in item.attributes
    }


@contextmanager
def collecting():
    """A collector, and its base address."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):  # noqa: N802 - http.server's name
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.paths.append(self.path)
            collector.headers.append(dict(self.headers))
            if collector.hang.is_set():
                collector.released.wait(30)
            else:
                collector.bodies.append(body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{listening.server_port}"
    finally:
        collector.released.set()
        listening.shutdown()
        thread.join()
        listening.server_close()
