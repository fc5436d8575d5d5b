"""The peer LitServe, which gathers requests into batches for some milliseconds.

`python benchmarks/serving_litserve.py FOLDER PORT`, in an environment that has it. A file of its
own, as its workers import the class by the file's name.
"""

import sys
from typing import Any

import litserve  # pyright: ignore[reportMissingImports]
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

LONGEST_WAIT_SECONDS = 0.005
LARGEST_BATCH = 32


class Classify(litserve.LitAPI):
    """The classifier of a folder, over padded batches."""

    folder: str

    def setup(self, device: str) -> None:
        """Loads the model, in the worker."""
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        model = AutoModelForSequenceClassification.from_pretrained(self.folder)
        self.model = model.to(device).eval()

    def decode_request(self, request: dict[str, str]) -> str:
        """The text."""
        return request["inputs"]

    def predict(self, texts: list[str]) -> list[list[float]]:
        """The scores of each text of a batch."""
        batch = self.tokenizer(texts, padding=True, return_tensors="pt")
        with torch.inference_mode():
            return self.model(**batch).logits.softmax(-1).tolist()

    def encode_response(self, scores: list[float]) -> list[dict[str, Any]]:
        """Labels and scores."""
        names = self.model.config.id2label
        return [{"label": names[index], "score": each} for index, each in enumerate(scores)]


if __name__ == "__main__":
    api = Classify(max_batch_size=LARGEST_BATCH, batch_timeout=LONGEST_WAIT_SECONDS)
    api.folder = sys.argv[1]
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False)
