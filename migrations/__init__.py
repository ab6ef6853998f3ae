"""Versioned changes of the tables. Functions and views come from `msgtx/sql`."""
