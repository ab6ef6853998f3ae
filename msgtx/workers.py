"""Workers: `client.process` and `client.process_into`, from their arguments to the loop."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from msgtx import arguments, errors
from msgtx.admin.shares import describe_now
from msgtx.config import ProducerConfig, resolve
from msgtx.consumer.consumer import Consumer
from msgtx.database.connection import until
from msgtx.orm.publish import publish
from msgtx.process import (
    POLLS,
    RETRIES,
    ConsumerInput,
    Failures,
    Filler,
    Into,
    Loop,
    Part,
    Patience,
    Rider,
    Transform,
    Work,
    Worker,
    require_handler,
    run_shared,
    tell_end,
    tell_start,
    together,
    watched,
    watched_call,
    worker_of,
)
from msgtx.receiving.deserializers import Deserializers
from msgtx.settings import (
    AutoOffsetReset,
    Failure,
    IntoSettings,
    OnCommit,
    Retry,
    SenderSettings,
    ShareConsumerSettings,
    TransformSettings,
)
from msgtx.types import Acknowledgement, ProcessReport, TopicPartition

if TYPE_CHECKING:
    from msgtx.client import Client

__all__ = ["Into", "process", "process_into"]


def process(
    client: "Client",
    topics: Sequence[str],
    to: str,
    group: str,
    transform: Transform,
    *,
    transactional_id: str,
    partitions: list[int] | None,
    batch: bool,
    deserializers: Deserializers,
    settings: TransformSettings,
) -> ProcessReport:
    """Run a worker that produces; see `Client.process`."""
    worker, rest = _worker(group, batch, settings)
    names, to = _sources(topics), arguments.topic(to)
    if to in names:
        raise errors.ConfigError(
            f"process would read what it writes: {to!r} is both its source and its target", name="to", topic=to
        )
    transactional_id = arguments.check_name("a transactional id", transactional_id)
    if not callable(transform):
        raise errors.WrongType(f"transform is a function of a record, not {arguments.shown(transform)}", name="transform")
    producing = cast(SenderSettings, rest)
    whole = resolve(ProducerConfig, {**producing, "transactional_id": transactional_id})
    if worker.transaction_ms >= whole.transaction_timeout_ms:
        raise errors.ConfigError(
            f"transaction_ms={worker.transaction_ms} must be below"
            f" transaction_timeout_ms={whole.transaction_timeout_ms}, which would end each transaction",
            name="transaction_ms",
            limit=whole.transaction_timeout_ms,
        )
    if partitions is not None:
        if worker.share_members is not None:
            raise errors.ConfigError(
                "with share_members partitions is left out: members of a share group read all of them", name="partitions"
            )
        if len(names) > 1:
            raise errors.ConfigError("partitions are those of one topic, and several are named", name="partitions")
        for index in arguments.listed("partitions", partitions):
            arguments.whole("the index of a partition", index, least=-arguments.LARGEST_INT8)

    def require() -> None:
        source, *_ = client.runtime.require_topics(*names, to)
        for index in partitions or ():
            source.partition_id(index)  # before the id is taken over, which fences another worker
        _require_letters(client, worker.dead_letter, names)

    observers = client.runtime.observers
    called = deserializers.before(watched_call(transform, observers, group))
    if worker.share_members is not None:

        def filling(part: Part, number: int, own: Worker, failures: Failures, block: contextlib.ExitStack) -> Filler:
            name = transactional_id if worker.share_members == 1 else f"{transactional_id}-{number}"
            producer = client.producer(transactional_id=name, **producing)
            block.callback(producer.close)
            # The loop handles failures. One record at first, so that all members get some.
            inner = replace(own, failure=Retry())
            return Filler(part, producer, to, called, inner, failures, POLLS * worker.transaction_ms / 1000, chunk=1)

        return _divide(client, worker, names, filling, require, settings.get("auto_offset_reset"))
    with _working(client, worker, names) as (own, patience, failures), contextlib.ExitStack() as block:
        consumer = block.enter_context(_consumer_of(client, worker))
        producer = client.producer(transactional_id=transactional_id, **producing)
        block.callback(producer.close)
        filler = Filler(ConsumerInput(consumer), producer, to, called, own, failures, worker.transaction_ms / 1000)
        work = watched(filler, observers, group, worker.dead_letter)

        def start() -> None:
            require()
            # The id is taken over first: a predecessor's open transaction must be aborted before its positions are
            # read (P18).
            work.start()
            if partitions is None:
                consumer.subscribe(names)
            else:
                consumer.assign(TopicPartition(names[0], index) for index in partitions)

        return Loop(consumer, work, own, patience, failures, partial(client.admin.groups.members, group)).run(start)


def process_into(
    client: "Client",
    work: Callable[..., Into],
    session_factory: Callable[[], Any],
    handler: Callable[[Any, Any], object],
    topics: Sequence[str],
    group: str,
    batch: bool,
    deserializers: Deserializers,
    settings: IntoSettings,
) -> ProcessReport:
    """Run a worker that writes rows. `work`: its kind, `Into` or `IntoAsync`."""
    require_handler(handler, awaited=work is not Into)
    if not callable(session_factory):
        raise errors.WrongType(
            f"session_factory makes sessions when it is called, not {type(session_factory).__name__}",
            name="session_factory",
        )
    worker, rest = _worker(group, batch, settings)
    names = _sources(topics)
    if "enable_auto_commit" in rest:
        raise errors.ConfigError(
            "enable_auto_commit is off here: the offsets are committed with the rows; leave it out",
            name="enable_auto_commit",
        )

    def require() -> None:
        client.runtime.require_topics(*names)
        _require_letters(client, worker.dead_letter, names)

    observers = client.runtime.observers
    called = deserializers.before(watched_call(handler, observers, group))

    def make(rider: Rider, most: int) -> Into:
        return work(rider, session_factory, called, worker, publish, most)

    if worker.share_members is not None:

        def handling(part: Part, *_: object) -> Into:
            return make(part, part.consumer.config.max_poll_records)

        return _divide(client, worker, names, handling, require, settings.get("auto_offset_reset"), **rest)
    with _working(client, worker, names) as (own, patience, failures), _consumer_of(client, worker, **rest) as consumer:
        made = make(consumer.committing, consumer.config.max_poll_records)
        told_of = watched(made, observers, group, worker.dead_letter)

        def start() -> None:
            require()
            consumer.subscribe(names)

        return Loop(consumer, told_of, own, patience, failures, partial(client.admin.groups.members, group)).run(start)


@contextlib.contextmanager
def _working(client: "Client", worker: Worker, topics: Sequence[str]) -> Iterator[tuple[Worker, Patience, Failures]]:
    """Have a worker end by its caller's event, by SIGTERM, and ahead of this client; in an outage at once."""
    with client.runtime.ending(worker.stop) as ending:
        own = replace(worker, stop=ending)
        patience = Patience(client.runtime.engine.outages, own)
        tell_start(worker, topics)
        with until(patience.deadline):
            yield own, patience, Failures(own, client.runtime.observers)


