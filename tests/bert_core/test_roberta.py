"""RoBERTa and XLM-RoBERTa: what their folders answer here, beside transformers."""

import json
import shutil

import numpy as np
import pytest
import torch
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    CamembertForSequenceClassification,
    RobertaForCausalLM,
    RobertaForMaskedLM,
    RobertaForMultipleChoice,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaTokenizer,
    XLMRobertaForSequenceClassification,
    XLMRobertaForTokenClassification,
    XLMRobertaTokenizer,
)

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.masked_language_model import target_ids
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.special_tokens import (
    ROBERTA_TOKENS,
    num_embeddings,
    special_token_ids,
    special_tokens,
)
from bert_core.tasks.sequences import align, word_pieces
from bert_core.text.encoding import SentenceEncoder
from bert_core.tokenizer import load_tokenizer, save_tokenizer, tokenizer_hash
from bert_core.word_marks import begins_word, space_mark, word_marks

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Paris is the capital of France, isn't it?",
    "München liegt in Bayern.  東京 is in Japan \U0001f642",
]
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SHAPE |= {"intermediate_size": 64, "max_position_embeddings": 130}
SIZES = SHAPE | {"type_vocab_size": 1}
SPECIAL = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
FIRST = [ROBERTA_TOKENS.cls, ROBERTA_TOKENS.pad, ROBERTA_TOKENS.sep, ROBERTA_TOKENS.unk]


def byte_tokenizer():
    """RoBERTa's, of few merges."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*FIRST, ROBERTA_TOKENS.mask],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(TEXTS * 5, trainer)
    model = json.loads(learner.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    return RobertaTokenizer(vocab=model["vocab"], merges=merges)


def charsmap(character, replacement):
    """A map of SentencePiece in which one ASCII character becomes another: trie, then texts."""
    trie = np.zeros(256, dtype="<u4")
    code = ord(character)
    trie[0] = 1 << 10  # children are at 1 xor their first byte
    trie[1 ^ code] = 1 << 10 | 1 << 8 | code
    trie[code] = 0  # the first text
    return (1024).to_bytes(4, "little") + trie.tobytes() + replacement.encode() + b"\0"


def piece_tokenizer():
    """XLM-RoBERTa's, of few pieces; Q becomes q."""
    learner = Tokenizer(models.Unigram())
    learner.normalizer = normalizers.Precompiled(charsmap("Q", "q"))
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=FIRST, unk_token="<unk>", show_progress=False
    )
    learner.train_from_iterator(TEXTS * 5, trainer)
    vocabulary = [tuple(each) for each in json.loads(learner.to_str())["model"]["vocab"]]
    tokenizer = XLMRobertaTokenizer(vocab=[*vocabulary, ("<mask>", 0.0)])
    tokenizer.backend_tokenizer.normalizer = learner.normalizer
    return tokenizer


TOKENIZERS = {"bytes": byte_tokenizer, "pieces": piece_tokenizer}


@pytest.fixture(scope="module", params=TOKENIZERS)
def theirs(request, tmp_path_factory):
    """Their tokenizer, and a folder with it."""
    tokenizer = TOKENIZERS[request.param]()
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer.save_pretrained(folder)
    return tokenizer, folder


def scores_of(answer):
    """The probabilities of a classifier's labels, in their order."""
    by_label = {each.label: each.score for each in answer.scores}
    return [by_label[label] for label in sorted(by_label)]


@pytest.fixture
def folder_of(tmp_path):
    """Writes a model of theirs, its weights far from their initial values, with a tokenizer."""

    def write(kind, tokenizer, **more):
        torch.manual_seed(0)
        sizes = {"vocab_size": len(tokenizer)} | SIZES | SPECIAL | more
        model = kind(kind.config_class(**sizes)).eval()
        for weight in model.parameters():
            weight.data += 0.1 * torch.randn_like(weight)
        model.save_pretrained(tmp_path / "theirs")
        tokenizer.save_pretrained(tmp_path / "theirs")
        return model, tmp_path / "theirs"

    return write


