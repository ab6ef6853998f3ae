"""Share groups as an administrator sees them (internals: shares)."""

import builtins
import itertools
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Final

from msgtx import arguments, errors, units
from msgtx.admin.groups import named_ids, plan_reset, reset_arguments
from msgtx.admin.settings import read_settings
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.standby import once_shown, read_again
from msgtx.declared.settings import SHARE_GROUP
from msgtx.rules.names import did_you_mean
from msgtx.rules.reset import Target
from msgtx.settings import ShareGroupSettings
from msgtx.store.append.append import PARTITIONS_AT_ONCE
from msgtx.store.fetch.records import count_records
from msgtx.store.groups.groups import delete_group, list_groups
from msgtx.store.shares.shares import (
    ShareState,
    configure_share_group,
    describe_share_groups,
    redrive_dead_letters,
    reset_share_offsets,
    share_group_names,
)
from msgtx.store.topics.topics import describe_topics, partitions_of
from msgtx.types import (
    Isolation,
    OffsetReset,
    RedriveReport,
    ShareGroupDescription,
    SharePartition,
    TopicPartition,
)

STEP: Final = 1000  # dead letters of one SQL transaction: a stop waits for no more


class SharesAdmin:
    """`client.admin.shares`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def configure(self, group: str, settings: ShareGroupSettings) -> None:
        """Change settings of a share group; the first time this makes it, before it has members.

        Other settings stay as they are. Raise `ConfigError` for an unknown setting or value; `GroupNotEmpty` for
        `auto_offset_reset`, `isolation` and `ordering` while it has members.
        """
        group, given = arguments.check_name("a group", group), _read(arguments.mapping("settings", settings))
        with self._engine.connection() as connection:
            configure_share_group(connection, group, given)

    def list(self) -> list[ShareGroupDescription]:
        """Describe the share groups that the role may use or observe, by name."""
        return read_again(
            self._engine.reading, lambda connection: _described(connection, describe_share_groups(connection, None))
        )

    def describe(self, group: str) -> ShareGroupDescription:
        """Describe a share group: its settings, and the records in flight of each partition.

        Raise `GroupNotFound`, and `AuthorizationFailed` for a group that the role may neither use nor observe.
        """
        group = arguments.check_name("a group", group)
        return once_shown(self._engine, lambda connection: _describe(connection, group))

    def delete(self, group: str) -> None:
        """Delete a share group; its dead letters stay. Raise `GroupNotFound`, `GroupNotEmpty` while it has members."""
        group = arguments.check_name("a group", group)
        with self._engine.connection() as connection:
            if group not in share_group_names(connection):
                raise _unknown(connection, group)
            delete_group(connection, group)

    def reset_offsets(
        self,
        group: str,
        target: Target,
        *,
        topics: Iterable[str] | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        dry_run: bool = False,
    ) -> "builtins.list[OffsetReset]":
        """Reset the position of a share group and return the changes; with `dry_run` only that.

        `target`, `topics`, `partitions`: as in `client.admin.groups.reset`; without topics and partitions it is where the
        group has read. Records behind the new offsets are delivered as if for the first time. More than 256 partitions
        are reset in steps, each an SQL transaction: after a failure call it again. Raise `GroupNotFound`,
        `GroupNotEmpty` while it has members, `UnknownTopicOrPartition`, `InvalidRequest`.
        """
        group, dry_run = arguments.check_name("a group", group), arguments.flag("dry_run", dry_run)
        target, topics, partitions = reset_arguments(target, topics, partitions)
        with self._engine.connection() as connection:
            rows = _known(connection, group)
            starts = {row.partition_id: row.start_offset for row in rows if row.partition_id is not None}
            if topics is None and partitions is None:
                names = partitions_of(describe_topics(connection, None).values())
                letters = rows[0].settings["dead_letter_topic"]
                partitions = [names[each] for each in starts if each in names and names[each].topic != letters]
            ids = named_ids(connection, topics, partitions)
            planned = plan_reset(connection, target, ids, starts)
            if not dry_run:
                offsets = [(ids[TopicPartition(one.topic, one.partition)], one.new_offset) for one in planned]
                for at in range(0, len(offsets), PARTITIONS_AT_ONCE):
                    reset_share_offsets(connection, group, dict(offsets[at : at + PARTITIONS_AT_ONCE]))
        return planned

    def redrive(
        self,
        group: str,
        *,
        max_records: int | None = None,
        skip_missing: bool = False,
        stop: threading.Event | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> RedriveReport:
        """Send a share group's dead letters back to the topics that they came from, each once.

        Each step is one SQL transaction of up to 1,000 letters: a killed redrive can be repeated, and two at a time
        send each letter once. Letters that are written during a redrive are left. `skip_missing`: pass over letters
        whose topic is gone. `stop`: it ends after the current step. `progress(sent)`: after each step. Raise
        `GroupNotFound`, `UnknownTopicOrPartition` where a letter's topic is gone (those in front of it are sent),
        `InvalidRequest`.
        """
        group, skip_missing = arguments.check_name("a group", group), arguments.flag("skip_missing", skip_missing)
        if max_records is not None:
            max_records = arguments.whole("max_records", max_records)
        arguments.function("progress", progress)
        arguments.stop_signal("stop", stop)
        left = sys.maxsize if max_records is None else max_records
        sent = skipped = 0
        for partition in itertools.count():
            end = None  # letters that die again during the redrive are left
            while left - sent > 0 and not (stop is not None and stop.is_set()):
                with self._engine.connection() as connection:
                    done = redrive_dead_letters(
                        connection, group, partition, upto=end, most=min(left - sent, STEP), skip_missing=skip_missing
                    )
                if done.upto is None:  # there is no such partition
                    return RedriveReport(sent, skipped)
                end = done.upto
                sent, skipped = sent + done.sent, skipped + done.skipped
                if progress is not None:
                    progress(sent)
                if done.is_over:
                    break
            else:
                break
        return RedriveReport(sent, skipped)


def _read(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings as the database takes them, `by_duration` as PostgreSQL reads it. Raise `ConfigError`."""
    found = read_settings("share group", SHARE_GROUP, settings)
    if back := re.fullmatch(r"by_duration:(\d.*)", str(found.get("auto_offset_reset"))):
        seconds = f"{units.seconds('by_duration', back[1]):f}".rstrip("0").rstrip(".")
        found["auto_offset_reset"] = f"by_duration:PT{seconds}S"
    return found


