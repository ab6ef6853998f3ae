"""The command line: one module per noun, no logic of its own."""
