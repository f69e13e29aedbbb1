"""Models and tokenizers that are objects of Hugging Face's transformers."""
from __future__ import annotations

import contextlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._arguments import unknown

if TYPE_CHECKING:
    from ._model import Model

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "uint8": "U8", "int8": "I8", "int16": "I16",
           "int32": "I32", "int64": "I64", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


def is_model(value: object) -> bool:
    return hasattr(value, "config") and hasattr(value, "state_dict")


def is_tokenizer(value: object) -> bool:
    return hasattr(value, "save_pretrained") and hasattr(value, "encode")


def name_of(model: Any) -> str:
    """What a model is called in messages."""
    return str(getattr(model.config, "name_or_path", "") or type(model).__name__)


def _state(model: Any) -> dict[str, Any]:
    """The weights under the names that files have, each once."""
    state = dict(model.state_dict())
    try:
        from transformers.core_model_loading import revert_weight_conversion  # of version 5: modules hold weights in other forms
    except ImportError:
        pass
    else:
        state = dict(revert_weight_conversion(model, state))
    found: dict[str, Any] = {}
    seen = set()
    for name, tensor in state.items():
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
        if tensor.numel() and place in seen:
            continue  # tied: the configuration says so
        seen.add(place)
        found[name] = tensor
    return found


def _write(state: Mapping[str, Any], file: int) -> None:
    """As safetensors. One tensor after the other is copied."""
    import torch

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in state.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in _DTYPES:
            raise NotImplementedError(f"the weight '{name}' has elements of {kind}, which files of weights do not have")
        if tensor.device.type == "meta":
            raise ValueError(f"the weight '{name}' is not loaded: it is on the device 'meta'")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[kind], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb", closefd=False) as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in state.values():
            if tensor.numel():
                out.write(memoryview(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()))


@contextlib.contextmanager
def as_files(model: Any, tokenizer: Any) -> Iterator[tuple[Any, Any]]:
    """The same as paths that celer loads. Weights stay in memory: their file has no place on a disk."""
    with contextlib.ExitStack() as stack:
        if is_model(model):
            if hasattr(model, "peft_config"):
                raise NotImplementedError("the model has adapters of PEFT; give model.merge_and_unload()")
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="celer-transformers-"))
            model.config.save_pretrained(folder)
            if getattr(model, "generation_config", None) is not None:
                with contextlib.suppress(ValueError):  # settings that contradict each other: then there are none
                    model.generation_config.save_pretrained(folder)
            file = os.memfd_create("model.safetensors")
            stack.callback(os.close, file)
            _write(_state(model), file)
            os.symlink(f"/proc/self/fd/{file}", os.path.join(folder, "model.safetensors"))
            if is_tokenizer(tokenizer):
                tokenizer.save_pretrained(folder)
                tokenizer = ""
            elif not tokenizer:
                raise TypeError("a model in memory needs a tokenizer: an AutoTokenizer, or the path of a tokenizer's files")
            model = folder
        if is_tokenizer(tokenizer):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="celer-tokenizer-"))
            tokenizer.save_pretrained(folder)
            tokenizer = folder
        yield model, tokenizer


def from_transformers(model: Any, tokenizer: Any = None, **options: Any) -> Model:
    """A model of transformers, as celer.load() gives it: `AutoModelForCausalLM.from_pretrained(...)`, or one that was just trained.

    tokenizer: an AutoTokenizer, or the path of its files. Other arguments are those of celer.load(). Nothing is written to a disk
    but the configuration and the tokenizer; celer holds the weights as they are now, a second time, or smaller with
    weights="int8". What changes in the model later does not change celer's. A model with adapters of PEFT is merged first:
    model.merge_and_unload().
    """
    import inspect

    from ._model import load

    if not is_model(model):
        raise TypeError(f"model is a {type(model).__name__}, expected a model of transformers; celer.load() takes paths")
    known = [name for name in inspect.signature(load).parameters if name not in ("model", "tokenizer")]
    for name in options:
        if name not in known:
            raise unknown("from_transformers", name, known)
    return load(model, tokenizer=tokenizer or "", **options)
