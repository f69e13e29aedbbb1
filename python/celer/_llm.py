"""vLLM's LLM and LLMEngine."""
from __future__ import annotations

import argparse
import inspect
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from numbers import Integral
from typing import Any, TypeVar

from ._arguments import NotPickled, named, number, only, path, prompt_ids, strings, unknown, whole
from ._core import Batch, Core, Progress, Running, is_ids
from ._model import Tokenizer, chat_body, embeddings, normalized
from .lora.request import LoRARequest, Loras
from .outputs import (BeamSearchOutput, BeamSearchSequence, EmbeddingOutput, EmbeddingRequestOutput, RequestOutput, ScoringOutput,
                      ScoringRequestOutput, TextPrompt, TokensPrompt)
from .sampling_params import BeamSearchParams, PoolingParams, SamplingParams

Prompt = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]
Prompts = Prompt | Sequence[Prompt] | Iterable[str]
T = TypeVar("T")

_DTYPES = {"auto": "stored", "float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16"}
_KV_TYPES = {"auto": "f16", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "fp8_e4m3": "fp8", "int8_per_token_head": "int8"}
# Formats that files say themselves.
_STORED = ("gguf", "gptq", "awq", "gptq_marlin", "awq_marlin", "compressed-tensors", "fp8", "modelopt")


