"""TensorBoard: the curves of a training as event files.

Guarantee: a reader shows every step once. A file begins with the mark of a new session, at which readers drop the events of the same and of
later steps from the files before it.
Cost: one append per record. It needs the package tensorboard, and neither TensorFlow nor torch.
Source: SummaryWriter of torch.utils.tensorboard (purge_step), which writes the same events.
"""

from __future__ import annotations

from typing import Any

from stages.training.trackers.tracker import TrackerStart, Values


class TensorboardTracker:
    """Appends to one event file. See `Tracker`."""

    def __init__(self, start: TrackerStart) -> None:
        """Opens a new file in the folder."""
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.events: Any = event_pb2
        self.summaries: Any = summary_pb2
        self.writer: Any = EventFileWriter(str(start.folder))
        self._add(start.step, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def record(self, step: int, values: Values) -> None:
        """Writes one event with a scalar per metric."""
        scalars = [self.summaries.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=self.summaries.Summary(value=scalars))

    def close(self) -> None:
        """Closes the file."""
        self.writer.close()

    def _add(self, step: int, **content: Any) -> None:
        import time

        self.writer.add_event(self.events.Event(wall_time=time.time(), step=step, **content))
        self.writer.flush()
