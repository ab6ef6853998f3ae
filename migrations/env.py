"""What Alembic runs for every command: it works on the connection that `msgtx.database.schema.migrate` hands over."""

from alembic import context

connection = context.config.attributes.get("connection")
if connection is None:
    raise SystemExit("run `msgtx db upgrade`: it locks, and renews the functions in the same SQL transaction")
context.configure(connection=connection, version_table_schema="msgtx", transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
