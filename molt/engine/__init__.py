"""How one generation is stepped: on real models, or by its costs alone, behind ``molt.core.engine_protocol``."""

import molt.openmp  # noqa: F401  before torch
