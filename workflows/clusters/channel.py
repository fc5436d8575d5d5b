"""The coordinator actor between the driver and the workers of a run.

A module of its own: the actor's process imports neither torch nor Ray Train, which takes seconds.
"""

from dataclasses import dataclass, field

from bert_core.errors import UserError
from workflows.messages import Outcome, RunProgress


@dataclass
class WorkerStatus:
    """What a driver knows of its workers.

    `progress` is the last of rank 0 in each job, by its number, and `outcomes` those of the jobs
    that have ended. `group` names the resources that it works with, None before it begins; when
    workers are lost, those in their place get another group. `ended` says that the training
    function has returned.
    """

    progress: dict[int, RunProgress] = field(default_factory=dict)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    group: str | None = None
    ended: bool = False


class Channel:
    """The coordinator actor of a run: last progress, outcomes, a stop request, a failure."""

    def __init__(self) -> None:
        self._status = WorkerStatus()
        self._job = 0
        self._stop = False
        self._leaving = False
        self._failure: UserError | None = None

    def begin(self, group: str | None) -> None:
        """Workers have started: drops the progress of those they replace, keeps finished jobs."""
        self._leaving = False
        self._status = WorkerStatus(group=group, outcomes=self._status.outcomes)

    def begin_job(self, number: int) -> None:
        """Rank 0 has started a job; progress counts for it from now on."""
        self._job = number
        self._status.progress[number] = RunProgress()

    def publish(self, progress: RunProgress) -> None:
        """Stores rank 0's progress in the current job."""
        self._status.progress[self._job] = progress

    def end_job(self, outcome: Outcome) -> None:
        """Stores a job's outcome, unless its workers only make way for others."""
        if self._stop or not (self._leaving and outcome.stopped):
            self._status.outcomes[self._job] = outcome

    def end(self) -> None:
        """The training function has returned."""
        self._status.ended = self._stop or not self._leaving

    def request_stop(self) -> None:
        """Asks the workers to stop for good."""
        self._stop = True

    def stop_requested(self) -> bool:
        """Whether the workers should save and return."""
        return self._stop or self._leaving

    def leave(self, group: str) -> None:
        """Asks the workers of this group to make way for others."""
        self._leaving = group == self._status.group

    def begin_again(self) -> bool:
        """Whether another group should start: once after `leave`, unless stopped or failed."""
        again = self._leaving and not self._stop and self._failure is None
        self._leaving = False
        return again

    def fail(self, failure: UserError) -> None:
        """Stores the first failure."""
        self._failure = self._failure or failure

    def failure(self) -> UserError | None:
        """The `UserError` that ended the run, if any."""
        return self._failure

    def status(self) -> WorkerStatus:
        """What the driver polls."""
        return self._status
