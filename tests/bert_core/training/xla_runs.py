"""What the tests of XLA run in a process of their own, which can import this module by name.

JAX is loaded within functions: the tests import this module too, and know only its names.
"""

import os
from copy import deepcopy
from itertools import chain, islice, repeat

import numpy as np
import torch
from static_batches import LENGTH, WORDS, small_bert, static_source
from synthetic_shards import synthetic_shards, vocabulary

from bert_core.errors import UserError
from bert_core.model.bert import Bert
from bert_core.pretraining import compute_loss, evaluate_pretraining
from bert_core.settings import BatchSettings, OptimizerSettings, RowSettings
from bert_core.text.batches import BatchSource
from bert_core.training.checkpoint import load_checkpoint, moments_by_name, save_checkpoint
from bert_core.training.loop import NonFiniteLossError, TrainingState, train
from bert_core.training.optimization import create_optimizer
from bert_core.training.xla.program import Programs
from bert_core.training.xla.training import XlaTraining

CPU = torch.device("cpu")
ROWS = 8


def start(num_devices, cache):
    """Sets up this process; compiled programs are shared among its runs."""
    quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_devices} {quick}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    torch.set_num_threads(1)
    import jax

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def new_state(optimizer="adamw", dropout=0.0, num_layers=1, **changes):
    """Of the same shape wherever nothing else is said: its program is compiled once for all."""
    torch.manual_seed(0)
    shape = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    shape |= {"num_hidden_layers": num_layers}
    model = Bert.for_pretraining(small_bert(**shape | changes))
    settings = OptimizerSettings(name=optimizer, peak_learning_rate=1e-3)
    return TrainingState(model, create_optimizer(model, settings))


def rate(step):
    return 1e-3 * (1 - step / 10)


def source(micro_batch=3, length=LENGTH, rows=ROWS, objective="mlm_nsp"):
    return BatchSource(
        synthetic_shards(1, 300, longest_sentence=9, vocab_size=WORDS),
        vocabulary(WORDS),
        rows=RowSettings(short_row_share=0.5, objective=objective),
        batch=BatchSettings(global_batch_size=rows, micro_batch_size=micro_batch, packed=False),
        sequence_length=length,
        seed=0,
        phase=0,
        static_shapes=True,
    )


def xla(state, seed=7, dtype=None):
    return XlaTraining(state, compute_loss, max_gradient_norm=1.0, compute_dtype=dtype, seed=seed)


def torch_steps(state, total_steps, batches=None):
    return train(
        state,
        batches or source().steps(state.step),
        compute_loss,
        total_steps=total_steps,
        schedule=rate,
        max_gradient_norm=1.0,
        device=CPU,
        autocast_dtype=None,
        seed=7,
    )


def xla_steps(training, first, total_steps, batches=None, **options):
    batches = batches or source().steps(first)
    return training.train(batches, total_steps=total_steps, schedule=rate, **options)


def read(results):
    """Results as numbers, and no tensor."""
    return [
        {
            "step": each.step,
            "loss": float(each.loss),
            "sums": each.sums.tolist(),
            "gradient_norm": float(each.gradient_norm),
            "learning_rate": each.learning_rate,
            "tokens": (int(each.num_real_tokens), int(each.num_slots)),
            "stopped": each.stopped,
        }
        for each in results
    ]


def distance(first, second):
    """The largest difference between two models' weights."""
    pairs = zip(first.model.parameters(), second.model.parameters(), strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


def moment_distance(first, second):
    """The largest difference between two states' moments, each relative to the largest of its."""
    one, other = (moments_by_name(each.model, each.optimizer) for each in (first, second))
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max() / one[name].abs().max()) for name in one)


def against_torch(micro_batch, num_layers, optimizer):
    import jax

    def new():
        return new_state(optimizer, num_layers=num_layers)

    by_torch, by_xla = new(), new()
    training = xla(by_xla)
    batches = source(micro_batch).steps
    found = {
        "devices": jax.device_count(),
        "torch": read(torch_steps(by_torch, 5, batches(0))),
        "xla": read(xla_steps(training, 0, 5, batches(0))),
        "compilations": training.num_compilations,
        "untouched": distance(by_xla, new()) == 0,
    }
    training.current_state()
    return found | {
        "weights": distance(by_xla, by_torch),
        "moments": moment_distance(by_xla, by_torch),
        "counts": [
            (each.step, each.num_rows_seen, each.num_tokens_seen) for each in (by_torch, by_xla)
        ],
    }


