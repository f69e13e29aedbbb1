"""vLLM's LoRARequest, and the adapters of a model by it."""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._arguments import path, text, whole

if TYPE_CHECKING:
    from .._core import Core


@dataclass(frozen=True)
class LoRARequest:
    """An adapter: a PEFT folder or a GGUF file. It is loaded with the first request that has it, and known by its name."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = field(default=None, compare=False)
    tensorizer_config_dict: dict[str, Any] | None = field(default=None, compare=False)
    load_inplace: bool = False

    def __post_init__(self) -> None:
        if whole("lora_int_id", self.lora_int_id) < 1:
            raise ValueError(f"lora_int_id is {self.lora_int_id}, expected a whole number from 1 on")
        text("lora_name", self.lora_name)
        if not path("lora_path", self.lora_path):
            raise ValueError("lora_path is empty")
        if self.tensorizer_config_dict is not None:
            raise NotImplementedError("tensorizer_config_dict is not supported: adapters are files")

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path


class Loras:
    """The adapters of one engine. An adapter that a request has stays until that request ends."""

    def __init__(self, core: Core, enabled: bool) -> None:
        self._core, self._enabled = core, enabled
        self._lock = threading.RLock()
        self._known: dict[str, LoRARequest] = {}

    @contextlib.contextmanager
    def using(self, request: LoRARequest | None) -> Iterator[dict[str, Any]]:
        """What a request's body says of it. The request is to be submitted inside, before another adapter may replace it."""
        if request is None:
            yield {}
            return
        with self._lock:
            self.add(request)
            yield {"lora": [{"name": request.lora_name, "scale": 1.0}]}

    def add(self, request: LoRARequest) -> bool:
        """False if it is there already."""
        if not isinstance(request, LoRARequest):
            raise TypeError(f"lora_request is {request!r}, expected a LoRARequest")
        if not self._enabled:
            raise ValueError("lora_request needs enable_lora=True where the model is loaded")
        with self._lock:
            there = {one["name"]: one["path"] for one in self._core.native.adapters()}
            known = self._known.get(request.lora_name)
            if known is not None and known != request and not request.load_inplace:
                raise ValueError(f"the adapter '{request.lora_name}' is known as {known}; give another one another name")
            new = request.lora_name not in there
            if new or (request.load_inplace and known != request):
                self._core.native.load_adapter(request.lora_name, request.lora_path, request.load_inplace)
            self._known[request.lora_name] = request
            return new

    def remove(self, lora_id: int) -> bool:
        with self._lock:
            names = [name for name, one in self._known.items() if one.lora_int_id == lora_id]
            loaded = self.names()
            for name in names:
                del self._known[name]
                if name in loaded:
                    self._core.native.unload_adapter(name)
            return any(name in loaded for name in names)

    def names(self) -> set[str]:
        return {one["name"] for one in self._core.native.adapters()}

    def ids(self) -> set[int]:
        with self._lock:
            loaded = self.names()
            return {one.lora_int_id for name, one in self._known.items() if name in loaded}
