"""Messages between the workers of a run and its driver."""

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class Outcome:
    """How a worker's part in a run ended: after which step, and whether it was asked to stop."""

    step: int
    stopped: bool


@dataclass(frozen=True)
class Speed:
    """Rates over the last steps, all workers together."""

    tokens_per_second: float
    """Without padding."""
    padding_share: float
    mfu: float
    """Model FLOPs utilization: the share of the devices' measured peak."""
    memory_bytes: int
    """Memory in use by the device of rank 0."""
    eta_seconds: float


@dataclass(frozen=True)
class RunProgress:
    """The state of a run as rank 0 last published it, and what the driver waits for."""

    step: int | None = None
    """Finished steps, None before the run is open."""
    total_steps: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """The last value of each metric by its name in the journal."""
    speed: Speed | None = None
    used_seconds: float = 0.0
    """Worker seconds spent on the run, earlier starts included."""
    checkpoint: str | None = None
    """The name of the last checkpoint that this worker saved."""
    evaluation: str = ""
    """The best evaluation so far, in a few words."""
    messages: tuple[str, ...] = ()
    """Lines to print once."""
    activity: str = ""
    """What a worker does before its first step, where that takes long."""
    waiting: str = ""
    """What the driver waits for while workers are missing."""

    def figures(self) -> dict[str, float]:
        """Steps, metrics and rates by name, those that are known."""
        steps = {"step": self.step, "total_steps": self.total_steps}
        known = {name: value for name, value in steps.items() if value is not None}
        return known | self.metrics | (asdict(self.speed) if self.speed else {})
