"""The demo's command; and, at length, killed and going on with a real Ray cluster."""

import re
import subprocess
import sys
import time

import pytest
from finetuning_runs import Demo, write_encoder
from finished_demos import QUESTIONS
from pretraining_runs import REPOSITORY, writer_of

from workflows.demo import DemoSettings, demo_folder, main
from workflows.demonstration.questions import write_questions
from workflows.runs.storage import open_storage
from workflows.settings import parse_command_line


def test_help_and_wrong_settings_are_answered_without_torch():
    code = (
        "import sys; from workflows.demo import main\n"
        "try: print(main(sys.argv[1:]))\n"
        "finally: assert not {'torch', 'ray', 'mlflow'} & sys.modules.keys()"
    )
    for argument, part in (("--help", "--fresh"), ("--frehs", "did you mean fresh")):
        command = [sys.executable, "-c", code, argument]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        assert part in done.stdout + done.stderr


def test_it_lies_where_pretraining_does():
    from workflows.pretraining.settings import PretrainSettings

    assert parse_command_line(DemoSettings, []).storage == PretrainSettings().storage


def test_a_finished_demo_prints_its_table_at_once(tmp_path, capsys):
    (tmp_path / "runs" / "mine" / "model").mkdir(parents=True)
    arguments = ["--storage", str(tmp_path), "--model", "mine", "--serve", "no"]
    settings = parse_command_line(DemoSettings, arguments)
    folder = demo_folder(settings, open_storage(settings.storage), "mine")
    folder.mkdir(parents=True)
    (folder / "table.txt").write_text("the table\n")
    write_questions(QUESTIONS, folder)
    assert main(arguments) == 0
    assert "the table" in capsys.readouterr().out
    for more, part in (
        (["--model", "nobody"], "no such model: nobody"),
        (["--max_examples", "500"], "no model folder"),  # another demo, which reads the model
        (["--fresh"], "no model folder"),
    ):
        assert main([*arguments, *more]) == 2
        assert part in capsys.readouterr().err
    assert not (folder / "table.txt").exists(), "it starts over"


def test_whether_it_serves_is_not_what_makes_another_demo(tmp_path):
    arguments = ["--storage", str(tmp_path)]
    served, unserved = (
        parse_command_line(DemoSettings, [*arguments, "--serve", each]) for each in ("yes", "no")
    )
    storage = open_storage(str(tmp_path))
    assert demo_folder(served, storage, "mine") == demo_folder(unserved, storage, "mine")


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_killed_it_goes_on_and_shows_six_runs_in_a_table(tmp_path, ray_cluster):
    write_encoder(tmp_path / "encoder", positions=128)
    demo = Demo(tmp_path / "storage", "demo", tmp_path, 0, {}, {"RAY_ADDRESS": ray_cluster})
    driver = demo.start()
    driver.until(lambda: demo.newest("docs_library-untrained").step() >= 3, 600)
    second = demo.newest("docs_library-untrained")
    writer_of(second).kill()
    driver.until(lambda: demo.newest("docs_parameters-pretrained").step() >= 2, 600)
    driver.kill()
    first = demo.newest("docs_library-pretrained")
    finished = (first.folder / "summary.txt").stat().st_mtime_ns
    output = demo.finish(seconds=900)
    assert "6 of 6 docs_answers untrained  finished: " in output
    assert "docs_library pretrained" not in output, "it was finished before"
    assert (first.folder / "summary.txt").stat().st_mtime_ns == finished
    for name in ("docs_library  accuracy", "docs_parameters  f1", "docs_answers  f1"):
        assert re.search(name.replace("  ", " +"), output), output
    for name in ("comparison.png", "report.md"):
        assert len(list(demo.storage.glob(f"demo/encoder-*/{name}"))) == 1
    begin = time.monotonic()
    again = demo.finish()
    table, _, _ = output[output.index("task  ") :].partition("serving  ")
    assert again.startswith(table)
    asked = [re.findall(r"^(/\S+) +[\d.]+  ", text, re.MULTILINE) for text in (again, output)]
    assert asked[0] == asked[1] and {"/v1/classify", "/v1/ner", "/v1/qa"} < {*asked[0]}
    print(f"a finished demo takes {time.monotonic() - begin:.1f} s")
