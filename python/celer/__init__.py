"""celer: inference as close to the hardware's limit as physics allows.

    import celer
    model = celer.load("smollm2")
    for text in model.chat("Why is the sky blue?"):
        print(text, end="", flush=True)

Shapes that scripts for other engines have: LLM, AsyncLLM, LLMEngine and SamplingParams as in vLLM; InferenceSession as in
ONNX Runtime; celer.torch for PyTorch. What is possible at all: celer.limits(model, machine). docs/python.md has the rest.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from . import _celer

__version__: str = _celer.version()

# Looked up when they are first used: importing celer reads no numpy.
_WHERE = {
    "load": "_model", "from_transformers": "_transformers", "Model": "_model", "Tokenizer": "_model", "Generation": "_model",
    "LLM": "_llm", "LLMEngine": "_llm", "EngineArgs": "_llm", "AsyncLLM": "_async_llm", "AsyncLLMEngine": "_async_llm",
    "AsyncEngineArgs": "_async_llm", "SamplingParams": "sampling_params", "BeamSearchParams": "sampling_params",
    "StructuredOutputsParams": "sampling_params", "GuidedDecodingParams": "sampling_params",
    "RequestOutputKind": "sampling_params", "PoolingParams": "sampling_params",
    "RequestOutput": "outputs", "CompletionOutput": "outputs", "EmbeddingRequestOutput": "outputs", "ScoringRequestOutput": "outputs",
    "BeamSearchOutput": "outputs", "BeamSearchSequence": "outputs", "Logprob": "outputs",
    "LoRARequest": "lora.request",
    "TextPrompt": "outputs", "TokensPrompt": "outputs",
    "InferenceSession": "_session", "SessionOptions": "_session", "RunOptions": "_session", "GraphOptimizationLevel": "_session",
    "NodeArg": "_session", "Picture": "_session", "IOBinding": "_session", "OrtValue": "_session",
    "get_available_providers": "_session", "get_device": "_session",
    "limits": "_limits", "Limits": "_limits", "quantize": "_quantize", "serve": "_serve", "Server": "_serve",
}
_MODULES = ("lm_eval", "lora", "outputs", "resume", "sampling_params", "torch", "utils")
__all__ = ["__version__", "compile", *_WHERE]


def __getattr__(name: str) -> object:
    if name in _WHERE:
        return getattr(importlib.import_module("." + _WHERE[name], __name__), name)
    if name in _MODULES:
        return importlib.import_module("." + name, __name__)
    if name == "compile":
        return importlib.import_module(".torch", __name__).compile
    raise AttributeError(f"module 'celer' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])


if TYPE_CHECKING:
    from . import outputs as outputs, resume as resume, sampling_params as sampling_params, torch as torch, utils as utils
    from ._async_llm import AsyncEngineArgs as AsyncEngineArgs, AsyncLLM as AsyncLLM, AsyncLLMEngine as AsyncLLMEngine
    from ._limits import Limits as Limits, limits as limits
    from ._llm import LLM as LLM, EngineArgs as EngineArgs, LLMEngine as LLMEngine
    from ._model import Generation as Generation, Model as Model, Tokenizer as Tokenizer, load as load
    from ._quantize import quantize as quantize
    from ._serve import Server as Server, serve as serve
    from ._session import (
        GraphOptimizationLevel as GraphOptimizationLevel, InferenceSession as InferenceSession, IOBinding as IOBinding,
        NodeArg as NodeArg, OrtValue as OrtValue, Picture as Picture, RunOptions as RunOptions, SessionOptions as SessionOptions,
        get_available_providers as get_available_providers, get_device as get_device)
    from ._transformers import from_transformers as from_transformers
    from .lora.request import LoRARequest as LoRARequest
    from .outputs import (
        BeamSearchOutput as BeamSearchOutput, BeamSearchSequence as BeamSearchSequence, CompletionOutput as CompletionOutput,
        EmbeddingRequestOutput as EmbeddingRequestOutput, Logprob as Logprob, RequestOutput as RequestOutput,
        ScoringRequestOutput as ScoringRequestOutput, TextPrompt as TextPrompt, TokensPrompt as TokensPrompt)
    from .sampling_params import (
        BeamSearchParams as BeamSearchParams, GuidedDecodingParams as GuidedDecodingParams, PoolingParams as PoolingParams,
        RequestOutputKind as RequestOutputKind, SamplingParams as SamplingParams,
        StructuredOutputsParams as StructuredOutputsParams)
    from .torch import compile as compile
