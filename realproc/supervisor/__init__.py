"""A run with real processes: the engine process, where it is confined, what it is told, who watches."""
