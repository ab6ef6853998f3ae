"""Decide: phase one, the one durable row that is a transaction's outcome."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from msgtx.database.calls import Function, call
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.errors import MsgtxError
from msgtx.store.append import error_of
from msgtx.store.groups import NO_OFFSETS, OFFSET_ARGUMENTS, OffsetColumns
from msgtx.types import TransactionId

Ending = Literal["COMMIT", "ABORT"]
DECIDE: Final = Function(
    "decide",
    {
        "in_producer_id": "int8",
        "in_producer_epoch": "int4",
        "in_transaction_number": "int8",
        "in_outcome": "text",
        "tail_partitions": "int4[]",
        "tail_sequences": "int8[]",
        **OFFSET_ARGUMENTS,
        "in_decided_by": "text",
        "wake": "bool",
    },
)


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
    ((decided, _, name, detail, stored),) = call(connection, DECIDE, *arguments, decided_by, wake)
    last = dict(zip(tails, stored, strict=True)) if stored else {}
    return Decided(error_of(name, detail), decided, last)