def test_rows_have_their_tokens(theirs):
    tokenizer, folder = theirs
    ours = load_tokenizer(folder)
    assert special_tokens(ours) == ROBERTA_TOKENS and special_token_ids(ours).num_of_pair == 4
    for text in (*TEXTS, "A <mask> of Quebec", ""):
        assert ours.encode(text).ids == tokenizer(text).input_ids, text
        assert ours.encode(text, "of it").ids == tokenizer(text, "of it").input_ids


def test_a_file_alone_has_the_same_rows(theirs, tmp_path):
    ours = load_tokenizer(theirs[1])
    save_tokenizer(ours, tmp_path / "tokenizer.json")  # as token shards have it
    again = load_tokenizer(tmp_path)
    assert tokenizer_hash(again) == tokenizer_hash(ours)
    assert again.encode(TEXTS[0], "a pair").ids == ours.encode(TEXTS[0], "a pair").ids


@pytest.mark.parametrize("content", ["\u2581", " "])
def test_a_tokenizer_that_transformers_4_made_of_sentencepiece_is_read(tmp_path, content):
    piece_tokenizer().save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    state = json.loads(path.read_text())
    spaces = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": content}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    steps = [state["normalizer"], strip, spaces]
    state["normalizer"] = {"type": "Sequence", "normalizers": steps}
    path.write_text(json.dumps(state))
    ours, theirs = load_tokenizer(tmp_path), Tokenizer.from_file(str(path))
    for text in (*TEXTS, "Paris  is    the capital  "):
        assert ours.encode(text).ids == theirs.encode(text).ids, text
    text = "Paris   is  the"
    spans = align(ours, [text]).offsets.tolist()
    seen = {place for begin, end in spans for place in range(begin, end)}
    assert seen == {place for place, each in enumerate(text) if each != " "}


def test_tokens_have_the_characters_that_are_seen(theirs):
    _, folder = theirs
    ours = load_tokenizer(folder)
    aligned = align(ours, TEXTS)
    for text, first, length in zip(TEXTS, aligned.first_tokens, aligned.lengths, strict=True):
        spans = aligned.offsets[first : first + length].tolist()
        seen = {place for begin, end in spans for place in range(begin, end)}
        assert seen == {place for place, each in enumerate(text) if not each.isspace()}
        assert spans == sorted(spans)


def test_words_begin_at_spaces_and_signs(theirs):
    _, folder = theirs
    ours = load_tokenizer(folder)
    text = "Paris is (the) capital,  fox dogs"
    spans = align(ours, [text]).offsets.tolist()
    ids = np.array(ours.encode(text, add_special_tokens=False).ids)
    words = []
    for (begin, end), is_begun in zip(spans, begins_word(ids, word_marks(ours)), strict=True):
        words += [""] if is_begun else []
        words[-1] += text[begin:end]
    assert words == ["Paris", "is", "(", "the", ")", "capital", ",", "fox", "dogs"]


def test_runs_of_spaces_that_are_added_tokens_are_white_space():
    ours = byte_tokenizer().backend_tokenizer  # ModernBERT has added runs of 2 to 24
    ours.add_tokens([AddedToken("   ", normalized=True)])
    text = "the   lazy dog"
    ids = np.array(ours.encode(text, add_special_tokens=False).ids)
    assert ours.token_to_id("   ") in ids
    begins = begins_word(ids, word_marks(ours))
    assert begins.sum() == 3, "the spaces are of the word behind them"


def test_a_word_alone_is_cut_as_in_a_sentence(theirs):
    _, folder = theirs
    ours = load_tokenizer(folder)
    words = TEXTS[0].split()
    pieces = word_pieces(ours, words)
    alone = pieces.ids(np.arange(len(words)), pieces.sizes).tolist()
    assert alone == ours.encode(f" {TEXTS[0]}", add_special_tokens=False).ids
    encoder = SentenceEncoder(ours, "uint16")
    tokens, lengths = encoder.encode(TEXTS)
    whole = [ours.encode(f" {text}", add_special_tokens=False).ids for text in TEXTS]
    assert tokens.tolist() == [token for ids in whole for token in ids]
    assert lengths.tolist() == list(map(len, whole))


