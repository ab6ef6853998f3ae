"""Pure rules: values in, a decision out. No clock, no randomness, no logging."""
