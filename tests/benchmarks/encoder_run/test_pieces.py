import pytest
import torch
from small_tasks import write_encoder

from benchmarks.encoder_run.pieces import join_pieces, write_pieces
from bert_core.errors import UserError
from bert_core.model_folder import load_model_folder
from bert_core.tokenizer import tokenizer_hash


@pytest.fixture
def encoder(tmp_path):
    return write_encoder(tmp_path / "encoder")


def test_an_encoder_travels_in_small_files(encoder, tmp_path):
    paths = write_pieces(encoder, tmp_path / "pieces", 20_000)
    sizes = [path.stat().st_size for path in paths]
    assert len(paths) > 2 and max(sizes) <= 20_000
    assert sum(sizes) < 0.6 * sum(path.stat().st_size for path in encoder.iterdir())
    assert join_pieces(tmp_path / "pieces", tmp_path / "joined")
    config, model, tokenizer = load_model_folder(encoder)
    joined_config, joined, joined_tokenizer = load_model_folder(tmp_path / "joined")
    assert joined_config == config
    assert tokenizer_hash(joined_tokenizer) == tokenizer_hash(tokenizer)
    weights = model.state_dict()
    for name, weight in joined.state_dict().items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, weights[name].half().float()), name


def test_pieces_are_put_together_in_their_order(encoder, tmp_path):
    assert len(write_pieces(encoder, tmp_path / "pieces", 3_000)) > 10
    assert join_pieces(tmp_path / "pieces", tmp_path / "joined")


def test_no_pieces(tmp_path):
    assert not join_pieces(tmp_path, tmp_path / "joined")
    assert not (tmp_path / "joined").exists()


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_piece_is_missing(encoder, tmp_path, place):
    write_pieces(encoder, tmp_path / "pieces", 20_000)[place].unlink()
    with pytest.raises(UserError, match="damaged or not all there"):
        join_pieces(tmp_path / "pieces", tmp_path / "joined")


def test_a_piece_is_damaged(encoder, tmp_path):
    path = write_pieces(encoder, tmp_path / "pieces", 20_000)[1]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged or not all there"):
        join_pieces(tmp_path / "pieces", tmp_path / "joined")


def test_pieces_of_an_encoder_take_the_place_of_others(encoder, tmp_path):
    write_pieces(encoder, tmp_path / "pieces", 5_000)
    write_pieces(write_encoder(tmp_path / "deeper", layers=2), tmp_path / "pieces", 20_000)
    assert join_pieces(tmp_path / "pieces", tmp_path / "joined")
    assert load_model_folder(tmp_path / "joined")[0].num_hidden_layers == 2