def test_what_decides_the_ids_is_in_the_hash(theirs):
    _, folder = theirs
    ours = load_tokenizer(folder)
    state = json.loads(ours.to_str())
    if state["model"]["type"] == "BPE":
        state["model"]["merges"].pop()
    else:
        state["model"]["vocab"][-2][1] -= 1.0
    assert tokenizer_hash(Tokenizer.from_str(json.dumps(state))) != tokenizer_hash(ours)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (RobertaForSequenceClassification, byte_tokenizer),
        (XLMRobertaForSequenceClassification, piece_tokenizer),
    ],
)
def test_texts_and_pairs_have_their_probabilities(folder_of, kind, make):
    tokenizer = make()
    model, folder = folder_of(kind, tokenizer, num_labels=3)
    predictor = load_predictor(folder)
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]
    for given, rows in (
        (TEXTS, tokenizer(TEXTS, padding=True, return_tensors="pt")),
        (
            [{"text": a, "text_pair": b} for a, b in pairs],
            tokenizer(*zip(*pairs, strict=True), padding=True, return_tensors="pt"),
        ),
    ):
        wanted = model(**rows).logits.softmax(1)
        for answer, row in zip(predictor.predict(given), wanted.tolist(), strict=True):
            assert scores_of(answer) == pytest.approx(row, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "make", "named"),
    [
        (RobertaForSequenceClassification, byte_tokenizer, "RobertaTokenizerFast"),
        (RobertaForSequenceClassification, byte_tokenizer, "PreTrainedTokenizerFast"),
        (RobertaForSequenceClassification, byte_tokenizer, None),
        (XLMRobertaForSequenceClassification, piece_tokenizer, "XLMRobertaTokenizer"),
        (CamembertForSequenceClassification, piece_tokenizer, "CamembertTokenizer"),
        (BertForSequenceClassification, piece_tokenizer, "XLMRobertaTokenizer"),
    ],
)
def test_both_texts_of_a_pair_are_of_the_first_segment(folder_of, kind, make, named):
    model, folder = folder_of(kind, make(), num_labels=3, type_vocab_size=2)
    path = folder / "tokenizer_config.json"
    said = json.loads(path.read_text()) | {"tokenizer_class": named}
    said.pop("model_input_names", None)
    path.write_text(json.dumps(said))
    rows = AutoTokenizer.from_pretrained(folder)(TEXTS[0], TEXTS[1], return_tensors="pt")
    wanted = model(**rows).logits.softmax(1)[0].tolist()
    (found,) = load_predictor(folder).predict([{"text": TEXTS[0], "text_pair": TEXTS[1]}])
    assert scores_of(found) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("segments", [1, 2])
def test_transformers_reads_the_segments_of_a_folder_written_here(theirs, tmp_path, segments):
    ours = load_tokenizer(theirs[1])
    config = ModelConfig(vocab_size=num_embeddings(ours), type_vocab_size=segments, **SHAPE)
    save_model_folder(tmp_path, Bert(Encoder(config), {}), ours)
    found = AutoTokenizer.from_pretrained(tmp_path)(TEXTS[0], TEXTS[1])
    wanted = ours.encode(TEXTS[0], TEXTS[1])
    assert found.input_ids == wanted.ids
    assert found.get("token_type_ids") == (wanted.type_ids if segments == 2 else None)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (RobertaForTokenClassification, byte_tokenizer),
        (XLMRobertaForTokenClassification, piece_tokenizer),
    ],
)
def test_words_have_their_tags(folder_of, kind, make):
    tokenizer = make()
    tags = ["O", "B-LOC", "B-PER"]
    model, folder = folder_of(kind, tokenizer, id2label=dict(enumerate(tags)))
    text = "Paris is the capital of France"
    rows = tokenizer(text, return_tensors="pt")
    wanted = model(**rows).logits[0].softmax(-1)
    of_word = rows.word_ids()
    first = [of_word.index(number) for number in sorted(set(of_word) - {None})]
    (found,) = load_predictor(folder).predict([text])
    expected = [
        (tags[int(wanted[place].argmax())], float(wanted[place].max()))
        for place in first[: len(text.split())]
    ]
    kept = [(tag.removeprefix("B-"), score) for tag, score in expected if tag != "O"]
    assert kept, "else nothing is compared"
    got = [(entity.type, entity.score) for entity in found.entities]
    assert [kind for kind, _ in got] == [kind for kind, _ in kept]
    assert [score for _, score in got] == pytest.approx([score for _, score in kept], abs=1e-5)
    for entity in found.entities:
        assert entity.text == text[entity.start : entity.end] and " " not in entity.text


