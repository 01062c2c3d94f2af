"""Real processes under real memory pressure."""
