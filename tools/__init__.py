"""Programs for those who work on msgtx."""
