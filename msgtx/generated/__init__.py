"""Files that `make generate` writes and nobody edits."""
