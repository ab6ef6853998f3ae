"""The public names are pinned: a change here is a change for users."""

import concurrent.futures
import dataclasses
import enum
import importlib.metadata
import inspect
from collections.abc import Iterator

import pytest

import msgtx
from msgtx import aio, client, metrics, orm, otel
from msgtx.snapshot import Snapshots

PUBLIC = [
    "Acknowledgement", "BatchMetadata", "Client", "CommittedRange", "Consumer", "Coordinator", "DeadLetter", "Finding",
    "GroupDescription",
    "GroupListing", "GroupMetadata", "GroupPartition", "HangingTransaction", "Isolation", "Level", "MemberDescription",
    "OffsetAndMetadata", "OffsetAndTimestamp", "OffsetReset", "Outcome", "OutputRecord", "PartitionDescription",
    "PreparedListing", "PreparedTransaction", "ProcessReport", "Producer", "ProducerId", "ProducerState", "Record",
    "RecordMetadata", "RedriveReport", "Retry", "SavedSnapshot", "ShareConsumer", "ShareGroupDescription", "SharePartition",
    "ShareRecord", "ShiftBy", "Skip", "Snapshot", "Stop", "SweepReport", "TakenSnapshot", "TopicDescription",
    "TopicPartition",
    "Transaction", "TransactionDescription", "TransactionId", "TransactionListing", "VerifyReport",
    "Violation", "connect",
]  # fmt: skip
IN_MODULES = {
    aio: "Client Consumer Delivery Producer ShareConsumer Topics Transaction connect publish",
    metrics: "serving watch",
    orm: "CommittedRecord CommittedRecordNow ConsumerGroup GroupOffset Marker Partition Record RecordBatch"
    " ShareGroup SharePartition ShareSpan Topic Transaction"
    " publish read",
    otel: "context_of headers instrument links processing",
}
METHODS = {
    msgtx.Client: "admin close complete consumer embedded engine observe process process_into producer read secret_url"
    " share_consumer snapshot snapshots sweep topics transaction_outcome url",
    client.Admin: "coordinators doctor find_coordinator groups partitions producers shares transactions verify",
    client.SharesAdmin: "configure delete describe list redrive reset_offsets",
    client.GroupsAdmin: "delete delete_offsets describe list members offsets reset",
    client.PartitionsAdmin: "delete_records describe describe_all offsets",
    client.ProducersAdmin: "describe",
    client.TopicsAdmin: "alter create delete describe list",
    client.TransactionsAdmin: "abort describe fence find_hanging list outcome prepared",
    Snapshots: "delete get list ranges save take",
    msgtx.Producer: "abort_transaction begin_transaction close closed commit_transaction config flush init_transactions"
    " prepare_transaction prepared_transaction send send_acknowledgements_to_transaction send_batch"
    " send_offsets_to_transaction transaction transaction_id",
    msgtx.Transaction: "id prepare send_acknowledgements send_offsets",
    msgtx.Consumer: "assign assignment batch beginning_offsets close closed commit committed config end_offsets"
    " group_metadata known_lag lag offset_lag offsets_for_times pause poll position resume rewind seek seek_to_beginning"
    " seek_to_end seek_to_time stop subscribe",
    msgtx.ShareConsumer: "acknowledge batch close closed commit config poll rewind stop",
    aio.Client: "close complete consumer process_into producer run share_consumer snapshot sweep sync topics"
    " transaction_outcome",
    aio.Producer: "abort_transaction begin_transaction close commit_transaction flush init_transactions prepare_transaction"
    " prepared_transaction send send_acknowledgements_to_transaction send_batch send_offsets_to_transaction sync"
    " transaction transaction_id",
    aio.Transaction: "id prepare send_acknowledgements send_offsets",
    aio.ShareConsumer: "acknowledge batch close commit poll rewind stop sync",
    aio.Delivery: "done",
    aio.Consumer: "assign assignment batch beginning_offsets close commit committed end_offsets group_metadata lag"
    " offset_lag offsets_for_times pause poll position resume rewind seek seek_to_beginning seek_to_end seek_to_time stop"
    " subscribe sync",
    aio.Topics: "alter create delete describe list sync",
}
FIELDS = {
    msgtx.Retry: "after",
    msgtx.Skip: "after",
    msgtx.Stop: "",
    msgtx.DeadLetter: "topic after",
    msgtx.Record: "topic partition offset timestamp key value headers",
    msgtx.RedriveReport: "sent skipped",
    msgtx.ShareGroupDescription: "group settings members lag lag_ms dead_letters partitions",
    msgtx.SharePartition: "topic partition start_offset next_offset available acquired pending rejected lag parked lag_ms",
    msgtx.ShareRecord: "topic partition offset timestamp key value headers delivery_count",
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
    msgtx.Coordinator: "shard owner host epoch lease_until process",
    msgtx.HangingTransaction: "topic partition transaction_id transactional_id state coordinator_epoch start_offset"
    " last_timestamp duration_ms reason advice",
    msgtx.PreparedListing: "token transactional_id prepared_at partitions client_host",
    msgtx.ProcessReport: "transactions aborted records_in records_out seconds failed",
    msgtx.SweepReport: "transactions_aborted markers_written floors_moved batches_removed records_compacted"
    " producer_ids_removed transactions_purged offsets_removed floors_removed members_removed heartbeats_removed"
    " shares_settled share_rows_removed seals_removed spark_rows_removed dedup_keys_removed wake_ups_removed"
    " log_rows_removed",
    msgtx.TransactionDescription: "transactional_id producer_id state transaction_id producer_epoch timeout_ms started_at"
    " partitions client_host decided_by",
    msgtx.VerifyReport: "partitions batches records transactions group_offsets offsets_behind violations_found violations"
    " seconds",
}
TUPLES = {
    msgtx.PreparedTransaction: "transaction_id incarnation",
    msgtx.ProducerId: "producer_id epoch",
    msgtx.TopicPartition: "topic partition",
    msgtx.TransactionId: "producer_id producer_epoch transaction_number",
}
SIGNATURES = {
    msgtx.Producer.send: "topic value *key *partition *timestamp *headers *on_delivery *dedup_key *deliver_at *delay_ms",
    msgtx.Producer.flush: "timeout",
    msgtx.Producer.begin_transaction: "timeout_ms",
    msgtx.Producer.commit_transaction: "timeout",
    msgtx.Producer.abort_transaction: "timeout",
    msgtx.Producer.init_transactions: "timeout *keep_prepared",
    msgtx.Producer.send_acknowledgements_to_transaction: "share_consumer",
    msgtx.Producer.send_offsets_to_transaction: "offsets group_metadata timeout",
    msgtx.Producer.transaction: "timeout_ms session",
    msgtx.Consumer.poll: "timeout max_records",
    msgtx.Consumer.batch: "session timeout max_records",
    msgtx.ShareConsumer.poll: "timeout max_records",
    msgtx.ShareConsumer.acknowledge: "record answer *reason *delay_ms",
    msgtx.ShareConsumer.batch: "session timeout max_records",
    msgtx.ShareConsumer.commit: "*session",
    msgtx.Consumer.commit: "offsets wait *session",
    msgtx.Consumer.committed: "partitions require_stable timeout",
    msgtx.Consumer.seek: "partition offset",
    client.SharesAdmin.configure: "group settings",
    client.SharesAdmin.list: "",
    client.SharesAdmin.describe: "group",
    client.SharesAdmin.delete: "group",
    client.SharesAdmin.reset_offsets: "group target *topics *partitions *dry_run",
    client.SharesAdmin.redrive: "group *max_records *skip_missing *stop *progress",
    client.GroupsAdmin.list: "states",
    client.GroupsAdmin.describe: "group",
    client.GroupsAdmin.members: "group",
    client.GroupsAdmin.offsets: "group",
    client.GroupsAdmin.delete: "group",
    client.GroupsAdmin.delete_offsets: "group partitions",
    client.GroupsAdmin.reset: "group target *topics *partitions *dry_run",
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
    aio.Producer.send: "topic value *key *partition *timestamp *headers *dedup_key *deliver_at *delay_ms",
    aio.Producer.send_batch: "topic values keys *partition *timestamps",
    aio.Producer.flush: "timeout",
    aio.Producer.init_transactions: "timeout *keep_prepared",
    aio.Producer.begin_transaction: "timeout_ms",
    aio.Producer.commit_transaction: "timeout",
    aio.Producer.transaction: "timeout_ms session",
    aio.Transaction.send_offsets: "offsets group_metadata",
    aio.Transaction.prepare: "timeout",
    aio.Consumer.poll: "timeout max_records",
    aio.Consumer.batch: "session timeout max_records",
    aio.Consumer.commit: "offsets wait *session",
    aio.ShareConsumer.poll: "timeout max_records",
    aio.ShareConsumer.acknowledge: "record answer *reason *delay_ms",
    aio.ShareConsumer.batch: "session timeout max_records",
    aio.ShareConsumer.commit: "*session",
    aio.Transaction.send_acknowledgements: "share_consumer",
    aio.Consumer.committed: "partitions require_stable timeout",
    aio.Consumer.seek: "partition offset",
    aio.Client.complete: "token *commit",
    aio.Client.transaction_outcome: "transaction_id *resolve",
}


