"""Workers of one group in a storm: killed, stopped, asked to end, joined by others, while input comes all the time."""
