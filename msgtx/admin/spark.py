"""Spark's applications as an administrator sees them: their committed batches, and their undecided attempts."""

import builtins
from typing import Final

from msgtx import arguments
from msgtx.database.pool import Engine
from msgtx.store.append.append import epoch_ms_or_none
from msgtx.store.spark import DescribedQuery, describe_queries
from msgtx.types import SparkQuery

MOST_QUERIES: Final = 10_000  # of one answer


class SparkAdmin:
    """`client.admin.spark`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(self, most: int = 1_000) -> "builtins.list[SparkQuery]":
        """Return the queries of Spark's applications by their names, at most `most` (1 to 10,000).

        Raise `AuthorizationFailed` without the right to observe every topic.
        """
        most = arguments.whole("most", most, least=1, most=MOST_QUERIES)
        with self._engine.connection() as connection:
            return [_query(one) for one in describe_queries(connection, most)]


def _query(one: DescribedQuery) -> SparkQuery:
    return SparkQuery(
        application=one.app_id,
        query_id=one.query_id or None,
        last_batch=one.batch_id,
        decided_at=epoch_ms_or_none(one.decided_at),
        run_id=one.run_id or None,
        undecided_attempts=one.undecided,
        undecided_batch=one.undecided_batch_id,
        undecided_since=epoch_ms_or_none(one.undecided_since),
        rerun=_rerun(one),
    )


def _rerun(one: DescribedQuery) -> str:
    """Tell the effect of a batch that is run again: see `decide_batch.sql`."""
    if one.batch_id is None:
        return f"batch {one.undecided_batch_id} is written; its earlier attempts are aborted"
    earlier = "an earlier one is refused" if one.query_id else "and so are earlier ones"
    return f"batch {one.batch_id} is skipped, {earlier}; batch {one.batch_id + 1} is written"
