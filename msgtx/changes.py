"""Changes that an administrator confirms: each with a preview, for every door that asks before it acts.

The command line (`--dry-run`, `--yes`) and the console (`--allow-changes`) take them from one table, `CHANGES`. A preview
fixes what its arguments left open (the new offsets of a reset by time, the log end, the number of dead letters), and carries
the state that it depends on. `apply` compares this state and refuses an outdated preview.
"""

import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from msgtx import errors
from msgtx.rows import PLACE_COLUMNS, mirror_row, printable, row_of
from msgtx.rules.group import GroupStatus
from msgtx.rules.names import did_you_mean
from msgtx.scopes import Scopes, scope_words, target_words
from msgtx.types import (
    GroupDescription,
    GroupListing,
    MirrorDescription,
    OffsetReset,
    Outcome,
    PreparedTransaction,
    ShareGroupDescription,
    TopicPartition,
    TransactionId,
)
from msgtx.units import counted

if TYPE_CHECKING:
    from msgtx.client import Client
    from msgtx.rules.reset import Target

Fields = Mapping[str, Any]
RESET_COLUMNS: Final = ("group", "topic", "partition", "current_offset", "new_offset", "note")


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect of a change that was not made yet.

    `says`: in words, as they follow "would"; `rows`: the objects that change; `arguments`: with all that was left open
    fixed; `state`: the change is refused if this has changed; `command`: of the command line. `refusal`: why it would be
    refused now. `asks`: whether there is anything to confirm: a decided transaction has nothing.
    """

    verb: str
    arguments: Mapping[str, Any]
    says: str
    state: object
    command: str
    columns: Sequence[str] = ()
    rows: Sequence[Fields] = ()
    refusal: errors.MsgtxError | None = None
    asks: bool = True


@dataclass(frozen=True, slots=True)
class Control:
    """How a long change hears that it is to end, and tells its progress."""

    stop: threading.Event | None = None
    progress: Callable[[int], None] | None = None


UNWATCHED: Final = Control()


@dataclass(frozen=True, slots=True)
class Change:
    """A row of the table. `verb`: of the command line; `label`: of a button; `right`: the one that `db grant` gives.

    `preview`, `perform`: both take the change's arguments, by their names.
    """

    verb: str
    label: str
    right: str
    preview: Callable[..., Preview]
    perform: Callable[..., Fields | None]


def preview(client: "Client", verb: str, /, **arguments: Any) -> Preview:
    """Return what a change would do; nothing is changed. Raise what the change raises for these arguments."""
    return CHANGES[verb].preview(client, **arguments)


def apply(client: "Client", asked: Preview, control: Control = UNWATCHED) -> Fields | None:
    """Make the change of a preview, and return its result. Raise `PreviewOutdated` if the state has changed since."""
    if preview(client, asked.verb, **asked.arguments).state != asked.state:
        raise errors.PreviewOutdated(f"the change was not made, since its preview is outdated: {printable(asked.says)}")
    return perform(client, asked.verb, asked.arguments, control)


def perform(client: "Client", verb: str, arguments: Mapping[str, Any], control: Control = UNWATCHED) -> Fields | None:
    """Make a change of which nobody has seen a preview."""
    return CHANGES[verb].perform(client, control, **arguments)


# ── transactions ──


def _preview_abort(client: "Client", *, transaction_id: TransactionId) -> Preview:
    outcome = client.admin.transactions.outcome(transaction_id).outcome
    return Preview(
        "transactions abort",
        {"transaction_id": transaction_id},
        f"abort transaction {transaction_id} ({outcome})",
        outcome,
        _command("transactions abort", [transaction_id]),
        # A decided transaction needs no question: the call is refused, or was made before.
        asks=outcome is Outcome.OPEN,
    )


def _abort(client: "Client", _: Control, *, transaction_id: TransactionId) -> Fields:
    client.admin.transactions.abort(transaction_id)
    return _outcome(client, transaction_id)


def _preview_complete(client: "Client", *, token: PreparedTransaction, commit: bool) -> Preview:
    outcome = client.admin.transactions.outcome(token.transaction_id).outcome
    word = "commit" if commit else "abort"
    return Preview(
        "transactions complete",
        {"token": token, "commit": commit},
        f"{word} transaction {token.transaction_id} ({outcome})",
        outcome,
        _command("transactions complete", [token], [f"--{word}"]),
        asks=outcome is Outcome.OPEN,
    )


def _complete(client: "Client", _: Control, *, token: PreparedTransaction, commit: bool) -> Fields:
    client.complete(token, commit=commit)
    return _outcome(client, token.transaction_id)


def _outcome(client: "Client", transaction_id: TransactionId) -> Fields:
    return {"transaction_id": transaction_id, **row_of(client.admin.transactions.outcome(transaction_id))}


def _preview_fence(client: "Client", *, transactional_id: str) -> Preview:
    found = client.admin.transactions.describe(transactional_id)
    return Preview(
        "transactions fence",
        {"transactional_id": transactional_id},
        f"fence {transactional_id!r} (producer {found.producer_id}, epoch {found.producer_epoch}, {found.state})",
        # Not its transaction: a producer that is to be fenced may begin one after the other.
        (found.producer_id, found.producer_epoch),
        _command("transactions fence", [transactional_id]),
    )


def _fence(client: "Client", _: Control, *, transactional_id: str) -> Fields:
    return {"transactional_id": transactional_id, **client.admin.transactions.fence(transactional_id)._asdict()}


# ── groups ──


def _preview_reset(client: "Client", *, group: str, target: "Target", scopes: Scopes | None) -> Preview:
    return _reset_preview(client, "groups", group, target, scopes)


def _preview_share_reset(client: "Client", *, group: str, target: "Target", scopes: Scopes | None) -> Preview:
    return _reset_preview(client, "shares", group, target, scopes)


def _reset_preview(client: "Client", noun: str, group: str, target: "Target", scopes: Scopes | None) -> Preview:
    """`scopes`: None for all partitions on which the group has an offset, or those that the target names."""
    plan = client.admin.groups.reset if noun == "groups" else client.admin.shares.reset_offsets
    found = plan(group, target, partitions=None if scopes is None else partitions_named(client, scopes), dry_run=True)
    rows = [{"group": group, **row_of(one)} for one in found]
    return Preview(
        f"{noun} reset-offsets",
        {
            "group": group,
            # These offsets and no others: by a time they might be other ones at the next look.
            "target": {TopicPartition(one.topic, one.partition): one.new_offset for one in found},
            "scopes": None,
        },
        f"reset {counted(len(rows), 'offset')} of {'share ' if noun == 'shares' else ''}group {group!r}",
        _state_of_reset(client, found),
        _command(f"{noun} reset-offsets", [group], [*scope_words(scopes), *target_words(target)]),
        RESET_COLUMNS,
        rows,
        refusal=_not_empty(_listed(client, group) if noun == "groups" else share_now(client, group)),
        asks=bool(rows),
    )


def _state_of_reset(client: "Client", found: Iterable[OffsetReset]) -> object:
    offsets = {(one.topic, one.partition): one.current_offset for one in found}
    return offsets, _identities(client, sorted({topic for topic, _ in offsets}))


def _reset(client: "Client", _: Control, *, group: str, target: "Target", scopes: Scopes | None) -> None:
    if target:
        client.admin.groups.reset(group, target)


def _reset_share(client: "Client", _: Control, *, group: str, target: "Target", scopes: Scopes | None) -> None:
    if target:
        client.admin.shares.reset_offsets(group, target)


def _preview_delete_offsets(client: "Client", *, group: str, scopes: Scopes) -> Preview:
    found = {TopicPartition(one.topic, one.partition): one for one in known_group(client, group).partitions}
    asked = partitions_named(client, scopes)
    rows = [
        {"group": group, "topic": one.topic, "partition": one.partition, "current_offset": one.current_offset}
        for partition, one in found.items()
        if partition in asked and (one.current_offset is not None or one.pending)
    ]
    return Preview(
        "groups delete-offsets",
        {"group": group, "scopes": scopes},
        f"delete {counted(len(rows), 'offset')} of group {group!r}",
        (rows, _identities(client, sorted({topic for topic, _ in asked}))),
        _command("groups delete-offsets", [group], scope_words(scopes)),
        RESET_COLUMNS[:4],
        rows,
        asks=bool(rows),
    )


def _delete_offsets(client: "Client", _: Control, *, group: str, scopes: Scopes) -> None:
    client.admin.groups.delete_offsets(group, partitions_named(client, scopes))


def _preview_delete_group(client: "Client", *, group: str) -> Preview:
    found = known_group(client, group)
    if refusal := _not_empty(found):
        raise refusal
    kept = [one for one in found.partitions if one.current_offset is not None or one.pending]
    rows = [{name: getattr(one, name) for name in ("topic", "partition", "current_offset", "pending")} for one in kept]
    return Preview(
        "groups delete",
        {"group": group},
        f"delete group {group!r} ({counted(len(rows), 'offset')})",
        rows,
        _command("groups delete", [group]),
        ("topic", "partition", "current_offset"),
        rows,
    )


def _delete_group(client: "Client", _: Control, *, group: str) -> None:
    client.admin.groups.delete(group)


def known_group(client: "Client", group: str) -> GroupDescription:
    """Describe a consumer group. Raise `GroupNotFound` with advice: a share group, or a similar name."""
    found = client.admin.groups.describe(group)
    if found.state == GroupStatus.DEAD and group not in {
        listed.group for listed in client.admin.groups.list([GroupStatus.DEAD])
    }:
        if group in {listed.group for listed in client.admin.shares.list()}:
            raise errors.GroupNotFound(
                f"there is no consumer group {group!r}; it is a share group, see `msgtx shares`", group=group
            )
        known = [listed.group for listed in client.admin.groups.list()]
        advice = did_you_mean(group, known, otherwise="a group begins with its first commit or member")
        raise errors.GroupNotFound(f"there is no consumer group {group!r}; {advice}", group=group)
    return found


def _listed(client: "Client", group: str) -> GroupListing | None:
    """Return a group without its lag, which takes seconds for 10,000 partitions. None: it is Dead."""
    return next((each for each in client.admin.groups.list() if each.group == group), None)


def _not_empty(found: GroupDescription | GroupListing | ShareGroupDescription | None) -> errors.GroupNotEmpty | None:
    if found is None or not found.members:
        return None
    members = counted(found.members, "member")
    if isinstance(found, ShareGroupDescription):
        return errors.GroupNotEmpty(f"share group {found.group!r} has {members}", group=found.group)
    return errors.GroupNotEmpty(f"group {found.group!r} is {found.state} and has {members}", group=found.group)


# ── share groups ──


def share_now(client: "Client", group: str) -> ShareGroupDescription:
    """Return a share group as the primary has it. The import is here: the help of a command needs no driver."""
    from msgtx.admin.shares import describe_now

    return describe_now(client.runtime.engine, group)


def _preview_delete_share(client: "Client", *, group: str) -> Preview:
    found = share_now(client, group)
    if refusal := _not_empty(found):
        raise refusal
    names = ("topic", "partition", "start_offset", "next_offset")
    rows = [{name: getattr(one, name) for name in (*names, "lag")} for one in found.partitions]
    return Preview(
        "shares delete",
        {"group": group},
        f"delete share group {group!r} ({counted(found.lag, 'record')} not done)",
        # Not the lag: it grows with every record that is written.
        (found.settings, [[row[name] for name in names] for row in rows]),
        _command("shares delete", [group]),
        (*names, "lag"),
        rows,
    )


def _delete_share(client: "Client", _: Control, *, group: str) -> None:
    client.admin.shares.delete(group)


def _preview_redrive(client: "Client", *, group: str, max_records: int | None, skip_missing: bool) -> Preview:
    known = share_now(client, group).dead_letters  # None: the role may not see them
    counts = [count for count in (known, max_records) if count is not None]
    letters = min(counts) if counts else None
    shown = "the dead letters" if letters is None else counted(letters, "dead letter")
    limit = [] if max_records is None else ["--max-messages", max_records]
    return Preview(
        "shares redrive",
        # So many, and not those that die later.
        {"group": group, "max_records": letters, "skip_missing": skip_missing},
        f"send {shown} of share group {group!r} back",
        letters,
        _command("shares redrive", [group], [*limit, *(["--skip-missing"] if skip_missing else [])]),
        asks=letters != 0,
    )


def _redrive(client: "Client", control: Control, *, group: str, max_records: int | None, skip_missing: bool) -> Fields:
    report = client.admin.shares.redrive(
        group, max_records=max_records, skip_missing=skip_missing, stop=control.stop, progress=control.progress
    )
    return {"group": group, **row_of(report)}


# ── topics ──


def _preview_delete_topic(client: "Client", *, topic: str) -> Preview:
    found = client.topics.describe(topic)
    return Preview(
        "topics delete",
        {"topic": topic},
        f"delete topic {topic} ({counted(found.partitions, 'partition')}, with its records)",
        # Not the log ends: it may be written to.
        _identities(client, [topic]),
        _command("topics delete", [topic]),
    )


def _delete_topic(client: "Client", _: Control, *, topic: str) -> None:
    client.topics.delete(topic)


def _preview_delete_records(client: "Client", *, topic: str, partition: int, before: int) -> Preview:
    """`before`: the first offset that stays; −1: the log end of now."""
    place = TopicPartition(topic, partition)
    ends = client.admin.partitions.describe(place)
    upto = ends.log_end_offset if before == -1 else before
    extent = f"it goes from {ends.log_start_offset} to {ends.log_end_offset}"
    if upto > ends.log_end_offset:
        raise errors.OffsetOutOfRange(f"{place}: offset {upto} is not in the log; {extent}", at=place, offset=upto)
    return Preview(
        "topics delete-records",
        {"topic": topic, "partition": partition, "before": upto},
        f"delete the records of {place} below offset {upto} ({extent})",
        _identities(client, [topic]),
        _command("topics delete-records", [topic], ["--partition", partition, "--before", upto]),
    )


def _delete_records(client: "Client", _: Control, *, topic: str, partition: int, before: int) -> Fields:
    place = TopicPartition(topic, partition)
    start = client.admin.partitions.delete_records({place: before})[place]
    return {"topic": topic, "partition": partition, "log_start_offset": start}


def _preview_delete_snapshot(client: "Client", *, name: str) -> Preview:
    cut = client.snapshots.get(name)
    return Preview(
        "offsets delete-snapshot",
        {"name": name},
        f"delete snapshot {name!r}",
        cut,
        _command("offsets delete-snapshot", [name]),
    )


def _delete_snapshot(client: "Client", _: Control, *, name: str) -> None:
    client.snapshots.delete(name)


# ── mirrors ──


def reset_of_mirror(found: MirrorDescription) -> str:
    """Return the effect of a mirror's reset in words."""
    return f"forget mirror {found.name!r}, which has copied {counted(found.records, 'record')}: it copies all of them again"


