"""Every error of msgtx, as one module.

Four families tell a caller what to do: `RetriableError` (the library retries by itself), `AbortableError` (abort the
transaction, begin again), `FatalError` (close the producer, make a new one), `UsageError` (fix the program). The first
line of each docstring describes the error, the second is the advice. Everything else that depends on the kind of an
error is an attribute of its class. Source: internals: errors-and-retries.
"""

from enum import IntEnum
from typing import Any, ClassVar, Final, TypeVar

Raised = TypeVar("Raised", bound=BaseException)


class Fault(IntEnum):
    """The party at fault for an exception, which decides a worker's reaction. Of several in one chain the highest counts."""

    RECORD = 0  # the record's, or that of the function: the same record fails again
    ENVIRONMENT = 1  # rights, limits, missing objects: no record's, and it stays until somebody acts
    TRANSIENT = 2  # a deadlock, a serialization failure, a lock: the same transaction may succeed at once
    OUTAGE = 3  # the database or the way to it: the same transaction may succeed when it is back
    INTERRUPT = 4  # Ctrl-C, an exit, a cancelled task: no failure


class MsgtxError(Exception):
    """Something msgtx did not do. The subclass says what to do about it.

    The message is a sentence that names every value involved. Some of these values are attributes of the error, too.
    """

    code: ClassVar[int | None] = None  # Kafka's number, if Kafka has one; SQL raises it as "MX" and the number
    retriable: ClassVar[bool] = False
    requires_abort: ClassVar[bool] = False
    fatal: ClassVar[bool] = False
    outcome_unknown: ClassVar[bool] = False
    fault: ClassVar[Fault] = Fault.RECORD
    exit_code: ClassVar[int] = 1  # of a command: 1 failed, 2 wrong usage, 3 no database, 4 fenced or aborted
    advises: ClassVar[bool] = False  # its sentences say what to do, and the command line adds nothing

    # What the sentence is about; None where it names no such thing.
    topic: str | None = None
    partition: int | None = None
    partition_id: int | None = None  # where SQL names no topic
    offset: int | None = None
    group: str | None = None
    member_id: str | None = None
    transactional_id: str | None = None
    producer_id: int | None = None
    role: str | None = None
    right: str | None = None
    name: str | None = None  # of a setting or an argument
    given: Any = None  # its value
    limit: Any = None  # the bound that was not kept, or the end of the log
    reason: str | None = None  # one word or two: the case of the class

    def __init__(self, *message: str, at: tuple[str, int] | None = None, **values: Any) -> None:
        """`at`: the topic and the partition."""
        super().__init__(*message)
        if at is not None:
            self.topic, self.partition = at
        vars(self).update(values)


class RetriableError(MsgtxError):
    """A passing condition. Nothing to do: the library retries until `delivery_timeout_ms`."""

    retriable = True
    fault = Fault.TRANSIENT


class AbortableError(MsgtxError):
    """This transaction cannot be committed. Abort it and begin again."""

    requires_abort = True
    fault = Fault.TRANSIENT


class FatalError(MsgtxError):
    """This producer can do nothing more. Close it and make a new one."""

    fatal = True
    fault = Fault.ENVIRONMENT


class UsageError(MsgtxError, ValueError):
    """The call is wrong. Fix the program; nothing was changed."""

    exit_code = 2


class DatabaseUnavailable(RetriableError):
    """The database cannot be reached, or ended the connection.

    Check the address and the server; the library goes on by itself when it is back in time.
    """

    code = 7
    fault = Fault.OUTAGE
    exit_code = 3


class KafkaUnavailable(RetriableError):
    """The Kafka cluster of a mirror cannot be reached, or did not answer in time.

    Check the address and the brokers; the mirror goes on by itself when they are back.
    """

    fault = Fault.OUTAGE
    exit_code = 3


class CoordinatorNotAvailable(RetriableError):
    """No coordinator holds a living lease on the shard.

    Start `msgtx coordinator run`; clients' own decisions do not need it.
    """

    code = 15


