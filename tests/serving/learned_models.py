"""Small models that know a few sentences by heart, so that what they say can be printed."""

from functools import partial

import torch
from torch.nn import functional

from bert_core.config import ModelConfig
from bert_core.masked_language_model import FillMask, masked_token_answers
from bert_core.model.bert import Bert
from bert_core.model_folder import save_model_folder
from bert_core.tasks.catalog import task_config
from bert_core.tasks.classification import Classification, Text
from bert_core.tasks.encoded_rows import evaluation_batches
from bert_core.tasks.question_answering import QuestionAnswering
from bert_core.tasks.squad import Answer, Question
from bert_core.tasks.tagged_sentences import TaggedSentence
from bert_core.tasks.tagging import Tagging
from bert_core.tasks.task import add_task_head, compute_outputs, hidden_states
from bert_core.tokenizer_training import train_wordpiece

FILMS = {
    "A lovely film.": "positive",
    "A joy from start to end.": "positive",
    "A film that never finds its feet.": "negative",
    "I want my evening back.": "negative",
}
JOURNEY = ("Angela", "Merkel", "took", "the", "train", "from", "Berlin", "to", "Wolfsburg", ".")
TAGS = ("B-PER", "I-PER", "O", "O", "O", "O", "B-LOC", "O", "B-LOC", "O")
RHINE = "The Rhine rises in the Swiss Alps and ends in the North Sea."
ANSWERS = {"Where does the Rhine rise?": "the Swiss Alps", "Where does it end?": "the North Sea"}
CAPITAL = "The capital of France is {}."
OTHERS = ("A cat sleeps.", "A kitten naps.", "The bank raised its rates.")

TASKS = {
    "sentiment": (
        "classification",
        Classification(labels=("negative", "positive"), max_length=64),
        [Text(text, None, label) for text, label in FILMS.items()],
    ),
    "entities": (
        "ner",
        Tagging(labels=("O", "B-PER", "I-PER", "B-LOC"), max_length=64),
        [TaggedSentence(JOURNEY, TAGS)],
    ),
    "answers": (
        "squad",
        QuestionAnswering(max_length=64, stride=16),
        [
            Question(question, question, RHINE, (Answer(found, RHINE.index(found)),))
            for question, found in ANSWERS.items()
        ],
    ),
}


def write_learned_models(root):
    """Folders by name: one for each of `TASKS`, and `encoder`, which knows a capital."""
    texts = [*FILMS, " ".join(JOURNEY), RHINE, *ANSWERS, CAPITAL.format("Paris"), *OTHERS]
    tokenizer = train_wordpiece(texts * 3, 400, lowercase=True)
    folders = {}
    for name, (task_name, task, examples) in TASKS.items():
        model = _model(tokenizer)
        add_task_head(model, task)
        batch = _batch(task.encode(examples, tokenizer))
        _learn(model, partial(_loss_of_task, task, model, batch))
        folders[name] = root / name
        config = task_config(task_name, task)
        save_model_folder(folders[name], model, tokenizer, card="", extra_config=config)
    model = _model(tokenizer)
    batch = _batch(FillMask(tokenizer, 256).encode([CAPITAL.format("[MASK]")], tokenizer))
    _learn(model, partial(_loss_of_mask, model, batch, tokenizer.token_to_id("paris")))
    folders["encoder"] = root / "encoder"
    save_model_folder(folders["encoder"], model, tokenizer, card="")
    return folders


def _model(tokenizer):
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=256,
        hidden_dropout_prob=0,
    )
    return Bert.for_pretraining(config)


def _batch(rows):
    ((_, batch),) = evaluation_batches(rows, max_tokens=100_000, layout="packed")
    return batch


def _loss_of_task(task, model, batch):
    return task.loss(compute_outputs(model, batch), batch)[0]


def _loss_of_mask(model, batch, wanted):
    states = hidden_states(model.encoder, batch, [model.config.num_hidden_layers])
    logits = masked_token_answers(model, states, batch.place_counts)
    return functional.cross_entropy(logits, torch.tensor([wanted]))


def _learn(model, loss_of):
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of so little work more would be slower
    optimizer = torch.optim.Adam(model.train().parameters(), lr=3e-3)
    for _ in range(400):
        loss = loss_of()
        if loss < 0.02:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    else:
        raise AssertionError(f"nothing learned: {loss}")
    model.eval()
    torch.set_num_threads(num_threads)
