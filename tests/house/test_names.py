"""The public names are pinned: a change here is a change for users."""

import dataclasses
import inspect

import pytest

import msgtx
from msgtx import aio, errors
from msgtx.admin.groups import GroupsAdmin
from msgtx.snapshot import Snapshots

PUBLIC = [
    "BatchMetadata", "Client", "CommittedRange", "Consumer", "Coordinator", "Finding", "GroupDescription",
    "GroupListing", "GroupMetadata", "GroupPartition", "HangingTransaction", "Isolation", "Level", "MemberDescription",
    "OffsetAndMetadata", "OffsetAndTimestamp", "OffsetReset", "Outcome", "OutputRecord", "PartitionDescription",
    "ProcessReport", "Producer", "ProducerId", "ProducerState", "Record", "RecordMetadata", "SavedSnapshot", "ShiftBy",
    "Snapshot", "SweepReport", "TakenSnapshot", "TopicDescription", "TopicPartition", "Transaction",
    "TransactionDescription", "TransactionId", "TransactionListing", "VerifyReport", "Violation", "connect",
]  # fmt: skip
METHODS = {
    msgtx.Client: "admin close consumer process producer read snapshot snapshots sweep topics transaction_outcome url",
    msgtx.Producer: "abort_transaction begin_transaction close commit_transaction flush init_transactions send send_batch"
    " send_offsets_to_transaction transaction transaction_id",
    msgtx.Transaction: "id send_offsets",
    msgtx.Consumer: "assign assignment beginning_offsets close commit committed end_offsets group_metadata lag offset_lag"
    " offsets_for_times pause poll position resume rewind seek seek_to_beginning seek_to_end seek_to_time stop subscribe",
    aio.Client: "close complete consumer producer run snapshot sweep sync topics transaction_outcome",
    aio.Producer: "abort_transaction begin_transaction close commit_transaction flush init_transactions prepare_transaction"
    " prepared_transaction send send_batch send_offsets_to_transaction transaction transaction_id",
    aio.Transaction: "id prepare send_offsets",
    aio.Delivery: "done",
    aio.Consumer: "assign assignment beginning_offsets close commit committed end_offsets group_metadata lag offset_lag"
    " offsets_for_times pause poll position resume rewind seek seek_to_beginning seek_to_end seek_to_time stop subscribe",
    aio.Topics: "alter create delete describe list",
}
FIELDS = {
    msgtx.Record: "topic partition offset timestamp key value headers",
    msgtx.RecordMetadata: "topic partition offset timestamp duplicate",
    msgtx.BatchMetadata: "count offsets",
    msgtx.OutputRecord: "value key headers timestamp topic partition",
    msgtx.OffsetAndMetadata: "offset metadata",
    msgtx.OffsetAndTimestamp: "offset timestamp",
    msgtx.GroupMetadata: "group member_id generation group_instance_id read_identities",
    msgtx.TopicDescription: "name partitions settings",
    msgtx.GroupListing: "group state strategy members",
    msgtx.GroupDescription: "group state strategy generation members lag lag_ms partitions",
    msgtx.GroupPartition: "topic partition current_offset metadata pending log_end_offset lag lag_ms member_id"
    " group_instance_id client_host client_process",
    msgtx.MemberDescription: "member_id group_instance_id client_host client_process session_timeout_ms joined_at"
    " heartbeat_at session_over topics pattern owned target",
    msgtx.OffsetReset: "topic partition current_offset new_offset note",
    msgtx.ShiftBy: "offsets",
    msgtx.Snapshot: "ends incarnation",
    msgtx.TakenSnapshot: "snapshot held_by",
    msgtx.SavedSnapshot: "name snapshot taken_at",
    msgtx.CommittedRange: "start end removed records bytes",
    msgtx.PartitionDescription: "log_start_offset last_stable_offset log_end_offset",
    msgtx.TransactionListing: "transactional_id producer_id state",
    msgtx.ProducerState: "producer_id epoch last_sequence last_timestamp coordinator_epoch transaction_start_offset",
    msgtx.Finding: "level subject text advice data",
    msgtx.Violation: "topic partition offset check promise expected found",
}
SIGNATURES = {
    msgtx.Producer.send: "topic value *key *partition *timestamp *headers *on_delivery",
    msgtx.Producer.flush: "timeout",
    msgtx.Producer.begin_transaction: "timeout_ms",
    msgtx.Producer.commit_transaction: "timeout",
    msgtx.Producer.abort_transaction: "timeout",
    msgtx.Producer.init_transactions: "timeout",
    msgtx.Producer.send_offsets_to_transaction: "offsets group_metadata timeout",
    msgtx.Producer.transaction: "timeout_ms",
    msgtx.Consumer.poll: "timeout max_records",
    msgtx.Consumer.commit: "offsets wait",
    msgtx.Consumer.committed: "partitions require_stable timeout",
    msgtx.Consumer.seek: "partition offset",
    GroupsAdmin.list: "states",
    GroupsAdmin.describe: "group",
    GroupsAdmin.members: "group",
    GroupsAdmin.offsets: "group",
    GroupsAdmin.delete: "group",
    GroupsAdmin.delete_offsets: "group partitions",
    GroupsAdmin.reset: "group target *topics *partitions *dry_run",
    Snapshots.take: "topics",
    Snapshots.save: "name cut *replace",
    Snapshots.get: "name",
    Snapshots.list: "",
    Snapshots.delete: "name",
    Snapshots.ranges: "topics *start *end",
    msgtx.Client.transaction_outcome: "transaction_id *resolve",
    msgtx.connect: "url *create *pool_size",
    aio.connect: "url *create *pool_size",
    aio.publish: "session topic value *key *partition *timestamp *headers",
    aio.Producer.send: "topic value *key *partition *timestamp *headers *dedup_key",
    aio.Producer.send_batch: "topic values keys *partition *timestamps",
    aio.Producer.flush: "timeout",
    aio.Producer.init_transactions: "timeout *keep_prepared",
    aio.Producer.begin_transaction: "timeout_ms",
    aio.Producer.commit_transaction: "timeout",
    aio.Producer.transaction: "timeout_ms session",
    aio.Transaction.send_offsets: "offsets group_metadata",
    aio.Transaction.prepare: "timeout",
    aio.Consumer.poll: "timeout max_records",
    aio.Consumer.commit: "offsets wait *session",
    aio.Consumer.committed: "partitions require_stable timeout",
    aio.Consumer.seek: "partition offset",
    aio.Client.complete: "token *commit",
    aio.Client.transaction_outcome: "transaction_id *resolve",
}


