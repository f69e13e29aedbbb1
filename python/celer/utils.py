"""What scripts for vLLM import beside its classes."""
from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

__all__ = ["FlexibleArgumentParser"]


class FlexibleArgumentParser(argparse.ArgumentParser):
    """An ArgumentParser that takes --max_model_len for --max-model-len."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        import sys

        given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args([self._dashed(one) for one in given], namespace)

    @staticmethod
    def _dashed(argument: str) -> str:
        name, equals, value = argument.partition("=")
        return name.replace("_", "-") + equals + value if name.startswith("--") else argument
