"""Tables of facts, without logic; `make generate` writes the copies."""
