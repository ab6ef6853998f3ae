"""The coordinator's work, as code before it is a process: the two phases' second half and the sweeps."""
