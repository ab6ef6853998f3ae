"""The lowest floor that touches PostgreSQL: connections, errors, schema, the embedded server."""
