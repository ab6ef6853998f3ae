"""The command line, without logic of its own: a command per noun, and the terminal that they share."""
