"""Coordinators, their shards and what sweeps look for (architecture: tables)."""

import sqlalchemy
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

SHARDS = 50


def upgrade() -> None:
    """Create the leases; give every producer its shard; index the transactions that history cannot find otherwise."""
    for statement in TABLES:
        op.execute(statement)
    op.execute(f"insert into msgtx.coordinator_shard (shard) select generate_series(0, {SHARDS - 1})")
    op.execute("alter table msgtx.producer add column shard int")
    connection = op.get_bind()
    producers = connection.execute(sqlalchemy.text("select producer_id, transactional_id from msgtx.producer")).all()
    if producers:
        connection.execute(
            sqlalchemy.text("update msgtx.producer set shard = :shard where producer_id = :producer_id"),
            [{"producer_id": number, "shard": _shard(name, number)} for number, name in producers],
        )
    op.execute(
        f"""alter table msgtx.producer alter column shard set not null,
            add constraint producer_shard_is_known check (shard between 0 and {SHARDS - 1})"""
    )
    # Transactions without records (offsets only, aborted before anything was stored) become history, too.
    op.execute(
        """create index transaction_decision_decided_at_empty on msgtx.transaction_decision (decided_at)
            where partitions = '{}'"""
    )
    op.execute("update msgtx.installation set schema_version = 2")


def downgrade() -> None:
    """Remove what `upgrade` made."""
    op.execute("drop index msgtx.transaction_decision_decided_at_empty")
    op.execute("alter table msgtx.producer drop column shard")
    op.execute("drop table msgtx.coordinator_shard")
    op.execute("drop table msgtx.coordinator")


def _shard(transactional_id: str | None, producer_id: int) -> int:
    """Return what function `shard_of` returns; functions are created after the tables."""
    if transactional_id is None:
        return producer_id % SHARDS
    units = transactional_id.encode("utf-16-be", "surrogatepass")
    code = 0
    for index in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[index : index + 2])) & 0xFFFFFFFF
    return (0 if code == 1 << 31 else min(code, (1 << 32) - code)) % SHARDS


TABLES = (
    """create table msgtx.coordinator (
        coordinator_id bigint generated always as identity constraint coordinator_pkey primary key,
        host text not null,
        process int not null,
        started_at timestamptz not null,
        lease_until timestamptz not null
    ) with (fillfactor = 50)""",
    f"""create table msgtx.coordinator_shard (
        shard int not null constraint coordinator_shard_pkey primary key
            constraint coordinator_shard_is_known check (shard between 0 and {SHARDS - 1}),
        coordinator_id bigint,
        coordinator_epoch int not null default 0,
        leased_at timestamptz
    )""",
)
