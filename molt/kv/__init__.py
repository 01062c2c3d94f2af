"""The attention state: what it is, how it crosses from one rung to another, how the crossing is judged."""
