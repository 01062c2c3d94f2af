"""Hypothesis profiles: derandomised by default and in CI, ``MOLT_HYPOTHESIS=night`` draws anew and longer, ``mutants``
only says whether an example fails, and not which is the smallest."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "ci", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "night", deadline=None, print_blob=True, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("mutants", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate))
settings.load_profile(os.environ.get("MOLT_HYPOTHESIS", "ci"))
