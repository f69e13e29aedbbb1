"""LoRA adapters, as vLLM names them."""
from __future__ import annotations

from .request import LoRARequest as LoRARequest

__all__ = ["LoRARequest"]
