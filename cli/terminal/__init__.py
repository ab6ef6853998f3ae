"""The common parts of commands: options, questions, output, interruption, failure."""
