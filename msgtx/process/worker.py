"""What a worker was told, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from msgtx import arguments, units
from msgtx.declared.settings import MOST_SHARE_MEMBERS
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
    given = Worker(arguments.check_name("a group", group), **{"failure": failure, **own})
    arguments.one_of("auto_offset_reset", given.auto_offset_reset, get_args(AutoOffsetReset))
    arguments.function("on_commit", given.on_commit)
    arguments.stop_signal("stop", given.stop)
    if given.share_members is not None:
        arguments.whole("share_members", given.share_members, least=1, most=MOST_SHARE_MEMBERS)
        if "auto_offset_reset" in own:
            raise ConfigError(
                "with share_members auto_offset_reset is left out: it is a setting of the share group",
                name="auto_offset_reset",
            )
    lasting = units.milliseconds("transaction_ms", given.transaction_ms)
    if lasting <= 0:
        raise ConfigError(f"transaction_ms must be above 0, not {given.transaction_ms!r}", name="transaction_ms", limit=0)
    idle, outage = _seconds("idle_timeout", given.idle_timeout), _seconds("outage_timeout", given.outage_timeout)
    arguments.whole("max_failures_in_a_row", given.max_failures_in_a_row, least=1)
    chosen = _failure(given, after)
    batch = arguments.flag("batch", given.batch)
    whole = replace(given, failure=chosen, batch=batch, transaction_ms=lasting, idle_timeout=idle, outage_timeout=outage)
    return whole, rest


def _seconds(name: str, value: units.Duration | None) -> float | None:
    seconds = None if value is None else units.seconds(name, value)
    if seconds is not None and seconds < 0:
        raise ConfigError(f"{name} must be 0 or more, not {value!r}", name=name, limit=0)
    return seconds


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
