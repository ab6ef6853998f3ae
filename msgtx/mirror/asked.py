"""What a mirror was asked for, checked."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from msgtx import arguments, errors, units
from msgtx.mirror.ends import PortionLimits
from msgtx.settings import StopSignal
from msgtx.types import MirrorReport

# Called after each portion, and at least each few seconds.
OnProgress = Callable[[MirrorReport], object]
MIRROR_NAME_BYTES: Final = 230  # of a mirror: with the prefix of its transactional id, as long as Kafka's names may be


@dataclass(frozen=True, slots=True)
class Asked:
    """A mirror's settings as `Client.mirror` has them; `outage_timeout` in seconds."""

    name: str
    topics: frozenset[str]
    pattern: re.Pattern[str] | None
    repartition: bool
    skip_removed: bool
    limits: PortionLimits
    rate_limit: int | None
    until_caught_up: bool
    outage_timeout: float | None
    stop: StopSignal | None
    on_progress: OnProgress | None

    def chosen(self, topic: str) -> bool:
        """Return whether a topic of this name is copied."""
        return topic in self.topics or (self.pattern is not None and self.pattern.fullmatch(topic) is not None)


def asked(
    name: object,
    topics: Iterable[str],
    *,
    pattern: object,
    repartition: object,
    on_removed: object,
    max_records: object,
    max_bytes: object,
    rate_limit: object,
    until_caught_up: object,
    outage_timeout: object,
    stop: StopSignal | None,
    on_progress: OnProgress | None,
) -> Asked:
    """Return the settings of a mirror. Raise `ConfigError`, `InvalidRequest`."""
    name, names = arguments.check_name("a mirror", name), frozenset(arguments.topics(topics))
    if len(name.encode()) > MIRROR_NAME_BYTES:
        raise errors.InvalidRequest(
            f"the name of a mirror has at most {MIRROR_NAME_BYTES} bytes", name="name", limit=MIRROR_NAME_BYTES
        )
    if not names and pattern is None:
        raise errors.ConfigError("name the topics to copy, or a pattern", name="topics")
    outage = None if outage_timeout is None else units.seconds("outage_timeout", outage_timeout)
    if outage is not None and outage < 0:
        raise errors.ConfigError(f"outage_timeout must be 0 or more, not {outage_timeout!r}", name="outage_timeout", limit=0)
    return Asked(
        name=name,
        topics=names,
        pattern=None if pattern is None else _expression(pattern),
        repartition=arguments.flag("repartition", repartition),
        skip_removed=arguments.one_of("on_removed", on_removed, ("stop", "skip")) == "skip",
        limits=PortionLimits(
            arguments.whole("max_records", max_records, least=1),
            arguments.whole("max_bytes", units.size("max_bytes", max_bytes), least=1, most=arguments.LARGEST_INT4),
        ),
        rate_limit=None if rate_limit is None else arguments.whole("rate_limit", rate_limit, least=1),
        until_caught_up=arguments.flag("until_caught_up", until_caught_up),
        outage_timeout=outage,
        stop=arguments.stop_signal("stop", stop),
        on_progress=arguments.function("on_progress", on_progress),
    )


def _expression(pattern: object) -> re.Pattern[str]:
    text = arguments.text("pattern", pattern)
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise errors.ConfigError(f"pattern {arguments.shown(text)}: {error}", name="pattern") from error