def test_the_package_exports_these_names() -> None:
    assert set(PUBLIC) <= set(msgtx.__all__)
    assert list(msgtx.__all__) == sorted(msgtx.__all__)
    assert all(hasattr(msgtx, name) for name in msgtx.__all__)
    assert set(aio.__all__) == {"Client", "Consumer", "Delivery", "Producer", "Topics", "Transaction", "connect", "publish"}
    assert msgtx.aio is aio


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_the_classes_have_these_methods(kind: type) -> None:
    wanted = set(METHODS[kind].split())
    instance_attributes = set()
    if kind in {msgtx.Client, aio.Client}:
        instance_attributes = {"admin", "topics", "snapshots", "config", "engine", "sync"}
    found = {name for name in dir(kind) if not name.startswith("_")} | instance_attributes
    assert wanted <= found


def test_what_waits_is_awaited() -> None:
    """Of the calls that a client, a producer and a consumer have in an event loop, too."""
    direct = {"assignment", "consumer", "group_metadata", "pause", "producer", "resume", "stop", "transaction"}
    for kind in (aio.Client, aio.Producer, aio.Consumer, aio.Topics):
        calls = {name for name, each in vars(kind).items() if inspect.isfunction(each) and not name.startswith("_")}
        assert {name for name in calls if not inspect.iscoroutinefunction(getattr(kind, name))} <= direct


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_the_values_have_these_fields(kind: type) -> None:
    assert [field.name for field in dataclasses.fields(kind)][: len(FIELDS[kind].split())] == FIELDS[kind].split()


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_the_calls_take_these_arguments(function: object) -> None:
    parameters = inspect.signature(function).parameters.values()
    found = [("*" if p.kind is p.KEYWORD_ONLY else "") + p.name for p in parameters if p.name != "self"]
    assert found[: len(SIGNATURES[function].split())] == SIGNATURES[function].split()


def test_the_errors_are_these() -> None:
    families = {
        errors.RetriableError: "DatabaseUnavailable CoordinatorNotAvailable NotCoordinator ConcurrentTransactions"
        " UnstableOffset RebalanceInProgress LockTimeout",
        errors.AbortableError: "OutOfOrderSequence IllegalGeneration UnknownMember NotAssigned FencedInstance"
        " TransactionAborted RecordTooLarge InvalidRecord OffsetMetadataTooLarge DeliveryTimeout",
        errors.FatalError: "ProducerFenced InvalidProducerEpoch InvalidProducerIdMapping CoordinatorFenced"
        " IncarnationChanged AuthorizationFailed",
        errors.UsageError: "ConfigError IllegalState InvalidRequest InvalidTransactionTimeout InvalidTransactionState"
        " UnknownTopicOrPartition TopicExists InvalidTopic NoOffset OffsetOutOfRange GroupNotFound"
        " GroupNotEmpty GroupSubscribedToTopic TransactionalIdNotFound SnapshotNotFound SnapshotExists"
        " DeserializationError",
    }
    for family, names in families.items():
        for name in names.split():
            assert issubclass(getattr(errors, name), family), name
    assert issubclass(errors.InvalidProducerEpoch, errors.ProducerFenced)
