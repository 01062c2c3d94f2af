"""The pure core: facts in, decisions out; no I/O, no clock, no randomness, standard library only."""
