"""Pico, the embedded ladder: two small trained rungs that ship with the package.

Reading order: `sources`, `markup` and `corpus` (text), `tokenizer` (bytes to ids), `train` (weights),
`evaluate` (gates), `card` (the model card). The shipped files lie in the folder `WEIGHTS`.
"""

from pathlib import Path

WEIGHTS = Path(__file__).parent / "weights"
TIERS = ("tier0", "tier1")
"""The rungs with weights of their own, the largest first; tier2 is tier1 quantised to INT8 at load time."""

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