def moved(folder, first, optimizer):
    """Two steps on one side, a checkpoint, the third on both; `first` is where it began."""
    state = new_state(optimizer)
    if first == "torch":
        list(torch_steps(state, 2))
    else:
        training = xla(state)
        list(xla_steps(training, 0, 2))
        training.current_state()
    path = save_checkpoint(folder, state, extra={}, files={}, keep=1)
    here, there = new_state(optimizer), new_state(optimizer)
    load_checkpoint(path, here)
    load_checkpoint(path, there)
    training = xla(there)
    ours = read(torch_steps(here, 4)), read(xla_steps(training, 2, 4))
    return ours, distance(here, training.current_state())


def with_dropout():
    """Losses of four steps; of the last two after a fresh start; of the first without dropout.

    And those of two steps with the same rows and weights, under another seed.
    """
    training = xla(new_state(dropout=0.1))
    losses = [each["loss"] for each in read(xla_steps(training, 0, 2))]
    fresh = xla(deepcopy(training.current_state()))
    losses += [each["loss"] for each in read(xla_steps(training, 2, 4))]
    again = [each["loss"] for each in read(xla_steps(fresh, 2, 4))]
    other = xla(new_state(dropout=0.1), seed=8)
    alike = other.train(repeat(source().step(0)), total_steps=2, schedule=lambda _: 0.0)
    without = read(torch_steps(new_state(), 1))[0]["loss"]
    return losses, again, without, [each["loss"] for each in read(alike)]


