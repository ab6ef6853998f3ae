"""What a worker's log says of its life: start, partitions, members for which it waits, and end."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import Final

from msgtx import units
from msgtx.errors import MsgtxError
from msgtx.process.worker import Worker
from msgtx.types import MemberDescription, ProcessReport, TopicPartition

log = logging.getLogger("msgtx.process")
FIRST_LOOK_SECONDS: Final = 1.0  # without partitions: a group that divides them takes less
NEXT_LOOK_SECONDS: Final = 5.0
SILENT_PART: Final = 5  # a member is silent after this part of its session: it sends three heartbeats in that time
_UNSAID: Final = frozenset({"group", "stop", "on_commit", "consumer_config"})


def tell_start(worker: Worker, topics: Sequence[str]) -> None:
    """Log the start of a worker, with the settings that are not their defaults."""
    own = [each for each in fields(Worker) if each.name not in _UNSAID]
    given = [f"{each.name}={getattr(worker, each.name)!r}" for each in own if getattr(worker, each.name) != each.default]
    log.info("group %r: a worker starts on %s%s", worker.group, ", ".join(topics), f" ({', '.join(given)})" if given else "")


def tell_end(worker: Worker, report: ProcessReport) -> None:
    """Log the end of a worker, with its totals."""
    log.info(
        "group %r: the worker ends: %s in, %s out, %s failed, %s committed, %s aborted, in %s",
        worker.group,
        units.counted(report.records_in, "record"),
        f"{report.records_out:,}",
        f"{report.failed:,}",
        units.counted(report.transactions, "transaction"),
        f"{report.aborted:,}",
        units.lasting(report.seconds),
    )


class Partitions:
    """The partitions of a worker, as its log tells of them. `members`: asks for the members of its group."""

    def __init__(self, group: str, members: Callable[[], Sequence[MemberDescription]]) -> None:
        self._group = group
        self._members = members
        self._known: Collection[TopicPartition] = frozenset()
        self._next_look = 0.0
        self._told: set[tuple[str, int]] = set()  # silent members, with their last heartbeats

    def look(self, assigned: Collection[TopicPartition]) -> None:
        """Log what has changed. Without partitions, look for a silent member that has them."""
        if assigned != self._known:
            for event, found in (("got", set(assigned) - set(self._known)), ("gave up", set(self._known) - set(assigned))):
                if found:
                    log.info("group %r: this worker %s %s", self._group, event, ", ".join(map(str, sorted(found))))
            self._known = assigned
            self._next_look = time.monotonic() + FIRST_LOOK_SECONDS
        if not assigned:
            now = time.monotonic()
            self._next_look = self._next_look or now + FIRST_LOOK_SECONDS
            if now >= self._next_look:
                self._next_look = now + NEXT_LOOK_SECONDS
                self._look_for_silent_ones()

    def _look_for_silent_ones(self) -> None:
        try:
            members = self._members()
        except MsgtxError as error:  # the role may not look, or the database is away: the worker itself finds out
            log.debug("group %r: %s", self._group, error)
            return
        self._told &= {(each.member_id, each.heartbeat_at) for each in members}
        now = max((each.heartbeat_at for each in members), default=0)  # this worker's own, by the database's clock
        for each in members:
            is_silent = now - each.heartbeat_at > each.session_timeout_ms / SILENT_PART
            if each.owned and is_silent and (each.member_id, each.heartbeat_at) not in self._told:
                self._told.add((each.member_id, each.heartbeat_at))
                log.info(
                    "group %r: waits for %s of member %s (%s, process %s), silent since %s, until %s",
                    self._group,
                    units.counted(len(each.owned), "partition"),
                    each.group_instance_id or each.member_id,
                    each.client_host,
                    each.client_process,
                    _at(each.heartbeat_at),
                    _at(each.heartbeat_at + each.session_timeout_ms),
                )


def _at(milliseconds: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(milliseconds / 1000))
