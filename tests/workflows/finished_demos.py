"""The storage of a demo that is finished, with small models that have learned nothing."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import psutil
from pretraining_runs import REPOSITORY
from running import write_models

from workflows.demo import DemoSettings, demo_folder
from workflows.demonstration.questions import DemoQuestions, write_questions
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line

TASKS = {"library": "sentiment", "parameters": "entities", "answers": "answers"}
"""What stands for the models of a demo."""

QUESTIONS = DemoQuestions(
    runs={name: f"docs_{name}-pretrained" for name in TASKS},
    passage="the cat sat on the mat.",
    library="good",
    beside="a cat sat.",
    elsewhere="the dog ran.",
    other_library="bad",
    before="the cat sat.",
    sentence="the dog ran.",
    masked="the cat [MASK] on the mat.",
    missing="sat",
    described="the cat sat on the mat.",
    entities=[("PER", "cat"), ("LOC", "mat")],
    question="where is the cat?",
    context="the cat is on the mat. the dog is not.",
    answer="on the mat",
)


def write_finished_demo(root):
    """The arguments of its command; what it trained lies under `root`."""
    folders = write_models(root / "small")
    for name, small in TASKS.items():
        shutil.copytree(folders[small], root / "runs" / QUESTIONS.runs[name] / "model")
    arguments = ["--storage", str(root), "--model", str(folders["encoder"])]
    folder = folder_of(arguments)
    folder.mkdir(parents=True)
    (folder / "table.txt").write_text("the table\n")
    write_questions(QUESTIONS, folder)
    return arguments


def folder_of(arguments):
    """Where table and questions lie."""
    settings = parse_command_line(DemoSettings, arguments)
    return demo_folder(settings, open_storage(settings.storage), "encoder")


def start_demo(arguments, **options):
    """The command as a process whose output is read here."""
    return subprocess.Popen(
        [sys.executable, REPOSITORY / "workflows" / "demo.py", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"}, preexec_fn=heed_ctrl_c, **options,
    )  # fmt: skip


def heed_ctrl_c():
    """For a new process: what a shell starts in the background ignores SIGINT, and its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def read_until(stream, pattern):
    """The first match, and all that was read up to it."""
    read = ""
    for line in stream:
        read += line
        if found := re.search(pattern, line):
            return found, read
    raise AssertionError(f"never read {pattern!r} in:\n{read}")


def servers_of(root):
    """Processes that serve what lies under a folder, and those that watch over them."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "serving" in words and any(str(root) in word for word in words):
            found.append(process)
    return found


def wait_until_gone(root, seconds=30):
    """Fails where a server of this folder goes on."""
    end = time.monotonic() + seconds
    while left := servers_of(root):
        assert time.monotonic() < end, f"still there: {left}"
        time.sleep(0.05)
