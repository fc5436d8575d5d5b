"""The same rows and weights in our model and in that of `transformers`."""

import numpy as np
import torch
import transformers
from transformers import BertConfig

from bert_core.config import IGNORE_INDEX, ModelConfig
from bert_core.hugging_face.families import BERT
from bert_core.model.bert import Bert
from bert_core.model.encoder import Encoder
from bert_core.tasks.task import add_task_head


def random_model(config, task, dtype=torch.float64, **changes):
    """Our model with the head of a task, far from its initial weights."""
    torch.manual_seed(0)
    bert = Bert(Encoder(ModelConfig.model_validate(config.model_dump() | changes)), {})
    add_task_head(bert, task)
    for parameter in bert.parameters():
        parameter.data += torch.randn_like(parameter) * 0.1
    return bert.to(dtype)


def theirs_of(ours, task):
    """The model of `transformers` with the weights of ours."""
    fields = ours.config.model_dump(exclude={"position_embedding"})
    config = BertConfig(**fields, num_labels=task.head.num_outputs, problem_type=task.problem_type)
    theirs = getattr(transformers, task.architecture)(config)
    theirs.load_state_dict(BERT.to_theirs(ours.state_dict()))
    return theirs.to(next(ours.parameters()).dtype)


def padded_inputs(rows, items):
    """The rows of items as `transformers` takes them, [R, S], and the places among them."""
    some = rows.rows_of(items)
    shape = (len(some), int(rows.lengths[some].max()))
    ids, types, mask = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    places = torch.zeros(shape, dtype=torch.bool)
    first_places = np.cumsum(rows.place_counts) - rows.place_counts
    for number, row in enumerate(some.tolist()):
        begin, length, place = rows.first_tokens[row], rows.lengths[row], first_places[row]
        ids[number, :length] = torch.from_numpy(rows.input_ids[begin : begin + length])
        types[number, rows.first_lengths[row] : length] = 1
        mask[number, :length] = 1
        places[number, rows.places[place : place + rows.place_counts[row]]] = True
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}, places


def their_outputs(theirs, rows, items):
    """The outputs [P, L] of `transformers` at the places of items, and its mean loss."""
    inputs, places = padded_inputs(rows, items)
    labels = rows.batch(items, "packed").labels
    match type(theirs).__name__.removeprefix("BertFor"):
        case "SequenceClassification":
            if labels.is_floating_point():
                labels = labels.to(theirs.dtype).squeeze(1)
            found = theirs(**inputs, labels=labels)
            return found.logits, found.loss
        case "TokenClassification":
            known = torch.full(places.shape, IGNORE_INDEX)
            known[places] = labels
            found = theirs(**inputs, labels=known)
            return found.logits[places], found.loss
        case "MultipleChoice":
            choices = {
                name: each.view(len(items), -1, each.shape[1]) for name, each in inputs.items()
            }
            found = theirs(**choices, labels=labels)
            return found.logits.view(-1, 1), found.loss
    found = theirs(**inputs)
    logits = torch.stack([found.start_logits, found.end_logits], dim=-1)  # [R, S, 2]
    if places.all() and (labels >= 0).all():
        start, end = labels.unbind(1)
        return logits[places], theirs(**inputs, start_positions=start, end_positions=end).loss
    # It lets padding take part in the softmax; ours has none, so its logits there are cut off.
    masked = logits.masked_fill(~places[..., None], -torch.inf)
    criterion = torch.nn.CrossEntropyLoss(ignore_index=IGNORE_INDEX)
    return logits[places], sum(criterion(masked[..., part], labels[:, part]) for part in (0, 1)) / 2


def check_gradients(ours, theirs):
    found = BERT.to_theirs({name: each.grad for name, each in ours.named_parameters()})
    for name, parameter in theirs.named_parameters():
        if name.endswith("key.bias"):  # zero in theory: it shifts all scores of a query alike
            assert parameter.grad.abs().max() < 1e-9
        else:  # some are zero in theory too: a softmax ignores what all its inputs have in common
            difference = (found[name] - parameter.grad).norm()
            assert difference < 1e-7 * parameter.grad.norm() + 1e-14, name
