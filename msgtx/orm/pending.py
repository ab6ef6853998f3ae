"""The records that a session has not committed yet, for tests (how-to: testing)."""

import sqlalchemy
from sqlalchemy.orm import Session, scoped_session

from msgtx.session.enlistment import published_in
from msgtx.types import OutputRecord


def pending(session: Session | scoped_session[Session] | sqlalchemy.Connection) -> list[OutputRecord]:
    """Return the records that a session's open SQL transaction has published, in their order.

    They are there with its COMMIT: with the outermost one, if the session's own commit only releases a savepoint. Raise
    `TypeError` if it is no session of SQLAlchemy.
    """
    return [
        OutputRecord(each.value, each.key, each.headers, each.timestamp, each.topic.name, each.partition)
        for each in published_in(session)
    ]
