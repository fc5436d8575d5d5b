"""The code MLflow keeps with a pre-trained encoder: texts with [MASK] in, likely words out.

Run by `mlflow.pyfunc.load_model`, and nowhere else; the weights are read as safetensors.
"""

from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

NUM_CANDIDATES = 5


class FillMask(PythonModel):
    """Fills the first [MASK] of each text."""

    def load_context(self, context: PythonModelContext) -> None:
        """Loads the model folder that lies among the version's artifacts."""
        from bert_core.model_folder import load_model_folder

        _, model, self.tokenizer = load_model_folder(context.artifacts["model_folder"])
        self.model = model.eval()

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride] - the base returns None
        self, context: PythonModelContext, model_input: list[str], params: dict | None = None
    ) -> list[list[dict[str, str | float]]]:
        """For each text the likeliest words, best first: {"token": str, "probability": float}.

        Raises ValueError for a text without [MASK] or longer than the model's positions, and for a
        model that was not taught to fill it.
        """
        del context, params
        return [self._fill(text) for text in model_input]

    def _fill(self, text: str) -> list[dict[str, str | float]]:
        import torch

        from bert_core.model.layout import Packed

        if "masked_token" not in self.model.heads:
            raise ValueError(f"a model that fills no [MASK]: it has {[*self.model.heads]}")
        ids = self.tokenizer.encode(text).ids
        mask_id = self.tokenizer.token_to_id("[MASK]")
        longest = self.model.config.max_position_embeddings
        if mask_id not in ids or len(ids) > longest:
            raise ValueError(f"a text needs one [MASK] and at most {longest} tokens: {text[:60]!r}")
        input_ids = torch.tensor(ids)
        positions, layout = torch.arange(len(ids)), Packed.from_lengths([len(ids)])
        with torch.inference_mode():
            states = self.model.encoder(input_ids, torch.zeros_like(input_ids), positions, layout)
            masked = states[ids.index(mask_id)].unsqueeze(0)
            head = self.model.heads["masked_token"]
            logits = head(masked, self.model.encoder.word_embeddings)
            top = logits.softmax(-1).squeeze(0).topk(min(NUM_CANDIDATES, logits.shape[-1]))
        return [
            {"token": str(self.tokenizer.id_to_token(index)), "probability": probability}
            for probability, index in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]


set_model(FillMask())
