"""Lists to read and to review as a difference: decisions, sentences of errors, what is public; by `make generate`."""
