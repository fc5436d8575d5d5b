"""What is kept of a forward pass for the backward pass, in bytes, by torch and by JAX.

JAX is loaded within a function, for a process of its own (`in_xla`).
"""

import torch

from bert_core.model.layout import Padded
from bert_core.pretraining import compute_loss
from bert_core.text.collation import PretrainingBatch
from bert_core.training.xla.forward import loss_in_jax
from bert_core.training.xla.training import arrays_of


def kept_bytes(model, batch):
    """Bytes of all that torch keeps for the backward pass, parameters left out, each once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = (storage.nbytes(), tensor)  # alive, so that none reuses it
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        compute_loss(model, batch, num_predictions=1, num_rows=1)
    return sum(num_bytes for num_bytes, _ in found.values())


def full_rows(config, rows, length):
    tokens, places = rows * length, round(0.15 * length)
    within = torch.rand(rows, length).argsort(dim=1)[:, :places].sort(dim=1).values
    return PretrainingBatch(
        input_ids=torch.randint(5, config.vocab_size, (tokens,)),
        token_type_ids=torch.zeros(tokens, dtype=torch.long),
        position_ids=torch.arange(length).repeat(rows),
        layout=Padded(torch.ones(rows, length, dtype=torch.bool), True),
        masked_positions=(within + length * torch.arange(rows)[:, None]).flatten(),
        masked_ids=torch.randint(5, config.vocab_size, (rows * places,)),
        next_sentence=torch.zeros(rows, dtype=torch.long),
        num_real_tokens=tokens,
        num_slots=tokens,
    )


def kept_bytes_through_xla(model, batch):
    """Bytes of all that JAX keeps for the backward pass, parameters left out, each once."""
    import jax

    arrays = arrays_of(batch, rows_multiple=1)
    loss = loss_in_jax(model, compute_loss, torch.bfloat16, training=True)
    weights = {n: jax.ShapeDtypeStruct(p.shape, "float32") for n, p in model.named_parameters()}

    def backward(weights):
        key = jax.random.key(0, impl="rbg")
        counts = {"num_predictions": 1, "num_rows": 1}
        given = {name: jax.numpy.array(each) for name, each in arrays.items()}
        return jax.vjp(lambda own: loss(own, given, counts, key), weights, has_aux=True)[1]

    kept = jax.tree.leaves(jax.eval_shape(backward, weights))
    own = {(weight.shape, weight.dtype) for weight in weights.values()}
    found = [each for each in kept if (each.shape, each.dtype) not in own]
    return sum(each.size * each.dtype.itemsize for each in found)
