import subprocess
import sys
import time

import pytest

from bert_core.disk import write_atomically
from bert_core.errors import UserError
from workflows.runs.folder import RunFolder, open_run, sole_writer
from workflows.runs.tracker import SPECIFICATION_NAME, write_json

RECIPE = {"seed": 0, "optimizer": {"name": "adamw", "warmup_steps": 10}}

HOLD = """
import sys, time
from pathlib import Path
from workflows.runs.folder import RunFolder, sole_writer
from workflows.runs.folder import open_run
storage = Path(sys.argv[1])
with open_run(storage, "run", {}, fresh=False) if sys.argv[2] == "run" else sole_writer(
    RunFolder(storage / "runs" / "run")
):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path, repository):
    """Starts a process that holds a run, or the right to write in it, until it is killed."""
    processes = []

    def hold(what):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, tmp_path, what],
            cwd=repository,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in processes:
        process.kill()
        process.communicate()


def test_the_same_recipe_goes_on_and_another_is_refused_by_what_differs(tmp_path):
    with open_run(tmp_path, "run", RECIPE, fresh=False) as folder:
        assert (folder.path, folder.name) == (tmp_path / "runs" / "run", "run")
        write_atomically(folder.summary, "kept")
    with open_run(tmp_path, "run", RECIPE, fresh=False) as folder:
        assert folder.summary.read_text() == "kept"
    other = {"seed": 1, "optimizer": {"name": "lamb", "warmup_steps": 10}}
    with (
        pytest.raises(UserError, match=r"optimizer.name: adamw -> lamb; seed: 0 -> 1 \(give"),
        open_run(tmp_path, "run", other, fresh=False),
    ):
        pass
    with open_run(tmp_path, "run", other, fresh=True) as folder:
        assert not folder.summary.exists()
    (aside,) = (tmp_path / "runs").glob("run.before-*")
    assert RunFolder(aside).summary.read_text() == "kept"


def test_what_is_refused_before_it_began_leaves_everything_as_it_was(tmp_path):
    def refuse(**options):
        with pytest.raises(UserError), open_run(tmp_path, "run", RECIPE, **options):
            raise UserError("no room", "disk", "free some")

    refuse(fresh=False)
    assert not (tmp_path / "runs" / "run").exists()
    with open_run(tmp_path, "run", RECIPE, fresh=False) as folder:
        write_atomically(folder.summary, "kept")
    refuse(fresh=False)
    refuse(fresh=True)
    assert folder.summary.read_text() == "kept"
    assert not list((tmp_path / "runs").glob("run.before-*"))


def test_what_failed_after_it_began_stays(tmp_path):
    with (
        pytest.raises(UserError),
        open_run(tmp_path, "run", RECIPE, fresh=False) as folder,
        sole_writer(folder),
    ):
        raise UserError("loss is not a number", "step 3", "lower the learning rate")
    assert folder.recipe.exists()


def test_one_process_trains_a_run_at_a_time_and_its_death_frees_it(tmp_path, holder):
    process = holder("run")
    with (
        pytest.raises(UserError, match=r"another process is training this run: run"),
        open_run(tmp_path, "run", {}, fresh=False),
    ):
        pass
    process.kill()
    process.wait()
    with open_run(tmp_path, "run", {}, fresh=False):
        pass


def test_no_two_generations_of_workers_write(tmp_path, holder):
    with open_run(tmp_path, "run", {}, fresh=False) as folder:
        process = holder("writing")
        message = "a worker of an earlier start of this run is still writing"
        with pytest.raises(UserError, match=message), sole_writer(folder, patience_seconds=0.3):
            pass
        process.kill()  # what Ray does to the workers of a driver that died
        begin = time.monotonic()
        with sole_writer(folder, patience_seconds=20):
            assert time.monotonic() - begin < 10


def test_storage_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(UserError, match="cannot write to the storage"),
        open_run(tmp_path / "file" / "x", "run", RECIPE, fresh=False),
    ):
        pass


def test_a_small_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"] and path.read_text() == "two"


def test_a_summary_names_the_paths_of_a_moved_storage(tmp_path):
    before = RunFolder(tmp_path / "before" / "runs" / "run")
    before.path.mkdir(parents=True)
    before.summary.write_text(f"model  {before.model}\nMLflow /elsewhere/mlflow.db\n")
    write_json(before.path / SPECIFICATION_NAME, {"folder": str(before.path)})
    assert before.finished_summary() == before.summary.read_text()
    after = RunFolder((tmp_path / "before").rename(tmp_path / "after") / "runs" / "run")
    assert after.finished_summary() == f"model  {after.model}\nMLflow /elsewhere/mlflow.db\n"


def test_a_finished_run_has_answered_what_it_was_asked(tmp_path):
    folder = RunFolder(tmp_path)
    assert not folder.has_answered({})
    folder.summary.write_text("as an earlier version wrote it")
    assert folder.has_answered({"test": "a.csv"})
    folder.finish("done", {"test": "a.csv", "compare": None})
    assert folder.summary.read_text() == "done"
    assert folder.has_answered({"test": None, "compare": None, "tracking.register_as": None})
    assert folder.has_answered({"test": "a.csv"}) and not folder.has_answered({"test": "b.csv"})
    assert not folder.has_answered({"compare": "other"})
    folder.finish("done", {"compare": "other", "test": None})
    assert folder.has_answered({"compare": "other", "test": "a.csv"})
