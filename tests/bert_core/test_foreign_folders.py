"""Folders of other programs load with equal outputs, or they are refused, as damaged ones are."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertTokenizer

from bert_core.errors import UserError
from bert_core.hugging_face.families import FAMILIES
from bert_core.masked_language_model import named_weights
from bert_core.model.layout import Packed
from bert_core.model_folder import (
    ModelFolderError,
    load_model_folder,
    save_model_folder,
    weight_files,
)
from bert_core.predictor import load_predictor
from bert_core.special_tokens import SPECIAL_TOKENS, num_embeddings
from bert_core.tasks.outputs import compute_all_outputs
from bert_core.tasks.squad import Question
from bert_core.tasks.task import head_answers
from bert_core.text.masking import Vocabulary
from bert_core.tokenizer import load_tokenizer

WORDS = [*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz"]
MODEL, MASKED, PRETRAINED, CLASSIFIER, TAGGER, READER, CHOOSER, NEXT, DECODER = (
    "BertModel",
    "BertForMaskedLM",
    "BertForPreTraining",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertLMHeadModel",
)
WORD_TABLE = "bert.embeddings.word_embeddings.weight"
PROJECTION, BIAS = "cls.predictions.decoder.weight", "cls.predictions.bias"


def write_folder(folder, architecture, change=None, *, said=None, **config):
    """Saves a random model; `change` is done to its weights, `said` to its config.json."""
    torch.manual_seed(0)
    small = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32}
    model = getattr(transformers, architecture)(BertConfig(**small | config))
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    model.save_pretrained(folder)
    BertTokenizer({word: number for number, word in enumerate(WORDS)}).save_pretrained(folder)
    if change is not None:
        weights = change(load_file(folder / "model.safetensors"))
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if said is not None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | said))
    return folder


def renamed(rename):
    return lambda weights: {rename(name): tensor for name, tensor in weights.items()}


def added(**tensors):
    return lambda weights: (
        weights | {name.replace("__", "."): each for name, each in tensors.items()}
    )


def without(*names):
    return lambda weights: {name: each for name, each in weights.items() if name not in names}


def moved(old, new):
    return renamed(lambda name: new if name == old else name)


def in_dtype(dtype):
    return lambda weights: {name: tensor.to(dtype) for name, tensor in weights.items()}


def older_names(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("m.bias", "m.beta")


FORMS = {
    "as it is": (MODEL, None, {}),
    "with prefix": (MODEL, renamed("bert.{}".format), {}),
    "without prefix": (CLASSIFIER, renamed(lambda name: name.removeprefix("bert.")), {}),
    "old names": (CLASSIFIER, renamed(older_names), {}),
    "position ids": (MODEL, added(embeddings__position_ids=torch.arange(32)[None]), {}),
    "no pooler": (MASKED, None, {}),
    "float16": (CLASSIFIER, in_dtype(torch.float16), {}),
    "bfloat16": (MASKED, in_dtype(torch.bfloat16), {}),
    "float64": (CLASSIFIER, in_dtype(torch.float64), {}),
    "no padding token": (CLASSIFIER, None, {"pad_token_id": None}),
    "large epsilon": (MASKED, None, {"layer_norm_eps": 0.1}),
    "one segment": (CLASSIFIER, None, {"type_vocab_size": 1}),
    "three segments": (MODEL, None, {"type_vocab_size": 3}),
    "one label": (CLASSIFIER, None, {"num_labels": 1}),
    "head's dropout": (CLASSIFIER, None, {"classifier_dropout": 0.5}),
    "decoder": (DECODER, None, {"is_decoder": True}),
    "left to right": (MODEL, None, {"is_decoder": True}),
    "tagger": (TAGGER, None, {"num_labels": 5}),
    "reader": (READER, None, {}),
    "chooser": (CHOOSER, None, {}),
    "next sentence": (NEXT, None, {}),
    "pre-trained": (PRETRAINED, None, {}),
    "tied": (MASKED, None, {}),
    "projection alone": (MASKED, moved(WORD_TABLE, PROJECTION), {}),
    "projection's bias alone": (MASKED, moved(BIAS, "cls.predictions.decoder.bias"), {}),
    "two biases": (MASKED, added(cls__predictions__decoder__bias=torch.ones(len(WORDS))), {}),
    "untied": (MASKED, None, {"tie_word_embeddings": False}),
    "untied pre-trained": (PRETRAINED, None, {"tie_word_embeddings": False}),
    "untied decoder": (DECODER, None, {"tie_word_embeddings": False, "is_decoder": True}),
    "untied without saying so": (
        MASKED,
        added(cls__predictions__decoder__weight=torch.ones(len(WORDS), 16)),
        {},
    ),
    "untied, without a tie": (CLASSIFIER, None, {"tie_word_embeddings": False}),
    "untied encoder": (MODEL, None, {"tie_word_embeddings": False}),
    "other heads": (
        TAGGER,
        added(crf__transitions=torch.ones(2, 2), cls__predictions__bias=torch.ones(len(WORDS))),
        {},
    ),
}


def outputs_of(model, inputs):
    """All that a model of `transformers` says of rows, by the names of our heads."""
    with torch.no_grad():
        found = model(**inputs)
    said = {}
    if "logits" in found:
        said["logits"] = found.logits
    for name in ("last_hidden_state", "pooler_output", "prediction_logits"):
        if found.get(name) is not None:
            said[name] = found[name]
    if "seq_relationship_logits" in found:
        said["seq_relationship_logits"] = found.seq_relationship_logits
    if "start_logits" in found:
        said["logits"] = torch.stack([found.start_logits, found.end_logits], dim=-1)
    return said


def ours_of(model, architecture, ids, types):
    """The same by ours, of one row."""
    layout = Packed.from_lengths([len(ids)])
    with torch.no_grad():
        states = model.encoder(ids, types, torch.arange(len(ids)), layout)
    table, heads = model.encoder.word_embeddings, model.heads
    pooled = heads["pooler"](states[:1]) if "pooler" in heads else None
    match architecture:
        case "BertModel":
            said = {"last_hidden_state": states}
            return said if pooled is None else said | {"pooler_output": pooled}
        case "BertForMaskedLM" | "BertLMHeadModel":
            name = "next_token" if model.config.is_decoder else "masked_token"
            return {"logits": heads[name](states, table)}
        case "BertForPreTraining":
            return {
                "prediction_logits": heads["masked_token"](states, table),
                "seq_relationship_logits": heads["next_sentence"](pooled),
            }
        case "BertForNextSentencePrediction":
            return {"logits": heads["next_sentence"](pooled)}
        case "BertForTokenClassification":
            return {"logits": heads["classifier"](states)}
        case "BertForQuestionAnswering":
            return {"logits": heads["span"](states)}
        case _:
            return {"logits": head_answers(model, [states[:1]], torch.ones(1))}


def check_equal(folder, architecture):
    cls = getattr(transformers, architecture)
    theirs, info = cls.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"]
    _, ours, _ = load_model_folder(folder)
    ours.eval()
    ids = torch.tensor([2, 7, 9, 4, 11, 3, 20, 21, 3])
    types = torch.tensor([0] * 6 + [1] * 3)
    if theirs.config.type_vocab_size == 1:
        types = torch.zeros_like(types)
    inputs = {"input_ids": ids[None], "token_type_ids": types[None]}
    if architecture == CHOOSER:
        inputs = {name: each[None] for name, each in inputs.items()}
    expected = outputs_of(theirs.eval(), inputs)
    found = ours_of(ours, architecture, ids, types)
    assert found.keys() == expected.keys()
    for name, each in found.items():
        torch.testing.assert_close(
            each.flatten(), expected[name].flatten(), atol=1e-5, rtol=0, msg=name
        )
    return ours


@pytest.mark.parametrize("name", FORMS)
def test_outputs_are_those_of_transformers(tmp_path, name):
    architecture, change, config = FORMS[name]
    check_equal(write_folder(tmp_path, architecture, change, **config), architecture)


def shard(folder, *, index=None):
    """Spreads the weights over two files and an index, whose content may be another."""
    whole = folder / "model.safetensors"
    weights = load_file(whole)
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2]}
    parts["model-00002-of-00002.safetensors"] = names[1::2]
    for file, some in parts.items():
        save_file({name: weights[name] for name in some}, folder / file, metadata={"format": "pt"})
    whole.unlink()
    files = {name: file for file, some in parts.items() for name in some}
    content = {"metadata": {}, "weight_map": files | (index or {})}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("architecture", [CLASSIFIER, PRETRAINED])
def test_weights_may_lie_in_shards(tmp_path, architecture):
    folder = shard(write_folder(tmp_path, architecture))
    check_equal(folder, architecture)
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert weight_files(folder) == [folder / name for name in names]


def test_one_file_counts_before_shards(tmp_path):
    folder = write_folder(tmp_path, CLASSIFIER)
    assert weight_files(folder) == [folder / "model.safetensors"]
    weights = (folder / "model.safetensors").read_bytes()
    shard(folder)
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"")
    (folder / "model.safetensors").write_bytes(weights)
    check_equal(folder, CLASSIFIER)


@pytest.mark.parametrize(
    "index",
    [
        {BIAS: "model-00003-of-00003.safetensors"},
        {BIAS: "../model-00001-of-00002.safetensors"},
        {BIAS: 5},
        {"cls.predictions.transform.dense.bias": "model-00001-of-00002.safetensors", BIAS: None},
        {"no.such.weight": "model-00001-of-00002.safetensors"},
    ],
)
def test_an_index_that_names_what_is_not_there_is_refused(tmp_path, index):
    folder = shard(write_folder(tmp_path, MASKED), index=index)
    with pytest.raises(ModelFolderError):
        load_model_folder(folder)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', "{"])
def test_a_damaged_index_is_refused(tmp_path, content):
    folder = shard(write_folder(tmp_path, MASKED))
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelFolderError, match="index"):
        load_model_folder(folder)


def test_a_model_with_a_projection_of_its_own_is_saved_with_it(tmp_path):
    folder = write_folder(tmp_path / "theirs", PRETRAINED, tie_word_embeddings=False)
    _, model, tokenizer = load_model_folder(folder)
    save_model_folder(tmp_path / "ours", model, tokenizer, card="")
    ours = check_equal(tmp_path / "ours", PRETRAINED)
    assert torch.equal(ours.heads["masked_token"].decoder.weight, load_file_of(folder)[PROJECTION])


def load_file_of(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(
    "said", [{"model_input_names": ["input_ids"]}, {"tokenizer_class": "DistilBertTokenizer"}]
)
def test_a_tokenizer_without_segments_has_all_tokens_of_the_first(tmp_path, said):
    folder = write_folder(tmp_path, CLASSIFIER)
    expected = check_equal(folder, CLASSIFIER)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    _, ours, tokenizer = load_model_folder(folder)
    assert "token_type_ids" not in transformers.AutoTokenizer.from_pretrained(folder)("a", "b")
    ids = torch.tensor(tokenizer.encode("a b", "c d").ids)
    pair = torch.tensor(tokenizer.encode("a b", "c d").type_ids)
    found = ours_of(ours.eval(), CLASSIFIER, ids, pair)["logits"]
    assert torch.equal(found, ours_of(expected, CLASSIFIER, ids, torch.zeros_like(pair))["logits"])


@pytest.mark.parametrize("segment", [0, 1])
def test_a_tokenizer_of_any_kind_has_the_segments_of_its_rows(tmp_path, segment):
    folder = write_folder(tmp_path / "theirs", CLASSIFIER)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair=f"[CLS]:0 $A:0 [SEP]:0 $B:{segment} [SEP]:{segment}",
        special_tokens=[(each, tokenizer.token_to_id(each)) for each in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    path = folder / "tokenizer_config.json"
    said = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(said | {"model_input_names": ["input_ids", "token_type_ids"]}))
    _, ours, tokenizer = load_model_folder(folder)
    save_model_folder(
        tmp_path / "again", ours, tokenizer, extra_config={"architectures": [CLASSIFIER]}
    )
    of_pair = tokenizer.encode("a b", "c d")
    ids, types = torch.tensor(of_pair.ids), torch.tensor(of_pair.type_ids)
    found = ours_of(ours.eval(), CLASSIFIER, ids, types)["logits"]
    for saved in (folder, tmp_path / "again"):
        rows = transformers.AutoTokenizer.from_pretrained(saved)("a b", "c d", return_tensors="pt")
        theirs = transformers.BertForSequenceClassification.from_pretrained(saved).eval()
        expected = outputs_of(theirs, rows)["logits"]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_with_one_segment_a_question_and_its_context_are_of_that_one(tmp_path):
    predictor = load_predictor(write_folder(tmp_path, READER, type_vocab_size=1))
    question = Question("1", "a b", "c d e f", None)
    rows = predictor.task.encode([question], predictor.tokenizer)
    found, _ = compute_all_outputs(predictor.task, predictor.model, rows, device=predictor.device)
    theirs = transformers.BertForQuestionAnswering.from_pretrained(tmp_path).eval()
    ids = torch.from_numpy(rows.input_ids)[None]
    expected = outputs_of(theirs, {"input_ids": ids})["logits"][0, rows.places]
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=0)
    assert predictor.predict_examples([question])[0][0]["text"] is not None


def test_a_saved_model_of_one_segment_reads_pairs_elsewhere_too(tmp_path):
    _, model, tokenizer = load_model_folder(
        write_folder(tmp_path / "theirs", CLASSIFIER, type_vocab_size=1)
    )
    ids = torch.tensor(tokenizer.encode("a b", "c d").ids)
    expected = ours_of(model.eval(), CLASSIFIER, ids, (ids > 8).long())["logits"]
    config = {"architectures": [CLASSIFIER]}
    save_model_folder(tmp_path / "ours", model, tokenizer, card="", extra_config=config)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        found = theirs.eval()(**inputs("a b", "c d", return_tensors="pt")).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


REFUSED = {
    "other activation": ({"said": {"hidden_act": "gelu_new"}}, "hidden_act 'gelu_new'"),
    "relative positions": (
        {"said": {"position_embedding_type": "relative_key"}},
        "position_embedding_type 'relative_key'",
    ),
    "cross attention": ({"said": {"add_cross_attention": True}}, "add_cross_attention"),
    "left to right": ({"said": {"is_causal": True}}, "is_causal True"),
    "both ways": ({"said": {"is_causal": False, "is_decoder": True}}, "is_causal False"),
    "quantized": ({"said": {"quantization_config": {"bits": 4}}}, "quantization_config"),
    "other model": ({"said": {"model_type": "deberta"}}, "model_type 'deberta'"),
    "no segments": ({"said": {"type_vocab_size": 0}}, "type_vocab_size"),
    "padding that is no word": ({"said": {"pad_token_id": 31}}, "31 is not below vocab_size 31"),
    "other size": ({"said": {"intermediate_size": 64}}, "intermediate"),
    "fewer layers": ({"said": {"num_hidden_layers": 1}}, "of 2 layers, .* are 1"),
    "more layers": ({"said": {"num_hidden_layers": 3}}, "layer.2"),
    "no projection": ({"said": {"tie_word_embeddings": False}}, "decoder.weight is missing"),
    "no embeddings": ({"change": without(WORD_TABLE)}, "word"),
    "no key": ({"change": without("bert.encoder.layer.1.attention.self.key.weight")}, "layer.1"),
    "half a head": ({"change": without("cls.predictions.transform.dense.bias")}, "transform.bias"),
    "another part": ({"change": added(bert__encoder__layer__0__gate=torch.ones(2))}, "gate"),
    "a weight under two names": (
        {"change": added(bert__embeddings__LayerNorm__gamma=torch.zeros(16))},
        "under two names",
    ),
    "ties that are no answer": ({"said": {"tie_word_embeddings": "no"}}, "tie_word_embeddings"),
    "settings of another type": ({"said": {"sentence_transformers": 5}}, "sentence_transformers"),
    "whole numbers": ({"change": in_dtype(torch.int8)}, "I8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_computed_otherwise_is_refused_by_name(tmp_path, name):
    changes, said = REFUSED[name]
    with pytest.raises(ModelFolderError, match=said) as caught:
        load_model_folder(write_folder(tmp_path, MASKED, **changes))
    assert "\n" not in str(caught.value)


OTHER_TYPES = (None, True, -1, 3, 1.5, 10**400, "3", [], [3], {}, {"full_attention": "x"})


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_setting_of_another_type_is_refused_in_a_line(tmp_path, model_type):
    """There are no weights: what is not refused for its type ends with these."""
    values = transformers.AutoConfig.for_model(model_type).to_dict()
    values |= dict.fromkeys(("rope_scaling", "global_rope_theta", "global_attn_every_n_layers"))
    for name in values:
        for other in OTHER_TYPES:
            (tmp_path / "config.json").write_text(json.dumps(values | {name: other}))
            with pytest.raises(UserError) as caught:
                load_model_folder(tmp_path)
            assert "\n" not in str(caught.value)


def test_a_tokenizer_with_more_words_than_the_model_is_refused(tmp_path):
    folder = write_folder(tmp_path, MASKED)
    (folder / "tokenizer.json").unlink()
    # The first of two equal lines leaves a gap: fewer words, and the same highest id.
    (folder / "vocab.txt").write_text("\n".join([*WORDS, "a"]))
    with pytest.raises(ModelFolderError, match="32 words, the model 31"):
        load_model_folder(folder)


def test_empty_lines_after_the_vocabulary_are_no_words(tmp_path):
    folder = write_folder(tmp_path, MASKED)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n\n\n")
    _, _, tokenizer = load_model_folder(folder)
    theirs = BertTokenizer.from_pretrained(folder)
    assert tokenizer.encode("a b? z").ids == theirs("a b? z").input_ids
    theirs.save_pretrained(folder)
    assert "" in json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    for each in (tokenizer, load_tokenizer(folder)):
        # Random words for masked ones, and new pieces behind the last, need no other row.
        assert Vocabulary.from_tokenizer(each).size == num_embeddings(each) == len(WORDS)
        assert "" not in each.get_vocab()


def test_ids_without_a_word_take_none_from_other_words(tmp_path):
    folder = write_folder(tmp_path / "theirs", MASKED, vocab_size=len(WORDS) + 3)
    (folder / "tokenizer.json").unlink()
    lines = [*WORDS[:8], WORDS[7], *WORDS[8:]]  # the first of two equal lines leaves a gap
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n")
    _, model, tokenizer = load_model_folder(folder)
    vocabulary = tokenizer.get_vocab()
    assert sorted(vocabulary.values()) == [*range(7), *range(8, len(lines))]
    predictor = load_predictor(folder)
    (found,) = predictor.fill_mask(["a [MASK] c"], top_k=100)
    assert {each.token: each.id for each in found.masks[0].candidates} == vocabulary
    weights = np.arange(1.0, 1.0 + model.config.vocab_size, dtype=np.float32)
    (named,) = named_weights(weights[None], tokenizer)
    assert named == {word: weights[number] for word, number in vocabulary.items()}
    save_model_folder(tmp_path / "ours", model, tokenizer)
    assert load_tokenizer(tmp_path / "ours").get_vocab() == vocabulary
    (tmp_path / "ours" / "tokenizer.json").unlink()
    assert load_tokenizer(tmp_path / "ours").get_vocab() == vocabulary
    theirs = BertTokenizer.from_pretrained(tmp_path / "ours")
    assert theirs("a b? z").input_ids == tokenizer.encode("a b? z").ids


def test_a_pickle_is_refused_with_a_remedy_that_works(tmp_path):
    folder = write_folder(tmp_path, MASKED)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFolderError, match="BertForMaskedLM.from_pretrained") as caught:
        load_model_folder(folder)
    exec(caught.value.remedy.rpartition("transformers: ")[2], vars(transformers))
    (folder / "pytorch_model.bin").unlink()
    check_equal(folder, MASKED)


@pytest.mark.parametrize(
    "named",
    [
        "Bert'); __import__('os').system('id') #",
        "BertModel; rm -rf ~",
        "$(id)",
        "Bert" * 10**5,
        "BertModel\n\x1b[2J",
    ],
)
def test_a_remedy_has_no_code_of_the_folder_in_it(tmp_path, named):
    folder = write_folder(tmp_path, MASKED, said={"architectures": [named]})
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFolderError, match=r"AutoModel\.from_pretrained") as caught:
        load_model_folder(folder)
    assert named[:60] not in str(caught.value)


def test_a_classifier_that_lacks_what_it_needs_is_refused(tmp_path):
    for missing in ("classifier.weight", "bert.pooler.dense.weight", "classifier.bias"):
        with pytest.raises(ModelFolderError):
            load_predictor(write_folder(tmp_path, CLASSIFIER, without(missing)))


TRAINING = Path(__file__).parent / "training"
NUM_CHANGED = {"tokenizer": 100, "model": 100, "shards": 80, "checkpoint": 80}


@pytest.mark.slow
def test_folders_changed_at_random_are_opened_or_refused(
    tmp_path, repository, subprocess_environment
):
    paths = [str(repository), str(TRAINING), str(TRAINING.parent / "text")]
    script = [sys.executable, TRAINING / "hostile_folders.py", tmp_path, "1"]
    done = subprocess.run(
        [*script, *(f"{kind}={count}" for kind, count in NUM_CHANGED.items())],
        env=subprocess_environment | {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    for (kind, count), line in zip(NUM_CHANGED.items(), lines, strict=True):
        found = json.loads(line)[kind]
        assert sum(found.values()) == count
        assert min(found.values()) > 0  # else no change mattered, or everything was refused
