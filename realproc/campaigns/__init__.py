"""Paired runs, hundreds of them: one process that holds its model, and one that changes it, pressed by turns."""
