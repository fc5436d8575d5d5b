"""Gemma's tokenizer, as multilingual ModernBERTs have it: the answers of `transformers`."""

import json

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
    processors,
    trainers,
)
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from bert_core.features.units import cut_texts
from bert_core.masked_language_model import target_ids
from bert_core.model_folder import load_model_folder, save_model_folder
from bert_core.predictor import load_predictor
from bert_core.special_tokens import GEMMA_TOKENS, special_token_ids, special_tokens
from bert_core.tasks.sequences import align, word_pieces
from bert_core.tokenizer import load_tokenizer
from bert_core.word_marks import begins_behind_space, begins_word, space_mark, word_marks

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Paris is the capital of France, isn't it?",
    "München liegt in Bayern.  東京 is in Japan \U0001f642",
    "  <s>not</s> a tag\nbut   spaces",
    "",
]
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 2, "local_attention": 16, "max_position_embeddings": 130}


@pytest.fixture(scope="module")
def theirs():
    """A BPE over text whose spaces are written as ▁; what it lacks is written in bytes."""
    learner = Tokenizer(models.BPE(unk_token="<unk>"))
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(
        vocab_size=460,
        special_tokens=["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<s>", "</s>"]
        + [f"<0x{byte:02X}>" for byte in range(256)],
        show_progress=False,
    )
    learner.train_from_iterator([f" {text}" for text in TEXTS[:2]] * 5, trainer)
    model = json.loads(learner.to_str())["model"]
    tokenizer = Tokenizer(
        models.BPE(
            model["vocab"],
            [tuple(pair) for pair in model["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"])
    tokenizer.add_tokens([AddedToken(each, normalized=False) for each in ("<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>",
        pair="<bos> $A <eos> $B <eos>",
        special_tokens=[("<bos>", 2), ("<eos>", 1)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **{"bos_token": "<bos>", "eos_token": "<eos>", "cls_token": "<bos>", "sep_token": "<eos>"},
        **{"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"},
    )


@pytest.fixture(scope="module")
def ours(theirs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma")
    theirs.save_pretrained(folder)
    return load_tokenizer(folder)


@pytest.fixture
def folder_of(theirs, tmp_path):
    """Writes a model of theirs, its weights far from their initial values, with the tokenizer."""

    def write(kind, **more):
        torch.manual_seed(0)
        special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
        special |= {"cls_token_id": 2, "sep_token_id": 1}
        config = ModernBertConfig(vocab_size=len(theirs), **SIZES, **special, **more)
        model = kind(config).eval()
        for weight in model.parameters():
            weight.data += 0.1 * torch.randn_like(weight)
        model.save_pretrained(tmp_path / "theirs")
        theirs.save_pretrained(tmp_path / "theirs")
        return model, tmp_path / "theirs"

    return write


def test_rows_have_their_tokens(theirs, ours):
    # `<s>` is a tag in this vocabulary, not the first token of a row.
    assert special_tokens(ours) == GEMMA_TOKENS
    assert special_token_ids(ours).all == (0, 3, 2, 1, 4)
    for text in (*TEXTS, "A <mask> of Quebec"):
        assert ours.encode(text).ids == theirs(text).input_ids, text
        assert ours.encode(text, "of it").ids == theirs(text, "of it").input_ids


def test_tokens_have_the_characters_that_are_seen(ours):
    aligned = align(ours, TEXTS)
    for text, first, length in zip(TEXTS, aligned.first_tokens, aligned.lengths, strict=True):
        spans = aligned.offsets[first : first + length].tolist()
        seen = {place for begin, end in spans for place in range(begin, end)}
        assert seen == {place for place, each in enumerate(text) if not each.isspace()}


def test_words_begin_at_spaces_and_signs_and_unknown_letters_continue_them(ours):
    text = "Paris is  (the) capital,   München dogs"
    spans = align(ours, [text]).offsets.tolist()
    ids = np.array(ours.encode(text, add_special_tokens=False).ids)
    words = []
    for (begin, end), is_begun in zip(spans, begins_word(ids, word_marks(ours)), strict=True):
        words += [[begin, end]] if is_begun else []
        words[-1][1] = end  # ü has two tokens
    words = [text[begin:end].strip() for begin, end in words]
    assert words == ["Paris", "is", "(", "the", ")", "capital", ",", "München", "dogs"]
    tokens = cut_texts(ours, [text])
    assert tokens.word_counts.tolist() == [len(words)]


def test_spaces_are_marked_by_a_step_within_others(ours):
    """As `do_lower_case` of sentence-transformers puts one before a folder's own."""
    lowered = Tokenizer.from_str(ours.to_str())
    own = normalizers.Sequence([ours.normalizer])
    lowered.normalizer = normalizers.Sequence([normalizers.Lowercase(), own])
    assert space_mark(lowered) == space_mark(ours) == "\u2581"
    assert not begins_behind_space(lowered)


def test_a_word_alone_is_cut_as_in_a_sentence(ours):
    words = TEXTS[0].split()
    pieces = word_pieces(ours, words)
    alone = pieces.ids(np.arange(len(words)), pieces.sizes).tolist()
    assert alone == ours.encode(f" {TEXTS[0]}", add_special_tokens=False).ids


def test_missing_words_are_theirs_and_a_folder_written_here_says_the_same(
    theirs, ours, folder_of, tmp_path
):
    model, folder = folder_of(ModernBertForMaskedLM)
    text = "Paris is the <mask> of France"
    rows = theirs(text, return_tensors="pt")
    place = rows.input_ids[0].tolist().index(theirs.mask_token_id)
    wanted = model(**rows).logits[0, place].softmax(-1).topk(5)
    (found,) = load_predictor(folder).fill_mask([text.replace("<mask>", "[MASK]")])
    candidates = found.masks[0].candidates
    assert [each.id for each in candidates] == wanted.indices.tolist()
    scores = [each.score for each in candidates]
    assert scores == pytest.approx(wanted.values.tolist(), abs=1e-5)
    assert target_ids(ours, ["the"]) == (ours.token_to_id("\u2581the"),)

    _, read, tokenizer = load_model_folder(folder)
    save_model_folder(tmp_path / "ours", read, tokenizer)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    rows = AutoTokenizer.from_pretrained(tmp_path / "ours")(text, return_tensors="pt")
    back = again(**rows).logits[0, place].softmax(-1).topk(5)
    torch.testing.assert_close(back.values, wanted.values, rtol=0, atol=1e-5)


def test_pairs_and_answers_have_their_scores(theirs, folder_of):
    model, folder = folder_of(ModernBertForSequenceClassification, num_labels=3)
    rows = theirs(TEXTS[0], TEXTS[2], return_tensors="pt")
    wanted = model(**rows).logits.softmax(1)[0].tolist()
    (found,) = load_predictor(folder).predict([{"text": TEXTS[0], "text_pair": TEXTS[2]}])
    by_label = {each.label: each.score for each in found.scores}
    assert [by_label[label] for label in sorted(by_label)] == pytest.approx(wanted, abs=1e-5)

    model, folder = folder_of(ModernBertForQuestionAnswering)
    question, context = "What is in Japan?", TEXTS[2]
    output = model(**theirs(question, context, return_tensors="pt"))
    first = len(theirs(question).input_ids)
    starts, ends = (
        logits[0, first:-1].tolist() for logits in (output.start_logits, output.end_logits)
    )
    best = max(starts[begin] + max(ends[begin : begin + 30]) for begin in range(len(starts)))
    (found,) = load_predictor(folder).predict([{"question": question, "context": context}])
    answer = found.answers[0]
    assert answer.score == pytest.approx(best, abs=1e-5)
    assert answer.text == context[answer.start : answer.end] == answer.text.strip()
