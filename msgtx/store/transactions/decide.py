"""Decide: phase one, the one durable row that is a transaction's outcome."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from msgtx.database.calls import call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.errors import MsgtxError
from msgtx.generated import calls
from msgtx.store.append.append import error_of
from msgtx.store.groups.groups import NO_OFFSETS, OffsetColumns
from msgtx.types import TransactionId

Ending = Literal["COMMIT", "ABORT"]


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer to a decision.

    `outcome` is how the transaction ended, None if nothing is decided; `last_sequences` has, after an ABORT, the last
    stored sequence by partition id: −1 if none, None if the partition is gone.
    """

    error: MsgtxError | None
    outcome: Ending | None
    last_sequences: dict[int, int | None]


def decide(
    connection: RawConnection,
    transaction_id: TransactionId,
    outcome: Ending,
    *,
    tails: Mapping[int, int],
    offsets: OffsetColumns = NO_OFFSETS,
    decided_by: Literal["client", "admin"] = "client",
    wake: bool = True,
) -> Decided:
    """End a transaction by its name (I4). `tails`: the last sequence sent, by partition id. Repeatable."""
    arguments = (*transaction_id, outcome, Int4Array(tails), Int8Array(tails.values()), *offsets.arguments())
    (row,) = call(connection, calls.DECIDE, *arguments, decided_by, wake)
    last = dict(zip(tails, row.last_sequences, strict=True)) if row.last_sequences else {}
    return Decided(error_of(row.error, row.detail), cast(Ending | None, row.outcome), last)
