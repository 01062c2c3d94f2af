"""What every world has: its loop body, the round and the steps, its books of memory, and the checkers of a round."""
