import io
from dataclasses import replace

import pytest

from workflows import progress
from workflows.messages import RunProgress, Speed
from workflows.progress import LiveLine, ProgressLine, describe, duration, share_line

PROGRESS = RunProgress(
    step=1200,
    total_steps=5000,
    metrics={
        "train/loss": 4.25,
        "train/masked_token_loss": 3.6,
        "train/next_sentence_loss": 0.65,
        "train/learning_rate": 2e-3,
    },
    speed=Speed(12345.6, padding_share=0.125, mfu=0.42, memory_bytes=3 << 29, eta_seconds=3725),
)


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
    assert stream.getvalue().endswith("\r\x1b[Kreading  done in 4.0 s\n")


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


def test_a_share_is_shown_while_it_grows(now):
    terminal, log = Terminal(), io.StringIO()
    lines = [share_line("predicting", stream) for stream in (terminal, log)]
    for seconds, share in ((0.1, 0.01), (9.9, 0.1), (10, 0.5), (10, 1.0)):
        now[0] += seconds
        for line in lines:
            line(share)
    shown = terminal.getvalue().split("\r\x1b[K")
    expected = ["predicting  10%  1 min 30 s left", "predicting  50%  20 s left"]
    assert shown == ["", *expected, ""], "the line is gone in the end"
    assert log.getvalue().splitlines() == expected[1:]


def test_what_takes_no_time_shows_no_share(now):
    stream = Terminal()
    line = share_line("predicting", stream)
    for share in (0.5, 1.0):
        now[0] += 0.1
        line(share)
    assert stream.getvalue() == ""


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


def test_a_line_says_all_there_is_to_know():
    assert describe(PROGRESS) == (
        "step 1,200/5,000  loss 4.250  mlm 3.600  nsp 0.650  lr 2.0e-03  12,346 tokens/s  "
        "padding 12.5%  MFU 42%  1.5 GiB  ETA 1 h 02 min"
    )
    metrics = {name: each for name, each in PROGRESS.metrics.items() if "next_sentence" not in name}
    line = describe(replace(PROGRESS, metrics=metrics | {"heldout/masked_token_loss": 3.4}))
    assert "nsp" not in line and "held-out mlm 3.400" in line
    renamed = {name.replace("masked", "next"): value for name, value in PROGRESS.metrics.items()}
    line = describe(replace(PROGRESS, metrics=renamed | {"heldout/next_token_loss": 3.4}))
    assert " lm 3.600 " in line and "held-out lm 3.400" in line
    assert describe(RunProgress(step=3)) == ""


def test_a_terminal_has_one_line_and_messages_above_it():
    stream = Terminal()
    show = LiveLine(stream=stream)
    show(replace(PROGRESS, messages=("resuming from step 1,199",)))
    show(replace(PROGRESS, messages=("resuming from step 1,199",)))  # nothing new
    show(replace(PROGRESS, step=1201, messages=("resuming from step 1,199",)))
    show.close()
    first, second, *rest = stream.getvalue().split("\n")
    assert first == "\r\x1b[Kresuming from step 1,199"
    assert second.count("\r\x1b[K") == 2 and "step 1,201/5,000" in second
    assert rest == [""]


def test_a_title_stands_before_what_is_said_of_one_run_among_others():
    stream = io.StringIO()
    show = LiveLine("2 of 6 docs_library untrained", stream)
    show(RunProgress(waiting="starting 1 worker"))
    show(replace(PROGRESS, messages=("resuming from step 1,199",)))
    assert stream.getvalue().splitlines() == [
        "2 of 6 docs_library untrained  starting 1 worker",
        "2 of 6 docs_library untrained  resuming from step 1,199",
        f"2 of 6 docs_library untrained  {describe(PROGRESS)}",
    ]


def test_a_log_gets_a_line_now_and_then_and_the_last():
    stream = io.StringIO()
    show = LiveLine(stream=stream)
    for step in range(1200, 1301):
        show(replace(PROGRESS, step=step, total_steps=1300))
    show.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1,200/1,300", "step 1,300/1,300"]


def test_the_messages_of_a_new_worker_are_shown_too():
    stream = io.StringIO()
    show = LiveLine(stream=stream)
    show(RunProgress(messages=("resuming from step 40",)))
    show(RunProgress(messages=("step-60 is damaged", "resuming from step 40")))
    show(RunProgress(messages=("step-60 is damaged", "resuming from step 40")))
    show(RunProgress())
    assert stream.getvalue().splitlines() == [
        "resuming from step 40",
        "step-60 is damaged",
        "resuming from step 40",
    ]


def test_what_is_waited_for_takes_the_place_of_the_line():
    stream = Terminal()
    show = LiveLine(stream=stream)
    show(RunProgress(waiting=""))
    assert stream.getvalue() == ""
    show(RunProgress(waiting="waiting for 2 workers  5.0 s"))
    show(RunProgress(waiting=""))  # they have begun, and have no step to show yet
    assert stream.getvalue() == "\r\x1b[Kwaiting for 2 workers  5.0 s\r\x1b[K"
    show(replace(PROGRESS, waiting=""))
    show(replace(PROGRESS, waiting="starting 1 worker  6.0 s"))
    show.close()
    assert stream.getvalue().endswith(" tokens/s\r\x1b[Kstarting 1 worker  6.0 s\n")


def test_a_log_says_rarely_what_is_waited_for(now):
    stream = io.StringIO()
    show = LiveLine(stream=stream)
    for second in range(5, 70):
        now[0] = second
        show(RunProgress(waiting=f"waiting  {second} s"))
    show(RunProgress(waiting=""))
    show(replace(PROGRESS, waiting=""))
    assert stream.getvalue().splitlines() == [
        "waiting  5 s",
        "waiting  36 s",
        "waiting  67 s",
        describe(PROGRESS),
    ]