class NotCoordinator(RetriableError):
    """This coordinator does not lease the shard.

    Ask `find_coordinator` again.
    """

    code = 16


class ConcurrentTransactions(RetriableError):
    """An earlier transaction of this producer is still undecided.

    Wait: its decision is on the way, or its timeout ends it.
    """

    code = 51


class UnstableOffset(RetriableError):
    """The group's offset is part of a sealed, undecided transaction.

    Wait, or ask with `require_stable=False`.
    """

    code = 88


class RebalanceInProgress(RetriableError):
    """The group is being rebalanced.

    Poll again, then commit.
    """

    code = 27


class LockTimeout(RetriableError):
    """A lock in the database was not granted in time.

    Look with `pg_stat_activity` who holds it; the library tries again.
    """


class LockTableFull(RetriableError):
    """PostgreSQL's table of locks is full: too many calls to too many partitions at once.

    Raise max_locks_per_transaction (a restart), or have fewer sessions write to so many partitions; `msgtx doctor` counts.
    """


class ThreadNotStarted(RetriableError):
    """The system gave the process no further thread.

    Raise the limit of threads (`ulimit -u`, or pids.max of the container) or the memory; the library tries again.
    """


class OutOfOrderSequence(AbortableError):
    """The batch's sequence does not follow the last one stored.

    In a transaction: abort. Outside, the producer recovers by itself.
    """

    code = 45


class IllegalGeneration(AbortableError):
    """The group's generation is not the one that the member knows.

    Abort, poll, and go on with the partitions that are yours now.
    """

    code = 22


class UnknownMember(AbortableError):
    """The group has no such member (any more).

    Join again, or commit without a member while the group has no active ones.
    """

    code = 25


class InvalidRecordState(AbortableError):
    """An acknowledgement does not hold: the record's lock has expired, or another member has it, or it is acknowledged.

    Call `commit` again: what was refused is forgotten, the rest is applied. Others may have done the record's work.
    """

    code = 121


class TransactionConflict(AbortableError):
    """A record is acknowledged already, in a transaction that is not decided.

    Wait for that one to end, or abort this one: if that one is aborted, the record is delivered again.
    """


class NotAssigned(AbortableError):
    """The partition does not belong to this member.

    Commit offsets only of partitions in `assignment()`.
    """


class FencedInstance(AbortableError):
    """Another member took over this `group_instance_id`.

    Stop this one; ids of static members are unique.
    """

    code = 82
    exit_code = 4


class TransactionAborted(AbortableError):
    """The transaction was ended with ABORT by a timeout, an administrator, `resolve`, or because its tail was lost.

    Call `abort_transaction` and do the work again in a new transaction.
    """

    code = 120
    exit_code = 4


class RecordTooLarge(AbortableError):
    """The record is larger than the topic's `max_message_bytes`, or a call larger than the client or PostgreSQL takes.

    Send or commit less at once, or raise the limit of the topic (to 1 GB at most).
    """

    code = 10
    fault = Fault.RECORD


class InvalidRecord(AbortableError):
    """The record cannot be stored as it is.

    Fix the record (a `compact` topic needs a key).
    """

    code = 87
    fault = Fault.RECORD


class OffsetMetadataTooLarge(AbortableError):
    """The metadata of an offset is longer than 4096 bytes of UTF-8.

    Shorten it.
    """

    code = 12


class LogTruncated(AbortableError):
    """A crash of the database server took back records that were read before they were flushed.

    Abort what was made of them; then `rewind`, or decide where to go on, and `seek` there.
    """

    fault = Fault.TRANSIENT  # a worker rewinds to the committed offsets


class CommitsLost(AbortableError):
    """A failover has lost offsets that this consumer has committed, or its answers to a share group.

    The next call goes on. What was made of the records may be made once more: by a share group at once, by a consumer group
    after `rewind`, or when the partition changes hands; `commit` again prevents that.
    """

    fault = Fault.TRANSIENT  # a worker rewinds to the committed offsets


