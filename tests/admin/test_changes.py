"""`msgtx.changes`: a preview fixes what was left open, and is refused when it is outdated (decision 0163)."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import msgtx
from msgtx import TopicPartition, TransactionId, errors
from msgtx.changes import CHANGES, Preview, apply, preview
from msgtx.scopes import read_duration, read_moment, read_scope, target_words
from msgtx.types import Outcome, PreparedTransaction, ShiftBy
from tests.refusals import refuses
from tests.store.steps import new_mirror, unique
from tests.topics import produce


def test_what_was_left_open_is_fixed_by_the_preview(client: msgtx.Client, topic: str) -> None:
    group = unique("group")
    deletion = preview(client, "topics delete-records", topic=topic, partition=0, before=-1)
    reset = preview(client, "groups reset-offsets", group=group, target="latest", scopes=[(topic, None)])
    produce(client, topic, 2)
    assert apply(client, deletion) == {"topic": topic, "partition": 0, "log_start_offset": 3}
    apply(client, reset)
    assert client.admin.groups.offsets(group)[TopicPartition(topic, 0)].offset == 3


def test_a_preview_of_a_topic_is_of_this_topic_and_not_of_the_next_one_with_its_name(
    client: msgtx.Client, topic: str
) -> None:
    asked = [
        preview(client, "topics delete", topic=topic),
        preview(client, "topics delete-records", topic=topic, partition=0, before=0),
        preview(client, "groups reset-offsets", group=unique("group"), target=0, scopes=[(topic, None)]),
    ]
    client.topics.delete(topic)
    client.topics.create(topic)
    for each in asked:
        with refuses(errors.PreviewOutdated):
            apply(client, each)
    assert client.topics.describe(topic).partitions == 1


def test_a_topic_that_is_written_to_is_deleted(client: msgtx.Client, topic: str) -> None:
    asked = preview(client, "topics delete", topic=topic)
    produce(client, topic, 1)
    apply(client, asked)
    assert topic not in client.topics.list()


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, group, topic: preview(client, "groups delete", group=group),
        lambda client, group, topic: preview(client, "groups delete-offsets", group=group, scopes=[(topic, (0,))]),
        lambda client, group, topic: preview(client, "groups reset-offsets", group=group, target=ShiftBy(-1), scopes=None),
    ],
)
def test_offsets_that_have_moved_are_not_reset_or_deleted(
    client: msgtx.Client, topic: str, ask: Callable[[msgtx.Client, str, str], Preview]
) -> None:
    group = unique("group")
    client.admin.groups.reset(group, 1, topics=[topic])
    asked = ask(client, group, topic)
    client.admin.groups.reset(group, 2, topics=[topic])
    with refuses(errors.PreviewOutdated):
        apply(client, asked)
    assert client.admin.groups.offsets(group)[TopicPartition(topic, 0)].offset == 2
    apply(client, ask(client, group, topic))


def test_a_decision_made_since_the_preview_stays(client: msgtx.Client, topic: str) -> None:
    with client.producer(transactional_id=unique("id")) as producer, producer.transaction() as transaction:
        producer.send(topic, b"a")
        token = PreparedTransaction.parse(str(transaction.prepare()))
    asked = preview(client, "transactions complete", token=token, commit=False)
    client.complete(token, commit=True)
    with refuses(errors.PreviewOutdated):
        apply(client, asked)
    assert client.transaction_outcome(token.transaction_id) is Outcome.COMMITTED
    assert not preview(client, "transactions complete", token=token, commit=True).asks


def test_a_producer_that_was_fenced_since_the_preview_is_not_fenced_again(client: msgtx.Client, topic: str) -> None:
    name = unique("id")
    with client.producer(transactional_id=name) as producer, producer.transaction():
        producer.send(topic, b"a")
    asked, second = (preview(client, "transactions fence", transactional_id=name) for _ in range(2))
    with client.producer(transactional_id=name) as producer, producer.transaction():
        producer.send(topic, b"a")
    with refuses(errors.PreviewOutdated):
        apply(client, asked)
    third = preview(client, "transactions fence", transactional_id=name)
    assert third.state != second.state


def test_a_mirror_that_was_taken_over_since_the_preview_is_not_reset(client: msgtx.Client) -> None:
    name = unique("mirror")
    with client.runtime.engine.connection() as connection:
        new_mirror(connection, name)
        asked = preview(client, "mirror reset", name=name)
        new_mirror(connection, name)
    with refuses(errors.PreviewOutdated):
        apply(client, asked)
    apply(client, preview(client, "mirror reset", name=name))
    with refuses(errors.MirrorNotFound, name=name):
        preview(client, "mirror reset", name=name)


def test_a_group_with_members_says_so_before_it_is_confirmed(client: msgtx.Client, topic: str) -> None:
    group = unique("group")
    with client.consumer(topic, group=group) as consumer:
        consumer.poll(0.0)
        asked = preview(client, "groups reset-offsets", group=group, target="earliest", scopes=[(topic, None)])
        assert isinstance(asked.refusal, errors.GroupNotEmpty)
        with refuses(errors.GroupNotEmpty, group=group):
            preview(client, "groups delete", group=group)


@pytest.mark.parametrize(
    ("verb", "arguments", "command"),
    [
        ("groups reset-offsets", {"target": "earliest", "scopes": None}, "{group} --all-topics --to-earliest"),
        ("groups reset-offsets", {"target": 7, "scopes": [("T", (0,))]}, "{group} --topic {topic}:0 --to-offset=7"),
        ("groups reset-offsets", {"target": ShiftBy(-1), "scopes": [("T", None)]}, "{group} --topic {topic} --shift-by=-1"),
        (
            "groups reset-offsets",
            {"target": timedelta(hours=36), "scopes": None},
            "{group} --all-topics --by-duration 129600s",
        ),
        (
            "groups reset-offsets",
            {"target": read_moment("2026-01-31T12:00"), "scopes": None},
            "{group} --all-topics --to-datetime 2026-01-31T12:00:00+00:00",
        ),
        ("groups delete", {}, "{group}"),
    ],
)
@pytest.mark.parametrize("form", ["-{}", "it's {}; rm", "{}"])
def test_a_command_does_what_its_preview_shows(
    client: msgtx.Client, topic: str, verb: str, arguments: dict[str, Any], command: str, form: str
) -> None:
    group = form.format(unique("group"))
    client.admin.groups.reset(group, 1, topics=[topic])
    scopes = arguments.get("scopes")
    given = arguments | ({"scopes": [(topic, each) for _, each in scopes]} if scopes else {})
    shown = preview(client, verb, group=group, **given).command
    if form == "{}":
        assert shown == f"msgtx {verb} {command.format(topic=topic, group=group)}"
    elif form.startswith("-"):
        assert shown.endswith(f"-- {group}")
    else:
        assert "'\"'\"'" in shown


def test_a_change_takes_what_its_preview_takes() -> None:
    for change in CHANGES.values():
        asked, made = ({*call.__annotations__} for call in (change.preview, change.perform))
        assert asked - {"client", "return"} == made - {"client", "_", "control", "return"}, change.verb


@pytest.mark.parametrize(
    ("read", "text"), [(read_scope, "a:b"), (read_duration, "x"), (read_duration, "9" * 30 + "d"), (read_moment, "noon")]
)
def test_a_text_that_means_nothing_is_refused(read: Callable[[str], object], text: str) -> None:
    with refuses(errors.InvalidRequest):
        read(text)


@given(st.timedeltas(timedelta(), timedelta(days=3_650)))
def test_the_command_of_a_reset_by_duration_has_the_duration(duration: timedelta) -> None:
    option, text = target_words(duration)
    assert (option, read_duration(text)) == ("--by-duration", duration)


def test_an_unknown_transaction_needs_no_question(client: msgtx.Client) -> None:
    asked = preview(client, "transactions abort", transaction_id=TransactionId(9, 9, 9))
    assert (asked.says, asked.asks) == ("abort transaction 9.9.9 (UNKNOWN)", False)
    with refuses(errors.InvalidTransactionState, reason="unknown"):
        apply(client, asked)