def test_a_tagger_reads_the_spaces_of_a_text_as_the_pipeline_does(folder_of):
    tokenizer = byte_tokenizer()
    tags = ["O", "B-LOC", "B-PER"]
    model, folder = folder_of(
        RobertaForTokenClassification, tokenizer, id2label=dict(enumerate(tags))
    )
    text = "Paris (France) is it Bavaria! Japan?"
    rows = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    spans = rows.pop("offset_mapping")[0].tolist()
    scores, chosen = model(**rows).logits[0].softmax(-1).max(-1)
    wanted = [
        (begin + len(text[begin:end]) - len(text[begin:end].lstrip()), end, tags[tag], score)
        for (begin, end), tag, score in zip(spans, chosen.tolist(), scores.tolist(), strict=True)
        if end > begin and tags[tag] != "O"
    ]
    (found,) = load_predictor(folder).predict([text], aggregation="none")
    got = [(each.start, each.end, each.type) for each in found.entities]
    assert got == [each[:3] for each in wanted] and len(got) > 3
    scores = [each.score for each in found.entities]
    assert scores == pytest.approx([each[3] for each in wanted], abs=1e-5)


@pytest.mark.parametrize("gap", ["  ", "\t", "\n\n", "\u00a0"])
def test_a_tagger_reads_any_white_space_as_one_space(folder_of, gap):
    tags = {"id2label": dict(enumerate(["O", "B-LOC", "B-PER"]))}
    _, folder = folder_of(RobertaForTokenClassification, byte_tokenizer(), **tags)
    text = "Paris (France) is it Bavaria! Japan?"
    predictor = load_predictor(folder)
    wide, usual = predictor.predict([text.replace(" ", gap), text], aggregation="none")
    assert len(usual.entities) > 3
    assert [each.text for each in wide.entities] == [each.text for each in usual.entities]
    scores = [each.score for each in usual.entities]
    assert [each.score for each in wide.entities] == pytest.approx(scores, abs=1e-6)


@pytest.mark.parametrize("aggregation", ["none", "simple"])
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (RobertaForTokenClassification, byte_tokenizer),
        (XLMRobertaForTokenClassification, piece_tokenizer),
    ],
)
def test_a_space_alone_is_no_entity_and_ends_none(folder_of, kind, make, aggregation):
    tags = {"id2label": {0: "B-LOC", 1: "I-LOC", 2: "B-PER"}}
    _, folder = folder_of(kind, make(), **tags)
    (found,) = load_predictor(folder).predict(["x . . . y ! France"], aggregation=aggregation)
    assert len(found.entities) > 1
    assert all(entity.text == entity.text.strip() != "" for entity in found.entities)


def test_answers_have_their_scores(folder_of):
    tokenizer = byte_tokenizer()
    model, folder = folder_of(RobertaForQuestionAnswering, tokenizer)
    question, context = "What is the capital?", TEXTS[1]
    rows = tokenizer(question, context, return_tensors="pt")
    output = model(**rows)
    first = rows.input_ids[0].tolist().index(2) + 2  # behind two separators
    starts, ends = (
        logits[0, first:-1].tolist() for logits in (output.start_logits, output.end_logits)
    )
    best = max(
        starts[begin] + ends[end] for begin in range(len(starts)) for end in range(begin, len(ends))
    )
    predictor = load_predictor(folder)
    (found,) = predictor.predict([{"question": question, "context": context}])
    answer = found.answers[0]
    assert answer.score == pytest.approx(best, abs=1e-5)
    assert answer.text == context[answer.start : answer.end] == answer.text.strip()


def test_choices_have_their_probabilities(folder_of):
    tokenizer = byte_tokenizer()
    model, folder = folder_of(RobertaForMultipleChoice, tokenizer)
    choices = ["in France", "in Japan", "of it"]
    rows = tokenizer([TEXTS[1]] * 3, choices, padding=True, return_tensors="pt")
    output = model(**{name: each.unsqueeze(0) for name, each in rows.items()})
    (found,) = load_predictor(folder).predict([{"context": TEXTS[1], "choices": choices}])
    assert found.scores == pytest.approx(output.logits[0].softmax(0).tolist(), abs=1e-5)


