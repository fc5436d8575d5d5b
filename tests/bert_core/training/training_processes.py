"""What the tests of training run in other processes, which can import this module by name."""

import json
import resource
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise, repeat

import numpy as np
import torch
import torch.nn.functional as F
from tiny_training import (
    CPU,
    IGNORE,
    TinyModel,
    TinyStep,
    double_state,
    double_steps,
    gradients_of,
    tiny_batch,
    tiny_loss,
    tiny_state,
    tiny_train,
)
from torch import Tensor

from bert_core.config import ModelConfig
from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.model.layout import Packed
from bert_core.pretraining import compute_loss, evaluate_pretraining
from bert_core.settings import OptimizerSettings
from bert_core.tasks.coupled_batches import CoupledBatchSource, told_steps, vector_loss
from bert_core.tasks.task import add_task_head
from bert_core.tasks.text_embedding import RelatedTexts, TextEmbedding
from bert_core.text.collation import PretrainingBatch
from bert_core.tokenizer_training import train_wordpiece
from bert_core.training import ranks
from bert_core.training.checkpoint import load_checkpoint, save_checkpoint
from bert_core.training.loop import TrainingState, compiled
from bert_core.training.optimization import create_optimizer
from bert_core.training.ranks import number_of_rank_zero

INFINITE = float("inf")
SHARES = [[5], [3, 4], [2, 1, 1]]  # rows of each rank's micro-batches
COUNTS = np.array([0, 5, 1, 100, 7, 0, 0, 3, 2, 2, 9, 1, 1, 1, 40, 8])


def train_share(rank, folder):
    state = double_state()
    steps = (divided[rank] for divided in double_steps(SHARES))
    options = {"max_gradient_norm": INFINITE, "total_steps": 3}
    seen = [
        (gradients_of(state), result.sums, result.gradient_norm, int(result.num_real_tokens))
        for result in tiny_train(state, steps=steps, **options)
    ]
    torch.save(seen, folder / f"rank{rank}.pt")
    if rank == 0:
        save_checkpoint(folder / "checkpoints", state, extra={}, files={}, keep=1)


def train_compiled(rank, folder):
    """Compiled inside data parallelism: the ranks exchange what each program computes."""
    state = double_state()
    shares = [[3, 4], [2, 7]]
    steps = (divided[rank] for divided in double_steps(shares))
    loss = compiled(tiny_loss, backend="aot_eager")
    options = {"max_gradient_norm": INFINITE, "total_steps": 3, "compute_loss": loss}
    seen = [gradients_of(state) for _ in tiny_train(state, steps=steps, **options)]
    torch.save(seen, folder / f"rank{rank}.pt")


def train_with_pauses(rank, folder):
    """Four steps without a pause; and with an evaluation after each and a fresh start after two.

    Rank 0 has one micro-batch a step, rank 1 two, three or four.
    """

    def steps(first):
        for step in range(first, 4):
            sizes = [6] if rank == 0 else [1 + part for part in range(2 + step % 3)]
            batches = [tiny_batch(step, 10 * rank + part, rows) for part, rows in enumerate(sizes)]
            yield TinyStep(batches, 12, 12)

    whole = tiny_state()
    norm = [each.gradient_norm for each in tiny_train(whole, total_steps=4, steps=steps(0))][-1]
    state = tiny_state()
    for _ in tiny_train(state, total_steps=4, steps=steps(0)):
        evaluate(state.model, [held_out(rank)])
        if state.step == 2:
            break
    if rank == 0:
        save(folder, state)
    torch.distributed.barrier()
    resumed = tiny_state()
    load_checkpoint(folder / "step-00000002", resumed)
    norms = []
    for result in tiny_train(resumed, total_steps=4, steps=steps(2)):
        norms.append(result.gradient_norm)
        evaluate(resumed.model, [held_out(rank)])
    assert torch.equal(norms[-1], norm)
    for first, second in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(first, second)