def two_phases():
    """Compilations after each of five steps, the third and fourth of longer rows."""
    training = xla(new_state())
    short = source(length=LENGTH // 2)
    batches = chain(islice(short.steps(0), 2), islice(source().steps(0), 2), short.steps(2))
    return [training.num_compilations for _ in xla_steps(training, 0, 5, batches)]


def evaluated():
    """Held-out figures by torch and by XLA of a model with dropout, which torch then forgets."""
    state = new_state(dropout=0.1)
    training = xla(state)
    options = {"device": CPU, "token_counts": torch.ones(WORDS).numpy()}

    def figures(loss):
        return evaluate_pretraining(state.model, source().epoch_zero(6), loss, **options)

    by_torch = figures(compute_loss)
    with torch.no_grad():
        for each in state.model.parameters():
            each.zero_()
    return by_torch, figures(training.evaluation_loss), training.num_compilations


def stopped_at(step):
    """Results when the wish to stop comes in this step; and the state's step."""
    state = new_state()
    training = xla(state)
    asked = iter(range(1, 100))
    return read(xla_steps(training, 0, 9, should_stop=lambda: next(asked) == step)), state.step


def not_finite():
    """The step said to be wrong, after which result, and whether a state is to be had."""
    state, seen = new_state(), 0
    with torch.no_grad():
        next(state.model.parameters()).fill_(float("nan"))
    training = xla(state)
    try:
        for result in xla_steps(training, 0, 9):
            seen = result.step
    except NonFiniteLossError as error:
        return error.step, seen
    return None


def last_step_not_finite():
    state = new_state()
    with torch.no_grad():
        next(state.model.parameters()).fill_(float("nan"))
    training = xla(state)
    try:
        list(xla_steps(training, 0, 1))
    except NonFiniteLossError as error:
        return error.step
    return None


def in_bfloat16():
    """A first loss by torch's autocast and by XLA, and how far weights of 1 have moved."""
    by_torch, by_xla = new_state(), new_state()
    settings = {"max_gradient_norm": 1.0, "device": CPU, "autocast_dtype": torch.bfloat16}
    steps = source().steps(0)
    given = {"total_steps": 1, "schedule": rate, "seed": 7}
    expected = read(train(by_torch, steps, compute_loss, **settings, **given))
    training = xla(by_xla, dtype=torch.bfloat16)
    found = read(xla_steps(training, 0, 1))
    layer = training.current_state().model.encoder.layers[0]
    return expected, found, (layer.output_norm.weight.detach() - 1).abs().tolist()


def in_one_of_two(address, rank, folder):
    """Steps of 9 rows on one device of two, each in its own process; rank 1 asks to stop in step 3.

    Rank 0 alone writes a checkpoint after that step.
    """
    import jax

    jax.distributed.initialize(address, num_processes=2, process_id=rank)
    state = new_state()
    training, found = xla(state), []
    batches = source(4, rows=9).steps(0, rank, 2)
    asked = iter(range(1, 100))
    for result in xla_steps(training, 0, 9, batches, should_stop=lambda: next(asked) == 3 and rank):
        if rank == 0 and result.step == 3:
            save_checkpoint(folder, training.current_state(), extra={}, files={}, keep=1)
        found.append(result)
    held_out = list(source(4, rows=9).epoch_zero(9, rank, 2))
    evaluations = [
        training.evaluation_loss(state.model, each, num_predictions=1, num_rows=1)
        for each in held_out
    ]
    sums = [each.tolist() for _, each in evaluations]
    training.current_state()
    jax.distributed.shutdown()
    return read(found), sums, weights_of(state)


def refused():
    """What is said of packed rows, and of data that ends."""
    said = []
    for batches, total in (
        (static_source(packed=True).steps(0), 1),
        (islice(source().steps(0), 1), 2),
    ):
        try:
            list(xla_steps(xla(new_state()), 0, total, batches))
        except (UserError, RuntimeError) as error:
            said.append(str(error))
    return said


def nine_rows_by_torch():
    """The four steps that two processes make, by one in torch: results, held-out sums, weights."""
    state = new_state()
    found = read(torch_steps(state, 4, source(4, rows=9).steps(0)))
    with torch.no_grad():
        sums = [
            compute_loss(state.model, each, num_predictions=1, num_rows=1)[1].tolist()
            for each in source(4, rows=9).epoch_zero(9)
        ]
    return found, [sum(each) for each in zip(*sums, strict=True)], weights_of(state)


def weights_of(state):
    return [each.detach().numpy() for each in state.model.parameters()]


class LittleRoom:
    """A jitted step that a compiler has no room for with more than so many rows at once."""

    def __init__(self, step, most_rows):
        self.step, self.most_rows, self.refused = step, most_rows, []

    def lower(self, *arguments):
        import jax

        rows = arguments[3]["input_ids"].shape[1]
        if rows > self.most_rows:
            self.refused.append(rows)
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in hbm")
        return self.step.lower(*arguments)


def with_little_room(most_rows):
    """Three steps by torch and on devices without room for 8 rows at once, and what was refused."""
    by_torch, by_xla = new_state(), new_state()
    training = xla(by_xla)
    training._step = LittleRoom(training._step, most_rows)
    batches = source(ROWS).steps
    ours = read(xla_steps(training, 0, 3, batches(0)))
    theirs = read(torch_steps(by_torch, 3, batches(0)))
    apart = distance(training.current_state(), by_torch)
    return ours, theirs, apart, training._step.refused, training.num_parts


def without_room():
    """What is said where not even one row of a device fits."""
    import jax

    training = xla(new_state())
    training._step = LittleRoom(training._step, 1)
    try:
        list(xla_steps(training, 0, 1, source(4).steps(0)))
    except jax.errors.JaxRuntimeError as error:
        return str(error), training._step.refused
    return None


def compiled_for_shapes():
    """How many programs there are after each of four calls, two of them of the same shape."""
    import jax
    import jax.numpy as jnp

    programs, double, found = Programs(in_float32=True), jax.jit(lambda given: 2 * given), []
    for kind, size in (("a", 3), ("a", 3), ("a", 4), ("a", 3)):
        assert float(programs.of(kind, double, jnp.ones(size))(jnp.ones(size))[0]) == 2
        found.append(len(programs))
    return found


def failed_compilation():
    """What comes of an error that has nothing to do with room, and the parts that were tried."""
    import jax

    tried = []

    class Crashing:
        def lower(self, *_):
            raise jax.errors.JaxRuntimeError("INTERNAL: a crash")

    def given(parts):
        tried.append(parts)
        return (np.ones(parts),)

    try:
        Programs(in_float32=True).with_room("step", Crashing(), given, shape=(1, 8), rows=8)
    except jax.errors.JaxRuntimeError as error:
        return str(error), tried
    return None
