"""The run of a tagger over features as it goes on every worker: states first, then the tagger.

In: an encoder, which is not trained. The states at the places of train and dev are kept in a folder
of their own, for other runs on the same data and encoder.
"""

import time
from pathlib import Path
from typing import Any

import torch

from bert_core.features.states import stored_states
from bert_core.features.strategies import find_strategy
from bert_core.features.tagger import FeatureTagger
from bert_core.tasks.encoded_rows import EncodedRows, FeatureRows
from bert_core.training.loop import StepResult, TrainingState
from bert_core.training.optimization import create_optimizer
from workflows.cluster import Worker
from workflows.finetuning.settings import FeatureSettings, read_settings
from workflows.finetuning.worker import FinetuningRun, refuse_other_data
from workflows.progress import duration
from workflows.remote_run import RemoteRun

_PUBLISH_SECONDS = 1.0


def open_features(
    config: dict[str, Any], worker: Worker, folder: Path, remote: RemoteRun | None
) -> "FeatureRun":
    """The run of a job (`OpenRun`); `config` is that of `open_finetuning`, with `features`."""
    settings = read_settings(config["settings"])
    assert isinstance(settings, FeatureSettings)
    encoder, features = Path(config["encoder"]), Path(config["features"])
    run = FeatureRun(settings, worker, folder, encoder, features, remote)
    refuse_other_data(run, config)
    return run


class FeatureRun(FinetuningRun):
    """What one worker holds while it trains a tagger; the state is the tagger alone."""

    def __init__(
        self,
        settings: FeatureSettings,
        worker: Worker,
        folder: Path,
        encoder: Path,
        features: Path,
        remote: RemoteRun | None = None,
    ) -> None:
        self.tagger, self.strategy = settings.tagger, find_strategy(settings.strategy)
        self.features = features
        super().__init__(settings, worker, folder, encoder, remote)

    def rows_of(self, split: str, rows: EncodedRows) -> FeatureRows:
        """Rows with the states of the layers that the strategy reads."""
        begin = published = time.monotonic()

        def tell(share: float) -> None:
            nonlocal published
            now = time.monotonic()
            if now - published > _PUBLISH_SECONDS:
                published = now
                left = duration((now - begin) * (1 - share) / share)
                text = f"computing the features of {split}, {share:.0%}, {left} left"
                self.worker.publish({"waiting": text})

        states = stored_states(
            self.model.encoder.to(self.worker.device),
            rows,
            self.features / split,
            self.strategy.layers_of(self.config.num_hidden_layers),
            device=self.worker.device,
            max_tokens=self.settings.max_tokens,
            autocast_dtype=None if self.settings.precision == "float32" else torch.bfloat16,
            progress=tell,
        )
        return FeatureRows.of(rows, states)

    def fresh_state(self) -> TrainingState:
        """A tagger drawn from the seed."""
        torch.manual_seed(self.settings.seed)
        tagger = FeatureTagger(
            self.strategy,
            self.config,
            num_outputs=self.task.head.num_outputs,
            lstm_size=self.tagger.lstm_size,
            lstm_layers=self.tagger.lstm_layers,
            dropout_prob=self.tagger.dropout,
        ).to(self.worker.device)
        return TrainingState(tagger, create_optimizer(tagger, self.settings.optimizer))

    def step_flops(self, result: StepResult) -> float:
        """The products of the LSTM, both directions, forward and backward, at all words."""
        size, layers = self.tagger.lstm_size, self.tagger.lstm_layers
        inputs = self.strategy.feature_size(self.config.num_hidden_layers, self.config.hidden_size)
        weights = 2 * 4 * size * (inputs + size + (layers - 1) * 3 * size)
        return 3 * 2.0 * weights * int(result.sums[2])
