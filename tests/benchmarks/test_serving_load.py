"""Clients of a server that answers as it is told to."""

import socket
import threading

import pytest

from benchmarks.serving_load import Connection, ask_for_a_while, request_of

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
FULL = b"HTTP/1.1 429 Too Many\r\ncontent-length: 2\r\n\r\nno"


@pytest.fixture
def answering():
    """Starts servers that give one answer to whatever comes, some bytes at a time."""
    listening = []

    def start(answer):
        server = socket.create_server(("127.0.0.1", 0))
        listening.append(server)

        def talk(connection):
            with connection:
                while connection.recv(65536):
                    for first in range(0, len(answer), 7):
                        connection.sendall(answer[first : first + 7])

        def accept():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return server.getsockname()[1]

    yield start
    for server in listening:
        server.close()


def test_an_answer_is_read_whole_whatever_its_form(answering):
    for answer in (PLAIN, CHUNKS, FULL):
        connection = Connection(answering(answer))
        for _ in range(3):  # the connection is kept
            status, body = connection.ask(request_of("/", b"{}"))
            assert status == (429 if answer is FULL else 200)
            assert (b"no" if answer is FULL else b"hello") in body
        connection.close()


def test_every_answer_is_counted_with_what_it_took(answering):
    turn = ask_for_a_while(answering(PLAIN), [request_of("/", b"{}")], clients=3, seconds=0.2)
    assert len(turn.latencies) > 3 and turn.seconds >= 0.2
    assert sum(turn.latencies) <= 3 * turn.seconds


def test_a_refusal_is_no_answer(answering):
    with pytest.raises(RuntimeError, match="429: b'no'"):
        ask_for_a_while(answering(FULL), [request_of("/", b"{}")], clients=2, seconds=0.2)
