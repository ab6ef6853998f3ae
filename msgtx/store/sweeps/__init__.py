"""What the coordinator does: sweeps, leases, compaction."""
