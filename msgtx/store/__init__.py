"""One module per verb: lock, read, decide and write in the database, and hand back values."""