@dataclass
class EngineArgs:
    """vLLM's arguments of a model, and celer's own behind them. What has no meaning here is refused by name."""

    model: Any  # a path, a name, or a model of transformers
    tokenizer: Any = None  # a path, or an AutoTokenizer
    tokenizer_mode: str = "auto"
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False  # nothing in a model's files is executed
    runner: str = "auto"
    task: str | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    dtype: str = "auto"
    quantization: str | None = None
    revision: str | None = None
    tokenizer_revision: str | None = None
    chat_template: str | os.PathLike[str] | None = None
    seed: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    swap_space: float = 0
    cpu_offload_gb: float = 0
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    enforce_eager: bool = False  # these five say how others run; an answer does not depend on them
    disable_log_stats: bool = True
    disable_log_requests: bool = True
    disable_custom_all_reduce: bool = False
    max_seq_len_to_capture: int | None = None
    max_logprobs: int = 20
    enable_lora: bool = False
    max_loras: int = 1  # sequences of any number of adapters share a step
    max_cpu_loras: int | None = None  # in memory at once; the least recently used one that is idle makes room
    max_lora_rank: int | None = None  # None: any
    fully_sharded_loras: bool = False
    speculative_config: dict[str, Any] | None = None
    # celer's own.
    device: str = "auto"
    threads: int = 0
    deterministic: bool = False
    pooling: str = ""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """A flag for each argument: --max-model-len and so on."""
        for one in fields(EngineArgs):
            flag, kind = "--" + one.name.replace("_", "-"), str(one.type)
            default = None if one.default is MISSING else one.default
            if kind.startswith("bool"):
                parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
            elif kind.startswith("dict"):
                parser.add_argument(flag, type=json.loads, default=default)
            else:
                parser.add_argument(flag, type=int if kind.startswith("int") else float if kind.startswith("float") else str, default=default)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        return cls(**{one.name: getattr(args, one.name) for one in fields(cls) if hasattr(args, one.name)})

    def _check_types(self) -> None:
        """As they are annotated. Objects of transformers, and PyTorch's data types, are read elsewhere."""
        for one in fields(self):
            value, kinds = getattr(self, one.name), str(one.type).split(" | ")
            if one.name == "dtype" or (value is None and "None" in kinds):
                continue
            if kinds[0] == "int":
                setattr(self, one.name, whole(one.name, value))
            elif kinds[0] == "float":
                number(one.name, value, float("-inf"), float("inf"))
            elif kinds[0] in ("bool", "str") and not isinstance(value, (bool if kinds[0] == "bool" else (str, os.PathLike))):
                raise TypeError(f"{one.name} is {value!r}, expected {'True or False' if kinds[0] == 'bool' else 'a string'}")
            elif kinds[0].startswith("dict") and not isinstance(value, Mapping):
                raise TypeError(f"{one.name} is {value!r}, expected a dict")

    def check(self) -> None:
        self._check_types()
        one_device = "a process has one engine, whose ranks share every layer (tensor_parallel_size)"
        for name in ("pipeline_parallel_size", "data_parallel_size"):
            only(name, getattr(self, name), (1,), one_device)
        only("tokenizer_mode", self.tokenizer_mode, ("auto", "slow", "fast", "hf"), "the tokenizer is celer's own")
        only("skip_tokenizer_init", self.skip_tokenizer_init, (False,), "a model comes with its tokenizer")
        only("runner", self.runner, ("auto", "generate", "pooling"), "there is generation and pooling")
        only("task", self.task, (None, "auto", "generate", "embed", "embedding", "score"), "there is generation, embedding and scoring")
        only("revision", self.revision, (None,), "name the model hf:ORG/NAME@REVISION and fetch it with `celer pull`")
        only("tokenizer_revision", self.tokenizer_revision, (None,), "give a tokenizer's folder")
        only("cpu_offload_gb", self.cpu_offload_gb, (0, 0.0), "weights stay on one device")
        only("block_size", self.block_size, (None, 16), "blocks have 16 tokens")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ValueError(f"max_cpu_loras is {self.max_cpu_loras}, expected at least max_loras, which is {self.max_loras}")
        only("enable_chunked_prefill", self.enable_chunked_prefill, (None, True), "prompts are always computed in pieces")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(f"gpu_memory_utilization is {self.gpu_memory_utilization}, expected more than 0, at most 1")
        for name in ("tensor_parallel_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory_bytes", "max_loras", "max_cpu_loras",
                     "max_lora_rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value!r}, expected a whole number from 1 on")

    def weights(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        if dtype not in _DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}, expected one of {', '.join(_DTYPES)}")
        if self.quantization in (None, *_STORED):
            # 16 bits name what is computed with elsewhere; weights that are stored narrower stay so.
            return "stored" if self.quantization else _DTYPES[dtype]
        return str(self.quantization)

    def speculation(self) -> str:
        config = dict(self.speculative_config or {})
        if not config:
            return "off"
        method = config.pop("method", None)
        draft = config.pop("model", None)
        config.pop("num_speculative_tokens", None)  # chosen while it runs
        config.pop("prompt_lookup_max", None)
        config.pop("prompt_lookup_min", None)
        if config:
            raise unknown("speculative_config", next(iter(config)),
                          ("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"))
        if method in ("ngram", "lookup"):
            return "lookup"
        if method == "mtp" or (method or "").endswith("_mtp"):
            return "mtp"
        if method in (None, "draft_model") and draft:
            return str(draft)
        raise NotImplementedError(f"speculative_config has the method {method!r}, expected ngram, mtp, or a draft model")

    def options(self) -> dict[str, Any]:
        """Of celer.load."""
        self.check()
        if not 0 <= self.swap_space <= 2**20:
            raise ValueError(f"swap_space is {self.swap_space}, expected 0 to {2**20} GiB")
        template = "" if self.chat_template is None else path("chat_template", self.chat_template)
        return {"tokenizer": "" if self.tokenizer is None else self.tokenizer, "chat_template": template, "weights": self.weights(),
                "kv": _KV_TYPES.get(self.kv_cache_dtype, self.kv_cache_dtype),
                "kv_memory": "" if self.kv_cache_memory_bytes is None else f"{self.kv_cache_memory_bytes}B",
                "kv_host_memory": int(self.swap_space * 2**30), "device": self.device, "threads": self.threads,
                "context": self.max_model_len or 0, "chunk": min(self.max_num_batched_tokens or 512, 65536),
                "sequences": self.max_num_seqs or 0, "prefix_cache": self.enable_prefix_caching is not False,
                "deterministic": self.deterministic, "speculation": self.speculation(), "pooling": self.pooling,
                "tensor_parallel_size": self.tensor_parallel_size,
                "gpu_memory": 0.0 if self.gpu_memory_utilization == EngineArgs.gpu_memory_utilization else self.gpu_memory_utilization,
                "enable_lora": self.enable_lora, "max_loras": self.max_cpu_loras or 0, "max_lora_rank": self.max_lora_rank or 0}