class DeliveryTimeout(AbortableError):
    """The records were not acknowledged within `delivery_timeout_ms`.

    They may or may not be stored; in a transaction abort, else decide by your delivery level.
    """

    code = 7


class ProducerFenced(FatalError):
    """A newer producer with the same transactional id has taken over.

    Close this one. Only one process may use a transactional id at a time.
    """

    code = 90
    exit_code = 4


class InvalidProducerEpoch(ProducerFenced):
    """A partition refused the batch: its epoch is older than the producer's.

    Close this one; a newer producer with the same id has taken over.
    """

    code = 47


class InvalidProducerIdMapping(FatalError):
    """The producer id (or this epoch of it) is not known: it expired, or never existed.

    Make a new producer.
    """

    code = 49


class TransactionsLost(FatalError):
    """The database lacks transactions that this producer has ended: a failover or a restore has lost them.

    Make a new producer, and send what was lost again. The operator runs `msgtx db after-failover`.
    """


class RecordsLost(FatalError):
    """The database lacks records that it has acknowledged to this producer: a failover has lost them.

    Make a new producer, and send what was lost again. The operator runs `msgtx db after-failover`.
    """


class BatchConflict(FatalError):
    """Another run of this application has committed what this batch read, or its checkpoint fell behind.

    Stop this one; where the other has ended, its group's offsets tell.
    """


class MirrorFenced(FatalError):
    """Another mirror of the same name has taken over, or the mirror's progress was reset.

    Only one mirror of a name may run at a time. `msgtx mirror describe` shows the one that does.
    """

    exit_code = 4


class KafkaRefused(FatalError):
    """The Kafka cluster of a mirror refused a request.

    Its reason is in the message: change the cluster's settings or the topic's, and start the mirror again.
    """


class CoordinatorFenced(FatalError):
    """A newer coordinator has taken over the shard.

    Nothing to do: the newer one does the work.
    """

    code = 52
    exit_code = 4


class IncarnationChanged(FatalError):
    """The database was restored or failed over since this object was made.

    Make a new client, and new snapshots and tokens.
    """


class FailedOver(FatalError):
    """Another primary answers than the one that this client began with, and its `on_failover` is `stop`.

    Find out whether something is missing, then make a new client.
    """


class AuthorizationFailed(FatalError):
    """The database role lacks a right for this.

    Ask the owner of the msgtx schema for it.
    """

    code = 29


class LoginRefused(AuthorizationFailed):
    """The server refused the login.

    Correct user and password in the database's URL, or the server's pg_hba.conf.
    """

    exit_code = 3


class ConfigError(UsageError):
    """A setting is unknown, out of range, or contradicts another one.

    Fix the setting that the message names.
    """

    code = 40
    advises = True


class DatabaseNotFound(ConfigError):
    """The server has no such database.

    Correct its name in the URL, or create it (`createdb`), then run `msgtx db init`.
    """

    exit_code = 3
    advises = False


class IllegalState(UsageError):
    """The call is out of order.

    Call in the order that the message names; the object stays usable.
    """

    fault = Fault.ENVIRONMENT
    exit_code = 1  # the arguments are right


class InvalidRequest(UsageError):
    """An argument cannot be right.

    Fix the argument that the message names.
    """

    code = 42
    advises = True


class WrongType(InvalidRequest, TypeError):
    """An argument has a type that the call does not take.

    Convert the argument that the message names.
    """


class InvalidTransactionTimeout(UsageError):
    """The transaction timeout is not above 0, or larger than `transaction_max_timeout_ms`.

    Choose a timeout in between.
    """

    code = 50


class InvalidTransactionState(UsageError):
    """The transaction is over, or not one that this call may act on.

    Begin a new transaction, or name one that is open.
    """

    code = 48
    exit_code = 1


class UnknownTopicOrPartition(UsageError):
    """There is no such topic or partition.

    Create the topic (`msgtx topics create`), or correct the name.
    """

    code = 3