def train_in_two_parts(rank, folder):
    """Four steps without a stop, and two and two: the same bits, buckets or no buckets."""

    def state():
        torch.manual_seed(0)
        sizes = [8, *[600] * 9]  # 13 MB: several buckets
        layers = [torch.nn.Linear(*pair) for pair in pairwise(sizes)]
        model = torch.nn.Sequential(*layers)
        return TrainingState(model, create_optimizer(model, OptimizerSettings()))

    def loss(model, batch, **counts):
        value = model(batch.features).square().sum() / counts["num_predictions"]
        return value, value.detach().reshape(1)

    def steps(first):
        for step in range(first, 4):
            yield TinyStep([tiny_batch(step, rank, 5)], 15, 15)

    options = {"compute_loss": loss, "total_steps": 4}
    whole, first = state(), state()
    list(tiny_train(whole, steps=steps(0), **options))
    for _ in tiny_train(first, steps=steps(0), **options):
        if first.step == 2:
            break
    list(tiny_train(first, steps=steps(2), **options))
    for one, other in zip(first.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def say_what_rank_zero_says(rank, folder):
    (folder / f"rank{rank}.txt").write_text(str(number_of_rank_zero(7 + rank, CPU)))


def stop_on_rank_one(rank, folder):
    state = tiny_state()
    asked = iter([False, rank == 1, False])
    results = list(tiny_train(state, should_stop=lambda: next(asked)))
    (folder / f"rank{rank}.txt").write_text(f"{state.step} {results[-1].stopped}")


def _pretraining_batch(lengths, labels):
    num_tokens = sum(lengths)
    ids = (torch.arange(num_tokens) * 7) % 59 + 5
    places = torch.arange(0, num_tokens, 4)
    return PretrainingBatch(
        input_ids=ids,
        token_type_ids=torch.zeros_like(ids),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        layout=Packed.from_lengths(lengths),
        masked_positions=places,
        masked_ids=ids[places],
        next_sentence=torch.tensor(labels),
        num_real_tokens=num_tokens,
        num_slots=num_tokens,
    )


def _bert_state():
    torch.manual_seed(1)
    config = ModelConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    model = Bert.for_pretraining(config)
    settings = OptimizerSettings(peak_learning_rate=1e-2)
    return TrainingState(model, create_optimizer(model, settings))


def train_bert_twice(rank, folder):
    losses = [train_bert(rank) for _ in range(2)]
    (folder / f"losses{rank}.json").write_text(json.dumps(losses))


def train_bert(rank):
    # Rank 1 has no row with a next-sentence label, and still takes part in every exchange.
    batch = _pretraining_batch([8, 12], [0, 1] if rank == 0 else [IGNORE, IGNORE])
    step = TinyStep([batch, batch], 20, 4)
    options = {"steps": repeat(step), "total_steps": 20, "compute_loss": compute_loss}
    losses = [
        float(r.sums[0]) for r in tiny_train(_bert_state(), schedule=lambda _: 1e-2, **options)
    ]
    assert losses[-1] < 0.7 * losses[0]
    return losses


def save(folder, state, keep=3, **options):
    return save_checkpoint(folder, state, **{"extra": {}, "files": {}, **options}, keep=keep)


def save_with_small_files(folder, answer):
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    state = tiny_state()
    state.step = 2
    try:
        save(folder, state)
    except UserError as error:
        answer.put((str(error), getattr(error.__cause__, "errno", None)))


def save_for_ever(folder, first_step, committed):
    state = tiny_state()
    list(tiny_train(state, total_steps=1))
    state.step = first_step
    while True:
        state.step += 1
        save(folder, state, keep=2)
        committed.value = state.step


@dataclass(frozen=True)
class HeldOut:
    features: Tensor  # [predictions, 8]
    masked_ids: Tensor  # [predictions]
    next_sentence: Tensor  # [rows]

    def to(self, device, non_blocking=False):  # noqa: ARG002 - the shape of a real batch
        return self


def loss_of_both(model, batch, *, num_predictions, num_rows):
    """A loss whose next-sentence part answers IsNext with certainty 0.75."""
    logits = model(batch.features)
    used, labelled = batch.masked_ids != IGNORE, batch.next_sentence != IGNORE
    loss = F.cross_entropy(logits, batch.masked_ids, ignore_index=IGNORE, reduction="sum")
    hits = ((logits.argmax(-1) == batch.masked_ids) & used).sum()
    chances = torch.where(batch.next_sentence == 0, 0.75, 0.25)[labelled]
    row_hits = (batch.next_sentence == 0).sum()
    parts = [loss, hits, used.sum(), -chances.log().sum(), row_hits, labelled.sum()]
    return loss / num_predictions, torch.stack([torch.as_tensor(p).float() for p in parts])


def held_out(number, next_sentence=(0, 1, 0)):
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(0, 16, (6,), generator=generator)
    ids[number % 3] = IGNORE
    features = torch.randn(6, 8, generator=generator)
    return HeldOut(features, ids, torch.tensor(next_sentence))


def undecided_model():
    torch.manual_seed(0)
    return TinyModel(dropout=0.5)


def evaluate(model, batches, loss=loss_of_both):
    return evaluate_pretraining(model, batches, loss, device=CPU, token_counts=COUNTS)


def evaluate_share(rank, folder):
    batches = [[held_out(number) for number in range(5)], []][rank]
    (folder / f"{rank}.json").write_text(json.dumps(asdict(evaluate(undecided_model(), batches))))


def train_vectors(rank, folder, max_tokens=40):
    """Steps whose loss is of all texts of all ranks; one step has fewer texts than ranks."""
    words = ["ba", "keli", "monu", "rashi", "to", "vuza", "bali", "shito"]
    tokenizer = train_wordpiece([" ".join(words)] * 3, 120, lowercase=True)
    texts = [" ".join(words[n % 8 :] + words[: n % 5]) for n in range(40)]
    examples = [RelatedTexts((texts[n], texts[n + 20]), True) for n in range(17)]
    task = TextEmbedding()
    torch.manual_seed(0)
    model = Bert(Encoder(_small(len(words) + 120)), {})
    add_task_head(model, task)
    rows = task.encode(examples, tokenizer)
    source = CoupledBatchSource(
        task,
        rows,
        len(examples),
        batch_size=8,
        max_tokens=max_tokens,
        seed=1,
        layout="packed",
    )
    state = TrainingState(model, create_optimizer(model, OptimizerSettings()))
    told = told_steps(
        source.steps(0, ranks.rank(), ranks.world_size()),
        task,
        model,
        first=0,
        device=CPU,
        autocast_dtype=None,
        seed=7,
    )
    results = tiny_train(state, steps=told, compute_loss=partial(vector_loss, task), total_steps=6)
    seen = [(float(each.loss), each.sums.tolist(), float(each.gradient_norm)) for each in results]
    torch.save((seen, gradients_of(state)), folder / f"vectors{rank}-of-{ranks.world_size()}.pt")


def _small(vocab_size):
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
