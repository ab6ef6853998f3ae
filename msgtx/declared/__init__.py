"""Tables of what is said once: settings. `make generate` writes their copies."""