def make_args(model: Any, kwargs: Mapping[str, Any], where: str) -> EngineArgs:
    known = [one.name for one in fields(EngineArgs)]
    for name in kwargs:
        if name not in known:
            raise unknown(where, name, known)
    return EngineArgs(model, **kwargs)


def spread(where: str, value: T | Sequence[T] | None, count: int, default: Callable[[], T]) -> list[T]:
    """One for each prompt."""
    if value is None:
        return [default()] * count
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != count:
            raise ValueError(f"{where} has {len(value)} items for {count} prompts")
        return list(value)
    one: Any = value
    return [one] * count


def read_prompt(prompt: Prompt) -> tuple[str | None, dict[str, Any]]:
    """The prompt's text, if it is one, and its part of the request."""
    if isinstance(prompt, str):
        return prompt, {"prompt": prompt}
    if isinstance(prompt, Mapping):
        given = dict(prompt)
        text = given.get("prompt")
        if given.get("multi_modal_data"):
            raise NotImplementedError("multi_modal_data is not supported: models read text")
        if "prompt_token_ids" in given:
            ids: Any = given["prompt_token_ids"]
            return text if isinstance(text, str) else None, {"prompt": prompt_ids("prompt_token_ids", ids)}
        if isinstance(text, str):
            return text, {"prompt": text}
        raise TypeError(f"a prompt has the keys {', '.join(given) or '(none)'}, expected prompt or prompt_token_ids")
    if is_ids(prompt):
        return None, {"prompt": prompt_ids("a prompt", prompt)}
    raise TypeError(f"a prompt is {prompt!r}, expected a text, token ids, or a dict with prompt or prompt_token_ids")


def list_prompts(prompts: Prompts) -> list[Prompt]:
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, Iterable) or isinstance(prompts, (bytes, bytearray, memoryview)):
        raise TypeError(f"prompts is {prompts!r}, expected texts or token ids")
    found = list(prompts)
    if found and all(isinstance(one, Integral) for one in found):
        return [found]  # type: ignore[list-item]
    return found  # type: ignore[return-value]


def shows_arguments(kind: type[T]) -> type[T]:
    """help() and editors list the fields of EngineArgs where the code has **kwargs."""
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [inspect.Parameter(
        one.name, inspect.Parameter.POSITIONAL_OR_KEYWORD if one.name == "model" else inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if one.default is MISSING else one.default, annotation=one.type) for one in fields(EngineArgs)]
    setattr(kind.__init__, "__signature__", inspect.Signature(parameters))
    return kind


