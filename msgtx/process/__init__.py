"""Workers: the loops that `client.process` and `client.process_into` run."""

from msgtx.process.failures import Failures, Patience
from msgtx.process.into import Into, IntoAsync, Rider, require_handler
from msgtx.process.loop import RETRIES, Loop, Work
from msgtx.process.shares import Part, run_shared, together
from msgtx.process.transform import POLLS, ConsumerInput, Filler, Outputs, Transform, outputs
from msgtx.process.watched import watched, watched_call
from msgtx.process.words import tell_end, tell_start
from msgtx.process.worker import Worker, worker_of

__all__ = [
    "POLLS",
    "RETRIES",
    "ConsumerInput",
    "Failures",
    "Filler",
    "Into",
    "IntoAsync",
    "Loop",
    "Outputs",
    "Part",
    "Patience",
    "Rider",
    "Transform",
    "Work",
    "Worker",
    "outputs",
    "require_handler",
    "run_shared",
    "tell_end",
    "tell_start",
    "together",
    "watched",
    "watched_call",
    "worker_of",
]
