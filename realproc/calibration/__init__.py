"""Measuring a profile of this machine: what every step costs, and what a live world adds to it."""