@shows_arguments
class LLM(NotPickled):
    """vLLM's LLM: a model for many prompts at once. EngineArgs lists what it takes; unknown names are errors."""

    def __init__(self, model: Any, **kwargs: Any) -> None:
        self._args = make_args(model, kwargs, "LLM")
        self._start()

    def _start(self) -> None:
        self._core = Core(self._args.model, **self._args.options())
        self._loras = Loras(self._core, self._args.enable_lora)
        self._tokenizer = Tokenizer(self._core)
        self._ids = itertools.count()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        made = cls.__new__(cls)
        made._args = engine_args
        made._start()
        return made

    def __repr__(self) -> str:
        return f"LLM(model={self._core.name!r}, device={self._core.info['device']!r})"

    def close(self) -> None:
        """Frees the memory; `del` does the same."""
        self._core.native.close()

    shutdown = close

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """As the model's files say."""
        return SamplingParams(**self._core.native.defaults())

    @property
    def llm_engine(self) -> LLMEngine:
        """An engine over the same model, to be stepped."""
        return LLMEngine(self._core, self._args.seed, self._loras)

    def _seeded(self, params: SamplingParams, number: int) -> dict[str, int]:
        if params.seed is not None or self._args.seed is None:
            return {}
        return {"seed": self._args.seed + number}

    def _run(self, endpoint: str, bodies: Sequence[tuple[str | None, dict[str, Any]]], params: Sequence[SamplingParams],
             priority: Sequence[int], loras: Sequence[LoRARequest | None], use_tqdm: object) -> list[RequestOutput]:
        batch = Batch(self._core)
        every = []
        progress = Progress(use_tqdm, len(bodies), "Processed prompts")
        try:
            for (text, body), one, first, lora in zip(bodies, params, priority, loras):
                number = next(self._ids)
                running = Running(self._core, str(number), text, one, number, lora)
                body = body | one.to_json(chat=endpoint == "chat") | self._seeded(one, number)
                if first:
                    body["priority"] = first
                with self._loras.using(lora) as adapter:
                    batch.submit(running, endpoint, body | adapter, one.timeout)
                every.append(running)
            for _ in batch.updates(whole=True):
                progress.step()
        finally:
            batch.cancel()
            progress.close()
        return [running.output() for running in every]

    @named
    def generate(
        self, prompts: Prompts, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
        use_tqdm: bool | Callable[..., Any] = True, lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """An answer, or n, to each prompt; in their order. Requests run together, also those with different adapters."""
        listed = [read_prompt(one) for one in list_prompts(prompts)]
        params = spread("sampling_params", sampling_params, len(listed), self.get_default_sampling_params)
        return self._run("completions", listed, check_params(params), spread("priority", priority, len(listed), int),
                         spread_loras(lora_request, len(listed)), use_tqdm)

    @named
    def chat(
        self, messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, use_tqdm: bool | Callable[..., Any] = True, *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None, priority: int | Sequence[int] | None = None,
        chat_template: None = None,
        add_generation_prompt: bool = True, continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers to a conversation, or to several."""
        only("chat_template", chat_template, (None,), "give it to LLM(chat_template=FILE)")
        if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
            raise TypeError("messages is a list of messages, or a list of such lists")
        several: Any = [messages] if isinstance(messages[0], Mapping) else messages
        listed: list[tuple[str | None, dict[str, Any]]] = [
            (None, chat_body(one, tools, add_generation_prompt, continue_final_message, chat_template_kwargs)) for one in several]
        params = spread("sampling_params", sampling_params, len(listed), self.get_default_sampling_params)
        outputs = self._run("chat", listed, check_params(params), spread("priority", priority, len(listed), int),
                            spread_loras(lora_request, len(listed)), use_tqdm)
        for output in outputs:
            output.prompt = self._tokenizer.decode(output.prompt_token_ids or [])
        return outputs

    @named
    def beam_search(self, prompts: Prompts, params: BeamSearchParams,
                    lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
                    use_tqdm: bool = False) -> list[BeamSearchOutput]:
        """The most likely texts, as `generate` of transformers finds them; tokens begin with the prompt's."""
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params is {params!r}, expected BeamSearchParams")
        batch = Batch(self._core)
        every = []
        listed = list_prompts(prompts)
        progress = Progress(use_tqdm, len(listed), "Beam search")
        try:
            for prompt, lora in zip(listed, spread_loras(lora_request, len(listed))):
                text, body = read_prompt(prompt)
                running = Running(self._core, str(next(self._ids)), text, SamplingParams(logprobs=0), 0, lora)
                with self._loras.using(lora) as adapter:
                    batch.submit(running, "completions", body | params.to_json() | adapter)
                every.append(running)
            for _ in batch.updates(whole=True):
                progress.step()
        finally:
            batch.cancel()
            progress.close()
        return [beams_output(running) for running in every]

    @named
    def embed(
        self, prompts: Prompts, *, use_tqdm: bool | Callable[..., Any] = True, pooling_params: PoolingParams | None = None,
        truncate_prompt_tokens: int | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The embedding of each text, of length 1."""
        params = pooling_params or PoolingParams()
        inputs: list[Any] = [read_prompt(one)[1]["prompt"] for one in list_prompts(prompts)]
        progress = Progress(use_tqdm, len(inputs), "Processed prompts")
        found = embeddings(self._core, inputs, truncate_prompt_tokens or params.truncate_prompt_tokens, progress)
        return [embedding_output(str(next(self._ids)), ids, values, params) for ids, values in found]

    @named
    def score(self, data_1: str | Sequence[str], data_2: str | Sequence[str], /, *, use_tqdm: bool = False) -> list[ScoringRequestOutput]:
        """How near texts are: one to each of several, or pair by pair; the cosine of their embeddings."""
        left, right = strings("data_1", data_1), strings("data_2", data_2)
        if len(left) == 1:
            left = left * len(right)
        if len(left) != len(right):
            raise ValueError(f"data_1 has {len(left)} texts and data_2 has {len(right)}, expected one, or as many")
        found = self.embed(left + right, use_tqdm=use_tqdm)
        outputs = []
        for one, other in zip(found[:len(left)], found[len(left):]):
            cosine = sum(a * b for a, b in zip(one.outputs.embedding, other.outputs.embedding))
            outputs.append(ScoringRequestOutput(one.request_id, ScoringOutput(cosine), one.prompt_token_ids + other.prompt_token_ids))
        return outputs

    def encode(self, *args: Any, **kwargs: Any) -> list[EmbeddingRequestOutput]:
        """embed() by its older name."""
        return self.embed(*args, **kwargs)


def beams_output(running: Running) -> BeamSearchOutput:
    return BeamSearchOutput([
        BeamSearchSequence(running.prompt_ids + one.token_ids, one.logprobs or [], one.cumulative_logprob or 0.0, one.text,
                           one.finish_reason, one.stop_reason)
        for _, one in sorted(running.answers.items())])


def embedding_output(request_id: str, ids: list[int], values: list[float], params: PoolingParams) -> EmbeddingRequestOutput:
    if params.dimensions is not None and params.dimensions > len(values):
        raise ValueError(f"dimensions is {params.dimensions}, but the model's embeddings have {len(values)} numbers")
    values = values[:params.dimensions]
    return EmbeddingRequestOutput(request_id, EmbeddingOutput(normalized(values) if params.normalize else values), ids)


def spread_loras(value: LoRARequest | Sequence[LoRARequest | None] | None, count: int) -> list[LoRARequest | None]:
    return spread("lora_request", value, count, lambda: None)


def check_params(params: Sequence[SamplingParams]) -> Sequence[SamplingParams]:
    for one in params:
        if not isinstance(one, SamplingParams):
            raise TypeError(f"sampling_params holds {one!r}, expected SamplingParams")
    return params


class LLMEngine(NotPickled):
    """vLLM's LLMEngine: requests are added one by one, and step() gives what came of them."""

    def __init__(self, core: Core, seed: int | None = None, loras: Loras | None = None) -> None:
        self._batch = Batch(core)
        self._loras = loras or Loras(core, False)
        self._seed = seed
        self._numbers = itertools.count()

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLMEngine:
        core = Core(engine_args.model, **engine_args.options())
        return cls(core, engine_args.seed, Loras(core, engine_args.enable_lora))

    def add_request(self, request_id: str, prompt: Prompt, params: SamplingParams, *, lora_request: LoRARequest | None = None,
                    priority: int = 0) -> None:
        """Queues a request; its id is in its outputs."""
        if request_id in self._batch.keys:
            raise ValueError(f"a request '{request_id}' is in flight already")
        check_params([params])
        text, body = read_prompt(prompt)
        number = next(self._numbers)
        body = body | params.to_json(chat=False)
        if params.seed is None and self._seed is not None:
            body["seed"] = self._seed + number
        if priority:
            body["priority"] = priority
        running = Running(self._batch.core, request_id, text, params, number, lora_request)
        with self._loras.using(lora_request) as adapter:
            self._batch.submit(running, "completions", body | adapter, params.timeout)

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter before a request needs it. False if it is there already."""
        return self._loras.add(lora_request)

    def remove_lora(self, lora_id: int) -> bool:
        """Requests that have it go on with it; its memory is free when they have ended."""
        return self._loras.remove(lora_id)

    def list_loras(self) -> set[int]:
        return self._loras.ids()

    def abort_request(self, request_id: str | Iterable[str]) -> None:
        """Its last output, with "abort", comes within one step."""
        for one in strings("request_id", request_id):
            if one in self._batch.keys:
                self._batch.queue.cancel(self._batch.keys[one])

    def has_unfinished_requests(self) -> bool:
        return bool(self._batch.running)

    def get_num_unfinished_requests(self) -> int:
        return len(self._batch.running)

    def step(self) -> list[RequestOutput]:
        """What came since the last call; waits for something while requests are in flight. A request that fails raises its error
        once, and the others go on."""
        found: list[RequestOutput] = []
        while self._batch.running and not found:
            for running, new in self._batch.take(0.05, False):
                output = running.streamed(new)
                if output is not None:
                    found.append(output)
        return found

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._batch.core)
