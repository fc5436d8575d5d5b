from bert_core.training.checkpoint_folder import (
    checkpoint_name,
    checkpoint_step,
    committed_checkpoints,
)


def test_a_name_says_the_step(tmp_path):
    for step in (0, 7, 123_456_789):
        assert checkpoint_step(tmp_path / checkpoint_name(step)) == step
    assert checkpoint_name(40) == "step-00000040"


def test_committed_ones_come_newest_first_by_their_step(tmp_path):
    steps = [99_999_999, 5, 100_000_000]
    names = [checkpoint_name(step) for step in steps]
    for name in [*names, "step-00000006.tmp-12", "step-00000007.deleting", "step-8", "other"]:
        (tmp_path / name).mkdir()
    assert [checkpoint_step(path) for path in committed_checkpoints(tmp_path)] == sorted(
        steps, reverse=True
    )
    assert committed_checkpoints(tmp_path / "absent") == []
