"""`msgtx activity`: its shape, its bounds, and roles that may see one topic."""

import json
from collections.abc import Callable, Iterator

import pytest

from msgtx import Client, errors
from tests.cli.program import Ended
from tests.databases import Server
from tests.refusals import refuses
from tests.roles import Roles

pytestmark = pytest.mark.slow

Msgtx = Callable[..., Ended]


@pytest.fixture
def roles(server: Server, database_url: str) -> Iterator[Roles]:
    """Logins with few rights."""
    made = Roles(server, database_url)
    yield made
    made.drop()


def test_json_has_a_row_for_each_piece(msgtx: Msgtx, client: Client, topic: str) -> None:
    with client.producer() as producer:
        producer.send(topic, b"x")
    done = msgtx("activity", "--topic", topic, "--minutes", "10", "--pieces", "2", "-o", "json")
    older, newer = json.loads(done.out)
    assert older.keys() == {"start", "end", "records", "removed", "committed", "aborted", "estimated"}
    assert older["start"].endswith(":00.000Z")
    assert older["end"] == newer["start"]
    assert older["records"] + newer["records"] == 1
    assert (newer["removed"], newer["committed"], newer["aborted"], newer["estimated"]) == (0, 0, 0, False)
    assert len(msgtx("activity", "-o", "jsonl").rows) == 60
    assert msgtx("activity").out.startswith(b"start ")


@pytest.mark.parametrize(
    "options", [("--minutes", "0"), ("--minutes", "10081"), ("--pieces", "0"), ("--pieces", "241"), ("--topic", "nowhere")]
)
def test_what_is_out_of_bounds_is_wrong_usage(msgtx: Msgtx, options: tuple[str, str]) -> None:
    done = msgtx("activity", *options)
    assert (done.code, done.out) == (2, b"")


def test_a_role_sees_the_activity_of_its_topics_alone(client: Client, topic: str, wide: str, roles: Roles) -> None:
    import msgtx

    for name in (topic, wide, wide):
        with client.producer(transactional_id=name) as producer, producer.transaction():
            producer.send(name, b"x")
    for right, there in ((f"observe:{topic}", 1), (f"consume:{wide}", 2)):
        with msgtx.connect(roles.url_of(roles.make(right))) as guest:
            found = guest.admin.activity(10)
            assert sum(one.records or 0 for one in found) == sum(one.committed or 0 for one in found) == there
    with msgtx.connect(roles.url_of(roles.make(f"produce:{topic}", f"observe:{wide}"))) as guest:
        with refuses(errors.AuthorizationFailed, topic=topic):
            guest.admin.activity(topic=topic)
        assert sum(one.records or 0 for one in guest.admin.activity()) == 2
    with (
        msgtx.connect(roles.url_of(roles.make(f"observe:{wide}"))) as guest,
        refuses(errors.UnknownTopicOrPartition, topic=topic),
    ):
        guest.admin.activity(topic=topic)