class TopicExists(UsageError):
    """A topic of this name exists.

    Use it, or choose another name.
    """

    code = 36
    advises = True


class InvalidTopic(UsageError):
    """The name is not allowed for a topic.

    Use 1 to 249 of the characters a-z A-Z 0-9 . _ - and not "." or "..".
    """

    code = 17
    advises = True


class NoOffset(UsageError):
    """There is no committed offset, and `auto_offset_reset` is none.

    Seek, or set `auto_offset_reset`.
    """


class OffsetOutOfRange(UsageError):
    """The offset lies outside the partition's log.

    Seek to an offset between `beginning_offsets` and `end_offsets`.
    """

    code = 1


class GroupNotFound(UsageError):
    """There is no such consumer group.

    Correct the name; a group begins with its first commit or member.
    """

    code = 69


class GroupNotEmpty(UsageError):
    """The group has members, and this is for a group without any.

    Stop its consumers, or wait until their sessions are over.
    """

    code = 68
    exit_code = 1


class GroupMaxSizeReached(UsageError):
    """The group has as many members as it may have.

    Stop other consumers of it, or raise the setting `group_max_members`.
    """

    code = 81
    exit_code = 1


class InvalidSessionTimeout(UsageError):
    """The session timeout is not between `group_min_session_timeout_ms` and `group_max_session_timeout_ms`.

    Choose one in between.
    """

    code = 26


class GroupSubscribedToTopic(UsageError):
    """A living member of the group owns the partition.

    Stop that consumer, or wait until its session is over.
    """

    code = 86
    exit_code = 1


class CheckpointLost(UsageError):
    """The application has committed batches, and the query's checkpoint knows none of them.

    Restore the checkpoint, or use the option `group` at source and sink, or take another `txnAppId`.
    """


class TransactionalIdNotFound(UsageError):
    """There is no such transactional id.

    Correct the name; an id begins with `init_transactions`, and expires when idle.
    """

    code = 105


class TransactionNotFound(UsageError):
    """Nothing is stored of a transaction, or of a producer, or nothing that this role may see.

    Correct the name; a transaction is stored from its first record until its history expires (`transaction_history_ms`).
    """


class SnapshotNotFound(UsageError):
    """No snapshot is saved under this name.

    Fix the name; `client.snapshots.list()` returns those that are there.
    """


class SnapshotExists(UsageError):
    """Another snapshot is saved under this name.

    Choose another name, or replace it.
    """


class MirrorNotFound(UsageError):
    """The target has no progress of a mirror of this name.

    `msgtx mirror list` shows those that it has.
    """


class PreviewOutdated(UsageError):
    """The state on which a change depends is no longer the one of its preview.

    Look at a new preview; nothing was changed.
    """

    exit_code = 1


class DeserializationError(UsageError):
    """A deserializer failed on a record.

    Fix the deserializer, or seek past the record that the message names.
    """

    exit_code = 1


class OutcomeUnknown(MsgtxError):
    """The answer to a decision was lost and the database cannot be reached.

    Repeat the same call, or ask `client.transaction_outcome(id)` later.
    """

    outcome_unknown = True
    fault = Fault.OUTAGE
    exit_code = 3


def fresh(error: Raised) -> Raised:
    """Return a copy of an error that is kept, to be raised: with its cause and attributes, and without its traceback.

    One object that is raised again and again would keep the frames of each time, with their variables.
    """
    copy = type(error).__new__(type(error), *error.args)
    copy.args = error.args
    for name, value in vars(error).items():
        setattr(copy, name, [*value] if name == "__notes__" else value)
    copy.__cause__, copy.__context__ = error.__cause__, error.__context__
    copy.__suppress_context__ = error.__suppress_context__
    return copy


BY_NAME: Final[dict[str, type[MsgtxError]]] = {
    name: value for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, MsgtxError)
}
# What a topic refuses some records of a batch for, and not the others.
OF_RECORDS: Final = tuple(kind for kind in BY_NAME.values() if kind.requires_abort and kind.fault is Fault.RECORD)
