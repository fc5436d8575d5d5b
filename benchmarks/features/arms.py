"""Who embeds texts in the features benchmark: ours, sentence-transformers and transformers."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.accelerator import MemoryWatch
from bert_core.tasks.task import FloatArray

TOLERANCE = {"cpu": 1e-5, "cuda": 6e-2}
"""How far vectors may lie apart, as a share of their length: float32, and bfloat16."""

Embed = Callable[[Sequence[str]], FloatArray]


@dataclass
class Contestants:
    """Those that embed texts, ours first, what each made of them, and the most memory it had."""

    texts: Sequence[str]
    device: torch.device
    embedders: dict[str, Embed] = field(default_factory=dict)
    vectors: dict[str, FloatArray] = field(default_factory=dict)
    peak_bytes: dict[str, int | None] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], Embed], *, bytes_before: int = 0) -> None:
        """Builds one and lets it embed all texts; `bytes_before` it has on the device already."""
        watch = MemoryWatch(self.device)
        embed = make()
        self.vectors[name] = embed(self.texts)
        self.embedders[name] = embed
        above = watch.peak_bytes()
        self.peak_bytes[name] = None if above is None else bytes_before + above

    def largest_difference(self) -> float:
        """Between numbers of ours and a peer's.

        Raises `AssertionError` where vectors lie further apart than `TOLERANCE`.
        """
        ours = self.vectors["ours"]
        lengths = np.linalg.norm(ours, axis=1)
        apart = {
            name: float((np.linalg.norm(found - ours, axis=1) / lengths).max())
            for name, found in self.vectors.items()
        }
        assert max(apart.values()) < TOLERANCE[self.device.type], apart
        return max(float(np.abs(found - ours).max()) for found in self.vectors.values())


def peers(folder: Path, device: torch.device, batch: int) -> dict[str, Callable[[], Embed]]:
    """What builds the peers that are installed, on the same weights, in bfloat16 on CUDA."""
    found: dict[str, Callable[[], Embed]] = {}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for name, package, make in (
        ("sentence-transformers", "sentence_transformers", sentence_transformers_arm),
        ("transformers", "transformers", transformers_arm),
    ):
        if importlib.util.find_spec(package) is None:
            print(f"{name} is not installed: left out")
        else:
            found[name] = partial(make, folder, device, dtype, batch)
    return found


def sentence_transformers_arm(
    folder: Path, device: torch.device, dtype: torch.dtype, batch_size: int
) -> Embed:
    """`SentenceTransformer.encode`, which sorts by length."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    body = Transformer(str(folder), model_kwargs={"dtype": dtype})
    config = body.model.config
    pooling = Pooling(config.hidden_size, pooling_mode="mean")
    model = SentenceTransformer(modules=[body, pooling], device=device.type)
    model.max_seq_length = config.max_position_embeddings

    def embed(texts: Sequence[str]) -> FloatArray:
        return np.asarray(model.encode(list(texts), batch_size=batch_size), np.float32)

    return embed


def transformers_arm(
    folder: Path, device: torch.device, dtype: torch.dtype, batch_size: int
) -> Embed:
    """`AutoModel` on batches of like lengths, padded to the longest; the mean over the mask."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=dtype, add_pooling_layer=False)
    model = model.to(device).eval()
    longest = model.config.max_position_embeddings

    def embed(texts: Sequence[str]) -> FloatArray:
        ids = tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        vectors = np.empty((len(ids), model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for first in range(0, len(order), batch_size):
                some = order[first : first + batch_size]
                batch = tokenizer.pad({"input_ids": [ids[i] for i in some]}, return_tensors="pt")
                batch = batch.to(device)
                states = model(**batch).last_hidden_state.float()
                mask = batch["attention_mask"].unsqueeze(-1)
                vectors[some] = ((states * mask).sum(1) / mask.sum(1)).cpu().numpy()
        return vectors

    return embed
