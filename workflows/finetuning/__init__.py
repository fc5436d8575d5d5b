"""An encoder and a task's data to a model: what fine-tuning adds to a training run."""
