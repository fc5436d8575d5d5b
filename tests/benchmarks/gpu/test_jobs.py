import importlib
from dataclasses import replace

import pytest
from small_pretraining import small_task
from small_tasks import write_data, write_encoder

from benchmarks.gpu.jobs import ABLATED, FIRST, MOST_MINUTES, Places, all_jobs
from benchmarks.pretraining.ablation import ablation_rows


@pytest.fixture
def places(tmp_path):
    """All that jobs can be made of."""
    for task, folder in (("mrpc", "glue/MRPC"), ("squad", "squad"), ("sst2", "glue/SST-2")):
        write_data(task, tmp_path / "data" / folder)
    (tmp_path / "data" / "text").mkdir()
    (tmp_path / "data" / "text" / "some.txt").write_text("A paragraph.\n")
    write_encoder(tmp_path / "encoder")
    (tmp_path / "shards").mkdir()
    return Places(tmp_path / "data", tmp_path / "encoder", tmp_path / "shards")


@pytest.mark.parametrize("rehearsal", [False, True])
def test_every_command_line_is_one_that_its_benchmark_takes(places, tmp_path, rehearsal):
    jobs, missing = all_jobs(
        replace(places, rehearsal=rehearsal, device="cpu" if rehearsal else "cuda")
    )
    assert not missing
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        _, flag, module, *words = job.command(tmp_path / "out", 300)
        assert flag == "-m"
        assert not any("{" in word for word in words), words
        options = importlib.import_module(f"{module}.__main__").parse_arguments(words)
        assert options.json == tmp_path / "out" / f"{job.name}.json"
        assert options.device == ("cpu" if rehearsal else "cuda")
        assert 0 < job.expected_minutes <= job.limit_minutes <= MOST_MINUTES < 8


def test_what_lacks_data_is_told():
    jobs, missing = all_jobs(Places())
    assert {job.name.split("-")[0] for job in jobs} == {"pretraining", "ablation"}
    assert set(missing) >= {"finetuning-mrpc", "finetuning-squad", "features", "loading", "encoder"}


def test_pretraining_is_measured_at_all_six_shapes():
    names = [job.name for job in all_jobs(Places())[0] if job.name.startswith("pretraining")]
    assert len(names) == 6
    for size, length in (("base", 128), ("base", 512), ("large", 512)):
        for lengths in ("full", "natural"):
            assert f"pretraining-{size}-{length}-{lengths}" in names


def test_the_vocabulary_is_that_of_the_shards_where_no_encoder_is_given(places):
    assert Places(shards=places.encoder).tokenizer == places.encoder
    assert Places(encoder=places.shards).tokenizer is None  # an empty folder


def test_the_smallest_text_is_read(places):
    (places.data / "text" / "a-large.txt.xz").write_bytes(b"x" * 1000)
    (features,) = [job for job in all_jobs(places)[0] if job.name == "features"]
    assert str(places.data / "text" / "some.txt") in features.arguments


def test_what_the_goals_are_about_comes_first(places):
    names = [job.name for job in all_jobs(places)[0]]
    assert set(names[: len(FIRST)]) == set(FIRST)


def test_a_rehearsal_on_a_gpu_has_all_of_its_jobs(places):
    names = [job.name for job in all_jobs(replace(places, rehearsal=True))[0]]
    assert names == [job.name for job in all_jobs(places)[0]]


def test_only_what_there_is_can_be_left_out():
    names = " ".join(ABLATED).split()
    assert len(set(names)) == len(names)
    assert set(names) <= ablation_rows(small_task()).keys()
