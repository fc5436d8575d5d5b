import numpy as np
import pytest
import torch

from bert_core.errors import UserError
from bert_core.features.store import kept_states

CPU = torch.device("cpu")


@pytest.fixture
def rows(task, tokenizer, sentences):
    return task.encode(sentences, tokenizer)


def keep(bert, rows, folder, layers=(3, 0), **options):
    return kept_states(bert.encoder, rows, folder, layers, device=CPU, **options)


def test_states_stand_where_their_places_are(bert, rows, tmp_path):
    found = keep(bert, rows, tmp_path, dtype="float32", max_tokens=16)
    items = np.arange(rows.num_items)
    batch = rows.batch(items, "packed")
    with torch.inference_mode():
        expected = bert.encoder.hidden_states(
            batch.input_ids,
            batch.token_type_ids,
            batch.position_ids,
            batch.layout,
            layers=(3, 0),
            places=batch.places,
        )
    for layer, states in zip(found, expected, strict=True):
        np.testing.assert_allclose(layer, states, atol=1e-5)


def test_half_precision_is_the_default(bert, rows, tmp_path):
    whole, half = keep(bert, rows, tmp_path, dtype="float32"), keep(bert, rows, tmp_path)
    for left, right in zip(whole, half, strict=True):
        assert right.dtype == np.float16
        np.testing.assert_array_equal(left.astype(np.float16), right)


def test_only_layers_that_are_missing_are_computed(bert, rows, tmp_path):
    shares = []
    keep(bert, rows, tmp_path, (1, 3), progress=shares.append)
    assert shares[-1] == 1
    assert shares == sorted(shares)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.npy")}
    assert len(times) == 2
    keep(bert, rows, tmp_path, (3, 1), progress=pytest.fail)
    del bert.encoder.layers[2]  # nothing above the second layer is needed for it
    keep(bert, rows, tmp_path, (1, 2, 3))
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert len(list(tmp_path.glob("*.npy"))) == 3


def test_an_unfinished_file_is_not_taken(bert, rows, tmp_path):
    def interrupt(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keep(bert, rows, tmp_path, progress=interrupt)
    assert not list(tmp_path.glob("layer-*"))
    assert np.isfinite(keep(bert, rows, tmp_path)[0]).all()
    assert not list(tmp_path.glob(".*"))


def test_files_that_are_not_these_features_are_refused(bert, rows, tmp_path):
    keep(bert, rows, tmp_path)
    path = tmp_path / "layer-03-float16.npy"
    np.save(path, np.zeros((2, 64), np.float16))
    with pytest.raises(UserError, match=r"features of shape \(2, 64\)"):
        keep(bert, rows, tmp_path)
    path.write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match="damaged features"):
        keep(bert, rows, tmp_path)
