"""The tiny random rungs, on one thread."""

from tests.tiny_rungs import any_rung, ids, large, one_thread, small

__all__ = ["any_rung", "ids", "large", "one_thread", "small"]
