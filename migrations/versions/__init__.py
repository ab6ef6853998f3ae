"""One module per schema version, numbered `0001`, `0002`, …; never edited after a release."""
