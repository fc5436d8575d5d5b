import io

import pytest

from workflows import progress
from workflows.progress import ProgressLine, duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def now(monkeypatch):
    """The time in seconds, in a list to change it."""
    seconds = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (42.4, "42 s"),
        (59.7, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7620, "2 h 07 min"),
        (352_800, "4 d 2 h"),
    ],
)
def test_times_as_people_say_them(seconds, text):
    assert duration(seconds) == text


def test_share_rate_and_time_left(now):
    stream = Terminal()
    with ProgressLine("reading", 30e6, stream) as line:
        line.advance(5e6)
        assert stream.getvalue() == ""  # too early
        now[0] += 2
        line.advance(5e6, "note")
        shown = stream.getvalue()
        assert "reading   33 %  10.0 of 30.0 MB  5.0 MB/s  4.0 s left  note" in shown
        now[0] += 2
    assert stream.getvalue().endswith("\r\x1b[2Kreading  done in 4.0 s\n")


def test_without_terminal_there_are_whole_lines_and_few(now):
    stream = io.StringIO()
    with ProgressLine("encoding", 0, stream) as line:
        for _ in range(100):
            now[0] += 0.5
            line.advance(1e6)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4 and lines[0] == "encoding  30.0 MB  2.0 MB/s"


def test_what_is_seen_elsewhere_only_adds(now):
    stream = Terminal()
    with ProgressLine("reading", 10e6, stream) as line:
        for done, shown in [(3e6, "30 %"), (2e6, "30 %"), (5e6, "50 %")]:
            now[0] += 1
            line.reach(done)
            assert shown in stream.getvalue().split("\r")[-1]


def test_an_error_is_not_called_done():
    stream = io.StringIO()
    with pytest.raises(ValueError, match="x"), ProgressLine("reading", 1, stream):
        raise ValueError("x")
    assert stream.getvalue() == ""


def test_what_was_done_before_says_nothing_of_the_rate(now):
    stream = Terminal()
    with ProgressLine("reading", 30e6, stream, done_before=20e6) as line:
        now[0] += 2
        line.advance(2e6)
        assert "73 %  22.0 of 30.0 MB  1.0 MB/s  8.0 s left" in stream.getvalue()
