"""The attention state: what it is, how it crosses from one rung to another, how the crossing is judged.

Reading order: ``state`` (the value and the shape legend), ``rope``, ``cache`` (what a generation holds),
``resident`` (a rung that reads and answers), ``features`` -> ``ridge`` -> ``project`` -> ``map_file`` (the
learned map and its file), ``transplant`` (composes them), ``evaluate`` (judges the result), ``calibrate`` and
``fit`` (make a map from documents).
"""

import molt.engine  # noqa: F401  (sets the OpenMP wait policy, which must happen before torch is imported)