def _preview_reset_mirror(client: "Client", *, name: str) -> Preview:
    found = client.admin.mirrors.describe(name)
    return Preview(
        "mirror reset",
        {"name": name},
        reset_of_mirror(found),
        # Not its progress: it may run.
        (found.source, found.source_address, found.started_at),
        _command("mirror reset", [name]),
        PLACE_COLUMNS,
        mirror_row(found)["places"],
    )


def _reset_mirror(client: "Client", _: Control, *, name: str) -> None:
    client.admin.mirrors.reset(name)


def _identities(client: "Client", topics: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the ids of the partitions of topics: a topic that is deleted and made anew has others."""
    from msgtx.store.topics.topics import require_topics

    with client.runtime.engine.connection() as connection:
        return {name: found.partition_ids for name, found in require_topics(connection, topics).items()}


# ── arguments ──


def partitions_named(client: "Client", scopes: Scopes) -> set[TopicPartition]:
    """Return the partitions that are meant. Raise `UnknownTopicOrPartition`."""
    found = set()
    for topic, indexes in scopes:
        count = client.topics.describe(topic).partitions
        for index in range(count) if indexes is None else indexes:
            if index >= count:
                raise errors.UnknownTopicOrPartition(
                    f"there is no partition {topic}-{index}; {topic} has {count}", topic=topic, partition=index
                )
            found.add(TopicPartition(topic, index))
    return found


def _command(verb: str, names: Sequence[object], options: Sequence[object] = ()) -> str:
    """Return a command line. Behind `--`, a name that begins with a hyphen is no option."""
    named, given = [*map(str, names)], [*map(str, options)]
    has_hyphen = any(name.startswith("-") for name in named)
    return shlex.join(["msgtx", *verb.split(), *([*given, "--", *named] if has_hyphen else [*named, *given])])


CHANGES: Final[Mapping[str, Change]] = {
    each.verb: each
    for each in (
        Change("transactions abort", "Abort", "admin", _preview_abort, _abort),
        Change("transactions complete", "Complete", "produce", _preview_complete, _complete),
        Change("transactions fence", "Fence its producer", "admin", _preview_fence, _fence),
        Change("groups reset-offsets", "Reset offsets", "admin", _preview_reset, _reset),
        Change("groups delete-offsets", "Delete offsets", "admin", _preview_delete_offsets, _delete_offsets),
        Change("groups delete", "Delete group", "admin", _preview_delete_group, _delete_group),
        Change("shares redrive", "Redrive dead letters", "produce", _preview_redrive, _redrive),
        Change("shares reset-offsets", "Reset offsets", "admin", _preview_share_reset, _reset_share),
        Change("shares delete", "Delete share group", "admin", _preview_delete_share, _delete_share),
        Change("topics delete-records", "Delete records", "admin", _preview_delete_records, _delete_records),
        Change("topics delete", "Delete topic", "admin", _preview_delete_topic, _delete_topic),
        Change("mirror reset", "Reset", "admin", _preview_reset_mirror, _reset_mirror),
        Change("offsets delete-snapshot", "Delete snapshot", "consume", _preview_delete_snapshot, _delete_snapshot),
    )
}
