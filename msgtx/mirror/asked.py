"""What a mirror was asked for, checked."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgtx import arguments, errors
from msgtx.config import read_keywords
from msgtx.declared.settings import MIRROR
from msgtx.mirror.ends import PortionLimits
from msgtx.settings import OnProgress, OnRemoved, StopSignal

MIRROR_NAME_BYTES: Final = 230  # of a mirror: with the prefix of its transactional id, as long as Kafka's names may be


@dataclass(frozen=True, slots=True)
class Asked:
    """A mirror's settings as `msgtx.settings.MirrorSettings` has them; `outage_timeout` in seconds."""

    name: str
    topics: frozenset[str]
    # make generate: settings.held mirror
    pattern: str | None = None
    repartition: bool = False
    on_removed: OnRemoved = "stop"
    max_records: int = 20_000
    max_bytes: int = 4_000_000
    rate_limit: int | None = None
    until_caught_up: bool = False
    outage_timeout: float | None = None
    # end
    stop: StopSignal | None = None
    on_progress: OnProgress | None = None

    @property
    def limits(self) -> PortionLimits:
        """The size of a portion."""
        return PortionLimits(self.max_records, self.max_bytes)

    @property
    def skip_removed(self) -> bool:
        """Whether it goes on where the log starts if retention was faster."""
        return self.on_removed == "skip"

    def chosen(self, topic: str) -> bool:
        """Return whether a topic of this name is copied."""
        return topic in self.topics or (self.pattern is not None and re.fullmatch(self.pattern, topic) is not None)


def asked(name: object, topics: Iterable[str], settings: Mapping[str, Any]) -> Asked:
    """Return the settings of a mirror. Raise `ConfigError`, `InvalidRequest`, `WrongType`."""
    name, names = arguments.check_name("a mirror", name), frozenset(arguments.topics(topics))
    if len(name.encode()) > MIRROR_NAME_BYTES:
        raise errors.InvalidRequest(
            f"the name of a mirror has at most {MIRROR_NAME_BYTES} bytes", name="name", limit=MIRROR_NAME_BYTES
        )
    declared = dict(settings)
    stop = arguments.stop_signal("stop", declared.pop("stop", None))
    on_progress = arguments.function("on_progress", declared.pop("on_progress", None))
    whole = Asked(name, names, stop=stop, on_progress=on_progress, **read_keywords(MIRROR, declared))
    if not names and whole.pattern is None:
        raise errors.ConfigError("name the topics to copy, or a pattern", name="topics")
    if whole.pattern is not None:
        _require_expression(whole.pattern)
    return whole


def _require_expression(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise errors.ConfigError(f"pattern {arguments.shown(pattern)}: {error}", name="pattern") from error
