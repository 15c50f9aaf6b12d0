"""Prove it wrong: faults of every kind, seeded, against the real thing; what was found is counted, and told."""