def test_missing_words_are_theirs_and_the_folder_written_here_says_the_same(folder_of, tmp_path):
    tokenizer = byte_tokenizer()
    model, folder = folder_of(RobertaForMaskedLM, tokenizer)
    predictor = load_predictor(folder)
    text = "Paris is the [MASK] of France"
    rows = tokenizer(text.replace("[MASK]", "<mask>"), return_tensors="pt")
    place = rows.input_ids[0].tolist().index(tokenizer.mask_token_id)
    wanted = model(**rows).logits[0, place].softmax(-1).topk(5)
    for given in (text, text.replace("[MASK]", "<mask>")):
        (found,) = predictor.fill_mask([given])
        candidates = found.masks[0].candidates
        assert [each.id for each in candidates] == wanted.indices.tolist()
        scores = [each.score for each in candidates]
        assert scores == pytest.approx(wanted.values.tolist(), abs=1e-5)
        assert (found.masks[0].start, found.masks[0].end) == (13, 19)

    # Written as BERT: the same answers from transformers' own classes.
    _, ours, read = load_model_folder(folder)
    save_model_folder(tmp_path / "ours", ours, read)
    again, said = AutoModelForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(again).__name__ == "BertForMaskedLM" and not any(said.values())
    rows = AutoTokenizer.from_pretrained(tmp_path / "ours")(
        text.replace("[MASK]", "<mask>"), return_tensors="pt"
    )
    assert set(rows) == {"input_ids", "attention_mask"}
    back = again.eval()(**rows).logits[0, place].softmax(-1).topk(5)
    torch.testing.assert_close(back.values, wanted.values, rtol=0, atol=1e-5)
    assert not (tmp_path / "ours" / "vocab.txt").exists()


def test_a_target_is_the_word_behind_a_space_not_the_rest_of_another(theirs):
    _, folder = theirs
    ours = load_tokenizer(folder)
    mark = space_mark(ours)
    word = next(
        token.removeprefix(mark)
        for token in sorted(ours.get_vocab())
        if token.startswith(mark) and token[1:].isalpha() and token[1:].isascii()
        if token.removeprefix(mark) in ours.get_vocab()
    )
    assert target_ids(ours, [word]) == (ours.token_to_id(f"{mark}{word}"),)


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "camembert"])
def test_without_a_class_the_tokens_are_those_of_the_models_type(theirs, tmp_path, model_type):
    _, folder = theirs
    shutil.copy(folder / "tokenizer.json", tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    ours = load_tokenizer(tmp_path)
    assert "[CLS]" not in ours.get_vocab() and special_tokens(ours) == ROBERTA_TOKENS


@pytest.mark.parametrize("of_file", [False, True])
@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "camembert"])
def test_texts_begin_behind_a_space_where_they_do_for_transformers(tmp_path, model_type, of_file):
    tokenizer = TOKENIZERS["bytes" if model_type == "roberta" else "pieces"]()
    steps = tokenizer.backend_tokenizer.pre_tokenizer
    if model_type == "roberta":
        steps.add_prefix_space = of_file
    else:
        steps[1].prepend_scheme = "always" if of_file else "never"
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    of_type = AutoTokenizer.from_pretrained(tmp_path).__class__.__name__
    found = set()
    for named in (None, of_type, "PreTrainedTokenizerFast"):
        for added in (None, False, True):
            said = {"tokenizer_class": named, "add_prefix_space": added}
            said = {name: value for name, value in said.items() if value is not None}
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
            theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
            for text in (*TEXTS, " Paris", "A <mask> of", "a<mask>b"):
                assert ours.encode(text).ids == theirs(text).input_ids, (said, text)
            found.add(tuple(ours.encode(TEXTS[0]).ids))
    assert len(found) == 2