# What other modules of the package call, until it gets a name that shows it.
OF_THE_PACKAGE = {
    msgtx.Consumer: "commit_starts keep_partitions riding transaction_offsets",
    msgtx.ShareConsumer: (
        "accepting dead_letter_topic end_ride fail_ride handed_out held lock_seconds renew ride riding transaction_answers"
        " undo"
    ),
}


def test_the_package_exports_these_names() -> None:
    assert list(msgtx.__all__) == sorted(PUBLIC)
    assert all(hasattr(msgtx, name) for name in msgtx.__all__)
    for module, names in IN_MODULES.items():
        assert sorted(module.__all__) == names.split()
    assert msgtx.aio is aio
    assert dir(msgtx) == sorted([*PUBLIC, "__version__", "aio", "errors", "metrics", "orm"])
    assert msgtx.__version__ == importlib.metadata.version("msgtx")


@pytest.fixture(scope="module")
def instances(database_url: str) -> Iterator[dict[type, object]]:
    """One of each: attributes that an instance gets when it is made are public, too."""
    with concurrent.futures.ThreadPoolExecutor(1) as threads, msgtx.connect(database_url) as made:
        made.topics.create("names")
        in_loop = aio.Client(made, threads)
        with (
            made.producer(transactional_id="names") as producer,
            made.consumer() as consumer,
            made.share_consumer("names", group="names") as share_consumer,
            producer.transaction() as open_one,
        ):
            of_loop = aio.Consumer(consumer, [], None)
            sharing = aio.ShareConsumer(share_consumer)
            found = [
                *(
                    made,
                    made.admin,
                    made.admin.groups,
                    made.admin.shares,
                    made.admin.partitions,
                    made.admin.producers,
                    made.admin.transactions,
                ),
                *(made.topics, made.snapshots, producer, open_one, consumer, share_consumer),
                *(in_loop, in_loop.topics, aio.Producer(in_loop, producer), of_loop, sharing),
                aio.Transaction(aio.Producer(in_loop, producer), open_one.id),
                aio.Delivery(producer.send("names", b"value")),
            ]
            yield {type(each): each for each in found}


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_the_classes_have_these_names_and_no_other(kind: type, instances: dict[type, object]) -> None:
    found = {name for name in dir(instances[kind]) if not name.startswith("_")}
    inner = set(OF_THE_PACKAGE.get(kind, "").split())
    assert inner <= found, "a name that no longer exists"
    assert sorted(found - inner) == METHODS[kind].split()


