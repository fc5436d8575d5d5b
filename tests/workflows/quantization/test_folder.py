import pytest
from finetuning_runs import write_encoder

from bert_core.errors import UserError
from bert_core.example import ModelExample, check_example, read_example
from bert_core.example_answers import answer_of, answered_by
from bert_core.model_folder import ModelFolderError, load_model_folder, save_model_folder
from bert_core.quantization import read_precision
from bert_core.training_statistics import TrainingStatistics, read_training_statistics
from workflows.quantization.folder import with_loss, write_quantized
from workflows.quantization.table import QuantizationLoss

LOSS = QuantizationLoss("3 texts, /data/somebody/t.txt", ("", "cosine"), [("mean", "0.99")], ["X."])


def test_the_card_keeps_what_it_said():
    card = with_loss("# A\n\nText.\n\n## How to load\n\nSo.\n", LOSS)
    assert card.startswith("# A\n\nText.\n\n## In int8\n") and card.endswith("\nSo.\n")
    assert "| mean | 0.99 |" in card and "somebody" not in card
    assert with_loss("# A\n", LOSS).startswith("# A\n\n## In int8\n")


def test_the_copy_is_whole_and_the_source_as_it_was(tmp_path):
    source = write_encoder(tmp_path / "encoder")
    (source / ".cache").mkdir()
    (source / "extra").mkdir()
    (source / "extra" / "file").write_text("kept")
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    for path in before:
        path.chmod(0o444)
    write_quantized(source, tmp_path / "new" / "int8", LOSS)
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before
    copy = tmp_path / "new" / "int8"
    assert read_precision(copy) == "int8" and read_precision(source) == "float32"
    assert (copy / "extra" / "file").read_text() == "kept" and not (copy / ".cache").exists()
    load_model_folder(copy)
    (copy / "README.md").unlink()
    with pytest.raises(ModelFolderError, match="damaged"):
        load_model_folder(copy)


def test_the_example_is_answered_anew_and_the_statistics_stay(tmp_path):
    source = write_encoder(tmp_path / "encoder")
    asked = ModelExample(
        kind="features", inputs="ba keli monu", answer={}, precision="float32", tolerance=1e-3
    )
    first = answered_by(source, asked)
    statistics = TrainingStatistics(num_examples=3, unknown_token_share=0.1)
    _, model, tokenizer = load_model_folder(source)
    save_model_folder(source, model, tokenizer, "", example=first, statistics=statistics)
    copy = tmp_path / "int8"
    write_quantized(source, copy, LOSS)
    load_model_folder(copy)
    second = read_example(copy)
    assert (second.inputs, second.precision) == (first.inputs, "int8")
    assert second.tolerance > first.tolerance and second.answer != first.answer
    assert check_example(second, answer_of(copy, second), "int8") is None
    assert check_example(second, first.answer, "int8") is None, "int8 is not far off"
    assert read_training_statistics(copy) == statistics
    assert read_example(source) == first


def test_what_is_there_is_not_written_over(tmp_path):
    source = write_encoder(tmp_path / "encoder")
    with pytest.raises(UserError, match="there already"):
        write_quantized(source, source, LOSS)
    load_model_folder(source)


def test_a_copy_that_fails_is_no_folder(tmp_path):
    source = write_encoder(tmp_path / "encoder")
    (source / "config.json").write_text("{")
    with pytest.raises(UserError, match="damaged JSON"):
        write_quantized(source, tmp_path / "int8", LOSS)
    assert [path.name for path in tmp_path.iterdir()] == ["encoder"]
