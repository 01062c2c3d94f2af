"""Tiny matrices gain nothing from a second thread, and wait for it on a busy machine."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