def describe_now(engine: Engine, group: str) -> ShareGroupDescription:
    """Describe a share group by the primary, before a change of it or after one. Raise `GroupNotFound`."""
    with engine.connection() as connection:
        return _describe(connection, arguments.check_name("a group", group))


def _describe(connection: RawConnection, group: str) -> ShareGroupDescription:
    (found,) = _described(connection, _known(connection, group))
    return found


def _known(connection: RawConnection, group: str) -> list[ShareState]:
    """Return the description of a share group. Raise `GroupNotFound`."""
    if rows := describe_share_groups(connection, [group]):
        return rows
    raise _unknown(connection, group)


def _unknown(connection: RawConnection, group: str) -> errors.GroupNotFound:
    if list_groups(connection, [group]):
        return errors.GroupNotFound(
            f"{group!r} is a consumer group, and no share group: see `msgtx groups`", group=group, reason="consumer group"
        )
    otherwise = "it begins with its first member, or `msgtx shares configure`"
    advice = did_you_mean(group, share_group_names(connection), otherwise=otherwise)
    return errors.GroupNotFound(f"there is no share group {group!r}; {advice}", group=group)


def _described(connection: RawConnection, rows: Iterable[ShareState]) -> list[ShareGroupDescription]:
    topics = describe_topics(connection, None)
    names = partitions_of(topics.values())
    found = []
    for group, states in groupby(rows, key=lambda row: row.group_name):
        known = list(states)
        letters = topics.get(str(known[0].settings["dead_letter_topic"]))
        # Where a redrive would begin.
        positions = dict.fromkeys(letters.partition_ids, 0) if letters is not None else {}
        partitions = []
        for each in known:
            if each.partition_id in positions:
                positions[each.partition_id] = each.next_offset
            elif each.partition_id in names:
                partitions.append(SharePartition(*names[each.partition_id], *each[4:12], each.lag_ms))
        ages = [each.lag_ms for each in partitions if each.lag_ms is not None]
        found.append(
            ShareGroupDescription(
                group=group,
                settings=known[0].settings,
                members=known[0].members,
                lag=sum(each.lag for each in partitions),
                lag_ms=max(ages, default=None),
                dead_letters=sum(count_records(connection, positions, Isolation.READ_COMMITTED).values())
                if known[0].sees_letters
                else None,
                partitions=sorted(partitions, key=lambda each: (each.topic, each.partition)),
            )
        )
    return found
