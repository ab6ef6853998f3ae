"""What the facade has of confluent-kafka: each call, each setting, a code for each error; and what its page says."""

import tomllib

import confluent_kafka
import confluent_kafka.admin
import confluent_kafka.aio
import pytest

import msgtx.compat.confluent_kafka as facade
from msgtx import errors
from msgtx.compat.confluent_kafka import KafkaError, admin, aio, cimpl, differences, settings
from msgtx.compat.confluent_kafka.error import CODES, NO_SENTENCE, as_kafka, code_of
from tests.house.sources import ROOT

KAFKA = tomllib.loads((ROOT / "tests/docs/kafka_names.toml").read_text())["confluent-kafka"]


def test_each_setting_of_the_original_is_known_once() -> None:
    known = [*settings.PASSED_ON, *settings.DONE_HERE, *settings.IGNORED.split(), *settings.SYNONYMS]
    assert len(known) == len({*known})
    assert {*KAFKA["settings"].split()} - {*known} == set()


@pytest.mark.parametrize("name", ["Producer", "Consumer", "AdminClient"])
def test_each_call_of_the_original_is_there(name: str) -> None:
    ours = admin.AdminClient if name == "AdminClient" else getattr(facade, name)
    original = confluent_kafka.admin.AdminClient if name == "AdminClient" else getattr(confluent_kafka, name)
    calls = {each for each in dir(original) if not each.startswith("_")}
    assert calls - {*dir(ours)} == set()
    assert {*KAFKA[name].split()} - {*dir(ours)} == set()
    if name == "AdminClient":  # none is left that would ask a broker
        base = vars(confluent_kafka.cimpl._AdminClientImpl)
        mixin = vars(cimpl._AdminClientImpl)
        assert {each for each in base if not each.startswith("__")} - {*mixin} == set()


def test_each_class_for_asyncio_of_the_original_is_there() -> None:
    for name in confluent_kafka.aio.__all__:
        ours, original = getattr(aio, name), getattr(confluent_kafka.aio, name)
        assert {each for each in dir(original) if not each.startswith("_")} - {*dir(ours)} <= {"executor"}, name
        assert ours is not original
        assert confluent_kafka.aio.AIOProducer not in ours.__mro__


def test_the_differences_name_calls_of_the_original() -> None:
    for call, _ in differences.CALLS:
        owner, name = call.split(".")
        module = confluent_kafka.admin if owner == "AdminClient" else confluent_kafka
        assert hasattr(getattr(module, owner), name), call


def test_each_error_of_msgtx_has_a_code_of_the_original() -> None:
    for kind in errors.BY_NAME.values():
        error = KafkaError(code_of(kind))
        assert hasattr(KafkaError, error.name()), kind
        told = as_kafka(kind("why"))
        sentence = "why" if told.code() in NO_SENTENCE else f"{error.str()}: why"
        assert (told.str(), told.fatal()) == (sentence, kind.fatal)
    for number, (kind, _) in enumerate(CODES):  # none stands behind one that includes it
        assert not any(issubclass(kind, before) for before, _ in CODES[:number]), kind


def test_share_groups_are_refused_with_what_to_use() -> None:
    with pytest.raises(facade.KafkaException, match="share_consumer") as refused:
        facade.ShareConsumer({"group.id": "x"})
    assert refused.value.args[0].code() == KafkaError._UNSUPPORTED_FEATURE
