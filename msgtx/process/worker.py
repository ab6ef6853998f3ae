"""What a worker was told, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from msgtx import arguments
from msgtx.config import read_keywords
from msgtx.declared.settings import WORKER
from msgtx.errors import ConfigError, WrongType
from msgtx.settings import (
    AutoOffsetReset,
    DeadLetter,
    Failure,
    OnCommit,
    Retry,
    Skip,
    Stop,
    StopSignal,
)
from msgtx.types import Acknowledgement

_DECLARED: Final = {one.name for one in WORKER}


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker's settings as `msgtx.settings.WorkerSettings` has them; `idle_timeout` and `outage_timeout` in seconds."""

    group: str
    failure: Failure = Stop()  # noqa: RUF009 - it is frozen
    # make generate: settings.held worker
    share_members: int | None = None
    batch: bool = False
    transaction_ms: int = 100
    auto_offset_reset: AutoOffsetReset = "earliest"
    idle_timeout: float | None = None
    outage_timeout: float | None = None
    max_failures_in_a_row: int = 20
    # end
    stop: StopSignal | None = None
    on_commit: OnCommit | None = None
    consumer_config: Mapping[str, object] | None = None

    @property
    def dead_letter(self) -> str | None:
        """The topic for records on which it gives up."""
        return self.failure.topic if isinstance(self.failure, DeadLetter) else None

    @property
    def sets_aside(self) -> bool:
        """Whether it commits the offset of a record on which it gives up."""
        return isinstance(self.failure, Skip | DeadLetter)

    @property
    def retries(self) -> int | None:
        """How often it tries a record again before it gives up; None: without a limit."""
        return self.failure.after if isinstance(self.failure, Retry | Skip | DeadLetter) else None


def worker_of(group: object, settings: Mapping[str, Any], *, failure: Failure, after: int) -> tuple[Worker, dict[str, Any]]:
    """Return a worker and the settings that are not its own. Raise `ConfigError`, `WrongType`.

    `failure` and `after`: what it does unless `settings` say it, and after how many retries it sets a record aside.
    """
    own = {name: value for name, value in settings.items() if name in Worker.__dataclass_fields__}
    rest = {name: value for name, value in settings.items() if name not in own}
    if "retries" in rest:
        raise ConfigError(
            "a worker takes no retries: failure=msgtx.Retry(5), DeadLetter(topic, 5) or Skip(5) says how often it tries a"
            " record again, delivery_timeout_ms how long a batch is sent",
            name="retries",
        )
    checked = read_keywords(WORKER, {name: own.pop(name) for name in [*own] if name in _DECLARED})
    given = Worker(arguments.check_name("a group", group), **{"failure": failure, **own, **checked})
    arguments.function("on_commit", given.on_commit)
    arguments.stop_signal("stop", given.stop)
    if given.share_members is not None and given.auto_offset_reset == "none":
        raise ConfigError(
            "with share_members auto_offset_reset is earliest or latest: it says where a new share group begins",
            name="auto_offset_reset",
        )
    return replace(given, failure=_failure(given, after)), rest


def _failure(worker: Worker, after: int) -> Failure:
    """Return the treatment of a record on which the function fails. Raise `WrongType`."""
    match worker.failure, worker.share_members:
        case (Stop(), _) | (Retry(), None) | (Acknowledgement.RELEASE | Acknowledgement.REJECT, int()):
            return worker.failure
        case Skip() | DeadLetter() as failure, None:
            return replace(failure, after=after) if failure.after is None else failure
        case other, None:
            raise WrongType(
                f"failure is Retry(), DeadLetter(topic), Skip() or Stop(), not {arguments.shown(other)}", name="failure"
            )
        case other, _:
            raise WrongType(
                "with share_members failure is Acknowledgement.RELEASE, Acknowledgement.REJECT or Stop(), not"
                f" {arguments.shown(other)}: the share group has retries and dead letters of its own",
                name="failure",
            )
