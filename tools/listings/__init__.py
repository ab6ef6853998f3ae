"""Lists to read and to review as a difference: decisions, sentences of errors, what is public. `make generate` writes them."""
