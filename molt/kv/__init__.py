"""The attention state at run time: what it is, and how it is taken from one rung to another.

Reading order: ``kv_state`` (the value and the shape legend), ``key_rotation``, ``cache`` (what a generation holds),
``loaded_rung`` (a rung that prefills and decodes), ``features`` -> ``project`` -> ``map_file`` (the learned map and its
file), ``transplant`` (composes them), ``heal`` (repairs a carried cache while it is in use), ``spill`` (a cache on
disk), ``handoff_quality`` (how good a switch was). ``molt.fitting`` makes maps, ``molt.evals`` judges them.
"""

import molt.openmp  # noqa: F401  before torch
