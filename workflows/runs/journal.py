"""A run's metrics on disk: one JSON line per record, written by the loop, read by the sender.

In: `{name: value}` of a step. Out: records in order, each (step, name) once, whatever died.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from bert_core.disk import atomic_write
from bert_core.errors import UserError
from bert_core.tasks.metrics import METRIC_NAME


@dataclass(frozen=True)
class Record:
    """The metrics of one step, and when they were known, in seconds since the epoch."""

    step: int
    time: float
    metrics: dict[str, float]


class Journal:
    """The append-only journal of one run, with one writer.

    The line a SIGKILL tore is removed on opening. What `cut_back` removes is remembered beside the
    journal with its time: the same step computed again gets its first time back, so a tracking
    store that keys metrics by (name, time, step, value) takes both for the one record they are.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._dropped_path = path.with_name(path.name + ".dropped")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes one record and hands it to the operating system, without waiting for the disk.

        Raises ValueError for a name MLflow refuses or a (step, name) that is already here or lies
        behind the newest, and UserError when the disk takes no more.
        """
        values = {name: float(value) for name, value in metrics.items()}
        for name in values:
            if step <= self._newest.get(name, -1):
                raise ValueError(f"{name} of step {step} is behind step {self._newest[name]}")
            if name not in self._newest and METRIC_NAME.fullmatch(name) is None:
                raise ValueError(f"{name!r} is no name for a metric")
        first_times = (self._dropped.get((step, name)) for name in values)
        known = next((first for first in first_times if first is not None), None)
        self._write(Record(step, round(time.time(), 3) if known is None else known, values))
        self._newest.update(dict.fromkeys(values, step))

    def cut_back(self, step: int, copy: Path | None = None) -> None:
        """Drops every record beyond `step`, that of the checkpoint resumed from.

        A `copy` of the journal from the checkpoint takes its place first if it holds more records
        up to that step, as on another machine. The journal is rewritten beside and renamed.
        """
        self._file.close()
        records = list(read_records(self.path))
        kept = [record for record in records if record.step <= step]
        if copy is not None and copy.exists():
            copied = [record for record in read_records(copy) if record.step <= step]
            kept = max(kept, copied, key=len)
        dropped = [record for record in records if record.step > step]
        if dropped:
            # Earlier drops stay first, so that a step's first time is what `_open` finds.
            earlier = list(read_records(self._dropped_path))
            _write_records(self._dropped_path, earlier + dropped)
        _write_records(self.path, kept)
        self._open()

    def records(self) -> Iterator[Record]:
        """All records, oldest first."""
        return read_records(self.path)

    def close(self) -> None:
        """Closes the file; every record is already with the operating system."""
        self._file.close()

    def _open(self) -> None:
        _remove_torn_line(self.path)
        self._newest: dict[str, int] = {}
        for record in read_records(self.path):
            self._newest.update(dict.fromkeys(record.metrics, record.step))
        self._dropped: dict[tuple[int, str], float] = {}
        for record in read_records(self._dropped_path):
            for name in record.metrics:
                if record.step > self._newest.get(name, -1):
                    self._dropped.setdefault((record.step, name), record.time)
        self._file = self.path.open("ab", buffering=0)

    def _write(self, record: Record) -> None:
        line = _encode(record)
        try:
            written = self._file.write(line)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        if written != len(line):  # a disk that is nearly full takes a part
            self._file.truncate(self._file.tell() - written)
            raise _unwritable(self.path, "disk full")


class JournalReader:
    """Follows a journal another process writes: peeks at new records, and moves on when told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        self._offset = 0
        self._next_offset = 0

    def peek(self, max_metrics: int) -> list[Record]:
        """The next complete records, up to about `max_metrics` metrics, [] when there is none.

        A journal that was replaced or cut back is read again from its beginning.
        """
        file = self._current_file()
        if file is None:
            return []
        file.seek(self._offset)
        records: list[Record] = []
        self._next_offset = self._offset
        num_metrics = 0
        for line in file:
            if not line.endswith(b"\n"):
                break  # being written, or torn
            self._next_offset += len(line)
            record = _decode(line)
            if record is not None:
                records.append(record)
                num_metrics += len(record.metrics)
            if num_metrics >= max_metrics:
                break
        return records

    def advance(self) -> None:
        """Marks what the last `peek` returned as done."""
        self._offset = self._next_offset

    def rewind(self) -> None:
        """Goes back to the first record, for a store that has to be given everything again."""
        self._offset = 0

    def close(self) -> None:
        """Closes the file; the next `peek` opens it again, at its beginning."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _current_file(self) -> BinaryIO | None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return None
        if self._file is not None:
            opened = os.fstat(self._file.fileno())
            if opened.st_ino == status.st_ino and status.st_size >= self._offset:
                return self._file
            self._file.close()
        self._file = self.path.open("rb")
        self._offset = 0
        return self._file


def read_records(path: Path) -> Iterator[Record]:
    """Yields a journal's complete records; nothing for a missing file or a torn last line."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            record = _decode(line) if line.endswith(b"\n") else None
            if record is not None:
                yield record


def last_step(path: Path) -> int:
    """The step of a journal's last record, 0 without one; reads the end of the file only."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 16)))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    records = (_decode(line) for line in reversed(lines) if line.endswith(b"\n"))
    return next((record.step for record in records if record is not None), 0)


def _encode(record: Record) -> bytes:
    return json.dumps(asdict(record), separators=(",", ":")).encode() + b"\n"


def _decode(line: bytes) -> Record | None:
    try:
        record = Record(**json.loads(line))
        return record if isinstance(record.metrics, dict) and type(record.step) is int else None
    except (
        ValueError,
        TypeError,
        RecursionError,
    ):  # zeros after a power cut: that record is gone, the rest is not
        return None


def _write_records(path: Path, records: list[Record]) -> None:
    try:
        with atomic_write(path) as beside, beside.open("wb") as file:
            file.writelines(map(_encode, records))
    except OSError as error:
        raise _unwritable(path, error) from error


def _remove_torn_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end != len(content):
            file.truncate(end)


def _unwritable(path: Path, error: OSError | str) -> UserError:
    return UserError(f"cannot write the journal ({error})", str(path), "free disk space and go on")