def test_a_decoder_has_their_states_and_no_task(folder_of):
    tokenizer = byte_tokenizer()
    model, folder = folder_of(RobertaForCausalLM, tokenizer, is_decoder=True)
    predictor = load_predictor(folder)
    assert predictor.fine_tuned_for is None
    states = model.roberta(**tokenizer(TEXTS[0], return_tensors="pt")).last_hidden_state[0]
    (found,) = predictor.embed(TEXTS[:1], pooling="mean")
    np.testing.assert_allclose(found, states.mean(0).detach(), atol=1e-5)


def test_losses_and_gradients_are_theirs(folder_of):
    tokenizer = byte_tokenizer()
    model, folder = folder_of(RobertaForMaskedLM, tokenizer)
    _, ours, _ = load_model_folder(folder)
    ids = torch.tensor([tokenizer(TEXTS[0]).input_ids])
    labels = ids.clone()
    labels[:, ::2] = -100
    output = model(ids, labels=labels)
    output.loss.backward()
    from bert_core.model.layout import Packed

    length = ids.shape[1]
    states = ours.eval().encoder(
        ids[0], torch.zeros_like(ids[0]), torch.arange(length), Packed.from_lengths([length])
    )
    known = (labels[0] >= 0).nonzero().squeeze(1)
    loss, _ = ours.heads["masked_token"].loss(
        states[known], ours.encoder.word_embeddings, labels[0][known], len(known)
    )
    torch.testing.assert_close(loss, output.loss, rtol=0, atol=1e-5)
    loss.backward()
    for mine, name in (
        (ours.encoder.embeddings.position.weight, "roberta.embeddings.position_embeddings.weight"),
        (ours.encoder.embeddings.word.weight, "roberta.embeddings.word_embeddings.weight"),
        (ours.heads["masked_token"].transform.weight, "lm_head.dense.weight"),
    ):
        wanted = dict(model.named_parameters())[name].grad
        wanted = wanted[2:] if "position" in name else wanted
        scale = wanted.abs().max()
        torch.testing.assert_close(mine.grad / scale, wanted / scale, rtol=0, atol=1e-5)


def test_a_pooler_beside_a_classifier_is_not_asked(folder_of):
    """Older folders have both: the classifier has one inside."""
    from safetensors.torch import load_file, save_file

    tokenizer = byte_tokenizer()
    model, folder = folder_of(RobertaForSequenceClassification, tokenizer, num_labels=2)
    weights = load_file(folder / "model.safetensors")
    weights |= {
        "roberta.pooler.dense.weight": torch.randn(32, 32),
        "roberta.pooler.dense.bias": torch.randn(32),
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (found,) = load_predictor(folder).predict([TEXTS[0]])
    wanted = model(**tokenizer(TEXTS[0], return_tensors="pt")).logits[0].softmax(0).tolist()
    assert scores_of(found) == pytest.approx(wanted, abs=1e-5)


def test_a_fine_tuned_folder_of_ours_is_one_of_theirs(folder_of, tmp_path):
    from bert_core.tasks.catalog import TASKS, task_config
    from bert_core.tasks.task import add_task_head

    tokenizer = byte_tokenizer()
    _, folder = folder_of(RobertaForMaskedLM, tokenizer)
    _, ours, read = load_model_folder(folder)
    add_task_head(ours, TASKS["sst2"])
    extra = task_config("sst2", TASKS["sst2"])
    save_model_folder(tmp_path / "ours", ours, read, extra_config=extra)
    kind = AutoModelForSequenceClassification
    model, said = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(said.values()), said
    rows = AutoTokenizer.from_pretrained(tmp_path / "ours")(TEXTS[0], return_tensors="pt")
    wanted = model.eval()(**rows).logits[0].softmax(0).tolist()
    (found,) = load_predictor(tmp_path / "ours").predict([TEXTS[0]])
    assert scores_of(found) == pytest.approx(wanted, abs=1e-5)


def test_a_folder_without_a_tokenizer_json_is_refused_with_the_command(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(UserError, match=r"AutoTokenizer\.from_pretrained"):
        load_tokenizer(tmp_path)


def test_a_decoder_writes_words_as_they_were(theirs):
    _, folder = theirs
    ours = load_tokenizer(folder)
    assert isinstance(ours.decoder, decoders.Decoder)
    assert ours.decode(ours.encode(TEXTS[1]).ids).strip() == TEXTS[1]
