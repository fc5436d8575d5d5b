from small_tasks import write_encoder

from benchmarks.fresh_encoder import fresh_encoder
from bert_core.config import SIZES
from bert_core.model_folder import load_model_folder


def test_a_fresh_encoder_has_the_vocabulary_of_the_model(tmp_path):
    encoder = write_encoder(tmp_path / "encoder")
    config, _, _ = load_model_folder(fresh_encoder(encoder, "tiny", tmp_path / "fresh"))
    assert config.vocab_size == load_model_folder(encoder)[0].vocab_size
    assert config.num_hidden_layers == SIZES["tiny"].num_hidden_layers


def test_a_tokenizer_alone_is_enough(tmp_path):
    encoder = write_encoder(tmp_path / "encoder")
    (tmp_path / "vocabulary").mkdir()
    (encoder / "tokenizer.json").rename(tmp_path / "vocabulary" / "tokenizer.json")
    config, _, tokenizer = load_model_folder(
        fresh_encoder(tmp_path / "vocabulary", "tiny", tmp_path / "fresh")
    )
    assert config.vocab_size == tokenizer.get_vocab_size()