def test_what_waits_is_awaited() -> None:
    """This includes the calls of a client, a producer and a consumer in an event loop."""
    direct = {"acknowledge", "assignment", "batch", "consumer", "group_metadata", "pause", "producer", "resume"}
    direct |= {"share_consumer", "stop", "transaction"}
    for kind in (aio.Client, aio.Producer, aio.Consumer, aio.ShareConsumer, aio.Topics):
        calls = {name for name, each in vars(kind).items() if inspect.isfunction(each) and not name.startswith("_")}
        assert {name for name in calls if not inspect.iscoroutinefunction(getattr(kind, name))} <= direct


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_the_values_have_these_fields(kind: type) -> None:
    assert [field.name for field in dataclasses.fields(kind)] == FIELDS[kind].split()


@pytest.mark.parametrize("kind", TUPLES, ids=lambda kind: kind.__name__)
def test_the_tuples_have_these_fields(kind: type) -> None:
    assert list(kind._fields) == TUPLES[kind].split()


def test_every_public_value_is_pinned() -> None:
    public = [getattr(msgtx, name) for name in PUBLIC]
    kinds = {each for each in public if isinstance(each, type) and not issubclass(each, enum.Enum)}
    assert kinds - METHODS.keys() == {*FIELDS, *TUPLES}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_the_calls_take_these_arguments(function: object) -> None:
    parameters = inspect.signature(function).parameters.values()
    found = [("*" if p.kind is p.KEYWORD_ONLY else "") + p.name for p in parameters if p.name != "self"]
    assert found == SIGNATURES[function].split()