def _consumer_of(client: "Client", worker: Worker, **settings: Any) -> Consumer:
    return client.consumer(
        config=worker.consumer_config,
        group=worker.group,
        enable_auto_commit=False,
        auto_offset_reset=worker.auto_offset_reset,
        **settings,
    )


def _divide(
    client: "Client",
    worker: Worker,
    topics: Sequence[str],
    make: Callable[[Part, int, Worker, Failures, contextlib.ExitStack], Work],
    require: Callable[[], None],
    beginning: AutoOffsetReset | None,
    **settings: Any,
) -> ProcessReport:
    """Run members of a share group. `make(part, number, …)`: the work of one of them; the block closes what it opens.

    `beginning`: where the group begins if it is new.
    """
    given = cast(ShareConsumerSettings, {**settings, "group": worker.group, "acknowledgement_mode": "explicit"})
    observers = client.runtime.observers
    with client.runtime.ending(worker.stop) as ending:
        failures = Failures(worker, observers)
        tell_start(worker, topics)

        def end_of_deliveries() -> tuple[int, str]:
            settings = describe_now(client.runtime.engine, worker.group).settings
            return int(str(settings["delivery_count_limit"])), str(settings["dead_letter_topic"])

        def member(number: int, told: OnCommit | None) -> ProcessReport:
            ending.threads.add(threading.get_ident())
            own = replace(worker, stop=ending, on_commit=told)
            patience = Patience(client.runtime.engine.outages, own)
            with until(patience.deadline), contextlib.ExitStack() as block:
                consumer = block.enter_context(client.share_consumer(*topics, config=worker.consumer_config, **given))
                part = Part(consumer, end_of_deliveries)
                work = watched(make(part, number, own, failures, block), observers, worker.group, None)

                def start() -> None:
                    require()
                    if beginning is not None:
                        _make_share_group(client, worker.group, beginning)
                    work.start()
                    if worker.failure is Acknowledgement.REJECT:
                        letters = consumer.answering.dead_letter_topic()
                        observers.tell(lambda observer: observer.working(worker.group, letters))

                return run_shared(part, work, own, patience=patience, failures=failures, observers=observers, start=start)

        report = together(member, worker, ending)
        tell_end(worker, report)
        return report


def _make_share_group(client: "Client", group: str, beginning: AutoOffsetReset) -> None:
    """Make a share group that begins there, unless it is there. Raise `AuthorizationFailed`, `ConfigError`."""
    try:
        describe_now(client.runtime.engine, group)
    except errors.GroupNotFound:
        with contextlib.suppress(errors.GroupNotEmpty):  # another worker has made it, and joined
            client.admin.shares.configure(group, {"auto_offset_reset": beginning})


def _require_letters(client: "Client", dead_letter: str | None, topics: Sequence[str]) -> None:
    """Raise `ConfigError` for a topic of dead letters that this worker reads itself, or that is compacted."""
    if dead_letter is None:
        return
    (found,) = client.runtime.require_topics(dead_letter)
    if dead_letter in topics:
        raise errors.ConfigError(
            f"dead_letter {dead_letter!r} is a topic that this worker reads: name another one",
            name="dead_letter",
            topic=dead_letter,
            reason="read",
        )
    if found.settings["cleanup_policy"] != "delete":
        raise errors.ConfigError(
            f"dead_letter {dead_letter!r} is compacted: it would keep one dead letter for each key; name another topic",
            name="dead_letter",
            topic=dead_letter,
            reason="compacted",
        )


def _worker(group: str, batch: bool, settings: Mapping[str, Any]) -> tuple[Worker, dict[str, Any]]:
    """Return a worker and the settings of its consumer or producer. Raise `ConfigError`, `WrongType`."""
    usual: Failure = Retry() if settings.get("share_members") is None else Acknowledgement.RELEASE
    return worker_of(group, {**settings, "batch": batch}, failure=usual, after=RETRIES)


def _sources(topics: Sequence[str]) -> list[str]:
    """Return the topics of a worker. Raise `ConfigError` without one."""
    names = arguments.topics(topics)
    if not names:
        raise errors.ConfigError("name the topics to consume", name="topics")
    return names
