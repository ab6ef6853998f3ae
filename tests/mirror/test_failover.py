"""A source that loses records in a failover: its mirror is told, and a reset makes the copy complete again."""

from collections.abc import Callable

import pytest

import msgtx
from msgtx import errors
from tests.client.steps import SECONDS
from tests.mirror.conftest import contents
from tests.refusals import refuses
from tests.replication import Pair

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("grown", [False, True])
def test_a_mirror_whose_source_has_lost_copied_records_is_told(
    own_pair: Pair, target: msgtx.Client, unique: Callable[[str], str], grown: bool
) -> None:
    """The standby never got two records that the target has (I14). `grown`: the new primary has others in their place."""
    topic, name, made = unique("t"), unique("mirror"), own_pair.primary.create_database()
    with msgtx.connect(made) as client:
        client.topics.create(topic)
        send(client, topic, b"1", b"2")
        own_pair.catch_up()
        own_pair.fall_behind()
        send(client, topic, b"lost", b"lost, too")
        assert client.mirror(topic, name=name, target=target, until_caught_up=True).records == 4
    own_pair.fail_over()
    with msgtx.connect(own_pair.on_standby(made)) as client:
        if grown:
            send(client, topic, b"3", b"4", b"5")
        with refuses(errors.LogTruncated, topic=topic, partition=0, offset=4):
            client.mirror(topic, name=name, target=target, until_caught_up=True)
        (found,) = [each for each in target.admin.doctor() if each.subject == f"mirror {name}"]
        assert found.level is msgtx.Level.PROBLEM
        assert "lost records" in found.text
        target.topics.delete(topic)
        target.admin.mirrors.reset(name)
        client.mirror(topic, name=name, target=target, until_caught_up=True)
        assert contents(target, topic) == contents(client, topic)
        assert not [each for each in target.admin.doctor() if each.subject == f"mirror {name}"]


def send(client: msgtx.Client, topic: str, *values: bytes) -> None:
    """Send records, each in a batch of its own."""
    for value in values:
        client.producer().send(topic, value).result(SECONDS)
