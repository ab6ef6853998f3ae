"""Workers: the loops that `client.process` and `client.process_into` run."""

from msgtx.process.into import Into, IntoAsync, Rider, require_handler
from msgtx.process.loop import DRAIN_SECONDS, RETRIES, Ending, Work, run_loop
from msgtx.process.shares import Part, run_shared, together
from msgtx.process.transform import POLLS, Filler, Outputs, Transform, outputs, process
from msgtx.process.watched import watched, watched_call
from msgtx.process.worker import Worker, worker_of

__all__ = [
    "DRAIN_SECONDS",
    "POLLS",
    "RETRIES",
    "Ending",
    "Filler",
    "Into",
    "IntoAsync",
    "Outputs",
    "Part",
    "Rider",
    "Transform",
    "Work",
    "Worker",
    "outputs",
    "process",
    "require_handler",
    "run_loop",
    "run_shared",
    "together",
    "watched",
    "watched_call",
    "worker_of",
]
