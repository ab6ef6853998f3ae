"""The errors of confluent-kafka, and the code that each error of msgtx has there. Source: docs/reference/compat.md."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.error import (
    ConsumeError,
    KeyDeserializationError,
    KeySerializationError,
    ProduceError,
    ValueDeserializationError,
    ValueSerializationError,
)

from msgtx import errors
from msgtx.compat.confluent_kafka.settings import kafka_words

__all__ = [
    "ConsumeError",
    "KafkaError",
    "KafkaException",
    "KeyDeserializationError",
    "KeySerializationError",
    "ProduceError",
    "ValueDeserializationError",
    "ValueSerializationError",
    "as_kafka",
    "translated",
]
# Errors that have no number of Kafka's, or another one as confluent-kafka's users see them. The first that fits counts.
CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (errors.DatabaseUnavailable, KafkaError._ALL_BROKERS_DOWN),
    (errors.DeliveryTimeout, KafkaError._MSG_TIMED_OUT),
    (errors.LoginRefused, KafkaError._AUTHENTICATION),
    (errors.AuthorizationFailed, KafkaError.TOPIC_AUTHORIZATION_FAILED),
    (errors.ProducerFenced, KafkaError._FENCED),
    (errors.NotAssigned, KafkaError._ASSIGNMENT_LOST),
    (errors.LogTruncated, KafkaError._LOG_TRUNCATION),
    (errors.NoOffset, KafkaError._AUTO_OFFSET_RESET),
    (errors.ConfigError, KafkaError._INVALID_ARG),
    (errors.InvalidRequest, KafkaError._INVALID_ARG),
    (errors.IllegalState, KafkaError._STATE),
    (errors.OutcomeUnknown, KafkaError._TIMED_OUT),
    (errors.LockTimeout, KafkaError._TIMED_OUT),
    (errors.TransactionalIdNotFound, KafkaError.INVALID_PRODUCER_ID_MAPPING),
    (errors.CommitsLost, KafkaError._INCONSISTENT),
    (TimeoutError, KafkaError._TIMED_OUT),
)

NO_SENTENCE: Final = frozenset({KafkaError._FAIL, KafkaError._FATAL})  # theirs would say less, or what is not so


def code_of(kind: type[BaseException]) -> int:
    """Return the code of confluent-kafka for a class of errors."""
    for known, code in CODES:
        if issubclass(kind, known):
            return code
    return getattr(kind, "code", None) or (KafkaError._FATAL if getattr(kind, "fatal", False) else KafkaError._FAIL)


def as_kafka(error: BaseException, code: int | None = None) -> KafkaError:
    """Return an error of msgtx as confluent-kafka has it. `code`: a broker's, if it has one.

    Its sentence is Kafka's for the code, and then that of msgtx with Kafka's names.
    """
    code = code or code_of(type(error))
    sentence = kafka_words(str(error))
    if code not in NO_SENTENCE:
        sentence = f"{KafkaError(code).str()}: {sentence}"
    return KafkaError(
        code,
        sentence,
        getattr(error, "fatal", False),
        getattr(error, "retriable", False) or getattr(error, "outcome_unknown", False),
        getattr(error, "requires_abort", False),
    )


@contextmanager
def translated() -> Iterator[None]:
    """Raise what msgtx raises within as a `KafkaException`."""
    try:
        yield
    except (errors.MsgtxError, TimeoutError) as error:
        raise KafkaException(as_kafka(error)) from error
