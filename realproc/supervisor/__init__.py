"""A run with real processes: the engine process, its confinement, the budgets it receives, and the monitor."""
