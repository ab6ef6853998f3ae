"""Share groups: acquisitions and answers."""
