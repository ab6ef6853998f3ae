"""Seats: a seal knows the session that alone can decide it."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables."""
    # Null: its session holds no seat, or it is sealed for an outside party; then its timeout alone ends it.
    op.execute("alter table msgtx.transaction_seal add column seat int")
    op.execute("update msgtx.installation set schema_version = 7")


def downgrade() -> None:
    """Undo what `upgrade` did."""
    op.execute("alter table msgtx.transaction_seal drop column seat")
    op.execute("update msgtx.installation set schema_version = 6")
