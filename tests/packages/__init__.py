"""Public packages that use confluent-kafka, by their own tests, on msgtx (`make test-compat`)."""
