"""`client.admin.spark` and `msgtx spark status`: what applications of Spark have committed, and what is under way."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

import msgtx
from msgtx import errors
from msgtx.store.spark import BatchRange, decide_batch
from tests.admin.conftest import Realm
from tests.cli.conftest import msgtx as program  # noqa: F401 - a fixture
from tests.cli.program import Ended
from tests.databases import Connection
from tests.refusals import refuses
from tests.store.batches import attempt, name
from tests.store.steps import new_partition, unique

pytestmark = pytest.mark.slow


def query_of(client: msgtx.Client, application: str) -> msgtx.SparkQuery:
    (found,) = [one for one in client.admin.spark.list() if one.application == application]
    return found


def test_a_query_tells_its_fence_row_and_what_a_batch_does_again(client: msgtx.Client, connection: Connection) -> None:
    partition = new_partition(connection)
    of = name()._replace(query_id="stream", batch_id=7)
    attempt(connection, of, partition, b"left")
    first = query_of(client, of.app_id)
    assert (first.last_batch, first.decided_at, first.undecided_attempts, first.undecided_batch) == (None, None, 1, 7)
    assert first.undecided_since is not None
    assert first.rerun == "batch 7 is written; its earlier attempts are aborted"
    accepted = attempt(connection, of, partition, b"x")
    assert decide_batch(connection, of, [accepted], run_id="run").error is None
    attempt(connection, of._replace(batch_id=8), partition, b"next")
    second = query_of(client, of.app_id)
    assert (second.query_id, second.last_batch, second.run_id) == ("stream", 7, "run")
    assert (second.undecided_attempts, second.undecided_batch) == (1, 8)
    assert second.rerun == "batch 7 is skipped, an earlier one is refused; batch 8 is written"


def test_batches_that_a_program_counts_have_no_query(client: msgtx.Client, connection: Connection) -> None:
    partition = new_partition(connection)
    of = name()._replace(query_id="", batch_id=0)
    assert decide_batch(connection, of, [attempt(connection, of, partition, b"x")]).error is None
    found = query_of(client, of.app_id)
    assert (found.query_id, found.run_id, found.last_batch, found.undecided_attempts) == (None, None, 0, 0)
    assert found.rerun == "batch 0 is skipped, and so are earlier ones; batch 1 is written"


def test_each_query_of_an_application_is_one_and_an_answer_has_an_end(client: msgtx.Client, connection: Connection) -> None:
    partition = new_partition(connection)
    application = unique("\x1b[2J\u202eapp")
    for query_id in ("a", "b", "c"):
        for batch_id in range(3):
            of = name()._replace(app_id=application, query_id=query_id, batch_id=batch_id)
            read = {partition: BatchRange(None, batch_id + 1)}
            decide_batch(connection, of, [attempt(connection, of, partition, b"x")], group=application, ranges=read)
    found = [one for one in client.admin.spark.list() if one.application == application]
    assert [(one.query_id, one.last_batch) for one in found] == [("a", 2), ("b", 2), ("c", 2)]
    assert len(client.admin.spark.list(2)) == 2
    with refuses(errors.InvalidRequest, name="most"):
        client.admin.spark.list(0)


def test_it_takes_the_right_to_observe_every_topic(realm: Realm) -> None:
    with msgtx.connect(realm.roles.url_of(realm.roles.make("observe:*"))) as guest:
        guest.admin.spark.list()
    for right in ("observe:orders", "consume:*", "produce:*"):
        with msgtx.connect(realm.roles.url_of(realm.roles.make(right))) as guest, refuses(errors.AuthorizationFailed):
            guest.admin.spark.list()


def test_the_command_shows_the_same_and_needs_no_spark(
    program: Callable[..., Ended],  # noqa: F811
    connection: Connection,
) -> None:
    partition = new_partition(connection)
    of = name()._replace(query_id="q", batch_id=3)
    decide_batch(connection, of, [attempt(connection, of, partition, b"x")], run_id="run")
    done = program("spark", "status", "-o", "json")
    (row,) = [row for row in json.loads(done.out) if row["application"] == of.app_id]
    assert row.keys() == set(msgtx.SparkQuery.__dataclass_fields__)
    assert (row["last_batch"], row["run_id"], row["decided_at"][-1]) == (3, "run", "Z")
    table = program("spark", "status")
    assert (table.code, table.err) == (0, "")
    assert all(letter == "\n" or letter.isprintable() for letter in table.out.decode())
    without = "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'pyarrow', 'py4j'))); import msgtx.cli.spark.status"
    subprocess.run([sys.executable, "-c", without], check=True)
