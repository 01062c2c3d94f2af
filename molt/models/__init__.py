"""Where weights come from, how a ladder is loaded and what it refuses."""
