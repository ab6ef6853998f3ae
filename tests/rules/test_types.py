"""Names and results: what they parse, what they refuse."""

import copy
import pickle

import hypothesis
import pytest
from hypothesis import strategies as st

from msgtx import GroupMetadata, OffsetAndMetadata, Record, TopicPartition, TransactionId, errors
from msgtx.rules.record import as_json
from tests.refusals import refuses

big = st.integers(0, 2**63 - 1)


@hypothesis.given(big, st.integers(0, 2**31 - 1), big)
def test_a_transaction_id_reads_what_it_writes(producer_id: int, epoch: int, number: int) -> None:
    name = TransactionId(producer_id, epoch, number)
    assert TransactionId.parse(str(name)) == name
    assert TransactionId.parse(f"  {name}\n") == name


@pytest.mark.parametrize(
    "text",
    ["", "1.2", "1.2.3.4", "a.0.0", "-1.0.0", "1..2", "1.0.0x", "1,0,0", "٣.0.0", "9" * 19 + ".0.0", "1.4294967296.0"],
)
def test_anything_else_is_refused(text: str) -> None:
    with refuses(errors.InvalidRequest, name="transaction_id"):
        TransactionId.parse(text)


def test_names_print_as_kafkas_tools_do() -> None:
    assert str(TopicPartition("orders", 3)) == "orders-3"


def test_a_record_reads_its_value_as_json() -> None:
    record = Record("orders", 3, 7, 0, None, b'{"cents": 1250}')
    assert record.json() == {"cents": 1250}
    assert Record("orders", 3, 7, 0, None, None).json() is None
    for value in (b"{", b"\xff"):
        with refuses(errors.DeserializationError, topic="orders", partition=3, offset=7):
            Record("orders", 3, 7, 0, None, value).json()


def test_a_record_is_sent_as_json_or_as_bytes() -> None:
    assert as_json(..., {"cents": 1250, "an": None}) == b'{"cents":1250,"an":null}'
    assert as_json(..., None) == b"null"
    for value, json in ((..., ...), (b"1", 1), (None, 1), (..., {1, 2}), (..., float("nan")), (..., "\ud800")):
        with refuses(errors.WrongType):
            as_json(value, json)


def test_group_metadata_is_picklable_and_equal_by_value() -> None:
    metadata = GroupMetadata("g", "m", 3, "i")
    assert pickle.loads(pickle.dumps(metadata)) == metadata  # noqa: S301 - our own bytes
    assert GroupMetadata("g") == GroupMetadata("g", None, -1, None)
    assert OffsetAndMetadata(5) == OffsetAndMetadata(5, "")


def every_error() -> list[type[errors.MsgtxError]]:
    return [error for error in errors.BY_NAME.values() if error is not errors.MsgtxError]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: error.__name__)
def test_an_error_says_what_happened_and_what_to_do(error: type[errors.MsgtxError]) -> None:
    families = (errors.RetriableError, errors.AbortableError, errors.FatalError, errors.UsageError)
    text = (error.__doc__ or "").strip()
    assert text
    if error not in families:
        what, _, todo = text.partition("\n\n")
        assert what.rstrip().endswith(".")
        assert todo.strip(), "the second paragraph says what to do"
    expected = [issubclass(error, family) for family in families]
    assert sum(expected) <= 1, "one family"
    assert [error.retriable, error.requires_abort, error.fatal] == expected[:3]
    assert issubclass(error, ValueError) is expected[3]


def test_an_error_carries_values_wherever_it_goes() -> None:
    error = errors.TopicExists("topic orders exists", topic="orders")
    error.__cause__ = KeyError()
    error.add_note("a note")
    for each in (error, pickle.loads(pickle.dumps(error)), copy.copy(error), errors.fresh(error)):  # noqa: S301 - our own
        assert (type(each), str(each), each.topic, each.group) == (errors.TopicExists, "topic orders exists", "orders", None)
        assert each.__notes__ == ["a note"]


def test_kafkas_numbers_are_kafkas() -> None:
    numbers = {
        "UnknownTopicOrPartition": 3, "RecordTooLarge": 10, "CoordinatorNotAvailable": 15, "NotCoordinator": 16,
        "InvalidTopic": 17, "IllegalGeneration": 22, "UnknownMember": 25, "RebalanceInProgress": 27,
        "TopicExists": 36, "OutOfOrderSequence": 45, "InvalidProducerEpoch": 47, "InvalidTransactionState": 48,
        "InvalidProducerIdMapping": 49, "InvalidTransactionTimeout": 50, "ConcurrentTransactions": 51,
        "FencedInstance": 82, "UnstableOffset": 88, "ProducerFenced": 90, "OffsetMetadataTooLarge": 12,
        "OffsetOutOfRange": 1, "TransactionalIdNotFound": 105,
    }  # fmt: skip
    assert {name: errors.BY_NAME[name].code for name in numbers} == numbers
