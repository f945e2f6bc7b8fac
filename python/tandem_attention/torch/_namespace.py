# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where the operations of this copy of the package live: torch.ops has one place for each name."""

from __future__ import annotations

from typing import Any

import torch

#: A copy beside an installed package has another name (python/tools/hf_kernel.py).
NAMESPACE = "tandem"
OPS: Any = getattr(torch.ops, NAMESPACE)
