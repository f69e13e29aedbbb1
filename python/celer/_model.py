"""celer.load and what it gives: a model to talk to."""
from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._arguments import NotPickled, mapping_of, named, prompt_ids, several, strings, table, token_ids, whole
from ._arguments import text as _text
from ._core import DEFAULTS, Batch, Core, Progress, Running, to_body
from .sampling_params import SamplingParams, StructuredOutputsParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Messages = str | Sequence[Mapping[str, Any]]


class Tokenizer(NotPickled):
    """The model's tokenizer and its chat template."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def vocab_size(self) -> int:
        return int(self._core.info["vocab_size"])

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._core.native.bos()

    @property
    def eos_token_ids(self) -> list[int]:
        """The tokens that end a turn."""
        return self._core.native.end_tokens()

    @property
    def eos_token_id(self) -> int | None:
        return next(iter(self.eos_token_ids), None)

    def encode(self, text: str, add_special_tokens: bool = True, parse_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. parse_special_tokens: "<|im_end|>" in it becomes a control token; False for what others wrote."""
        return self._core.native.encode(_text("text", text), bool(add_special_tokens), bool(parse_special_tokens))

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> dict[str, Any]:
        """{"input_ids": ...}, as Hugging Face's tokenizers give it."""
        if isinstance(text, str):
            return {"input_ids": self.encode(text, add_special_tokens)}
        return {"input_ids": [self.encode(one, add_special_tokens) for one in several("text", text)]}

    def decode(self, tokens: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        ids = token_ids("tokens", [tokens] if isinstance(tokens, int) else tokens)
        return self._core.native.decode(ids, bool(skip_special_tokens))

    def convert_ids_to_tokens(self, tokens: Sequence[int]) -> list[str]:
        """The text of each token by itself."""
        return [self._core.piece(one) for one in token_ids("tokens", tokens)]

    def has_chat_template(self) -> bool:
        return self._core.native.has_chat_template()

    @named
    def apply_chat_template(
        self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] | None = None, add_generation_prompt: bool = True,
        continue_final_message: bool = False, chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation. What messages say stays text: none can say a control token."""
        body = chat_body(messages, tools, add_generation_prompt, continue_final_message, chat_template_kwargs)
        body.pop("tool_choice", None)
        return self._core.native.encode_chat(to_body(body))


def chat_body(messages: Messages, tools: Sequence[Mapping[str, Any]] | None, add_generation_prompt: bool,
              continue_final_message: bool, variables: Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, Iterable):
        raise TypeError(f"messages is {messages!r}, expected a text, or a list of messages")
    body: dict[str, Any] = {"messages": [dict(mapping_of("a message", one)) for one in messages]}
    if tools is not None:
        body["tools"] = [dict(mapping_of("a tool", one)) for one in several("tools", tools)]
    if continue_final_message or not add_generation_prompt:
        body |= {"add_generation_prompt": False if continue_final_message else add_generation_prompt,
                 "continue_final_message": continue_final_message}
    if variables:
        body["chat_template_kwargs"] = dict(mapping_of("chat_template_kwargs", variables))
    return body


class Generation(NotPickled):
    """An answer as it comes: an iterator of pieces of text. str() and .text wait for all of it. Leaving it early cancels it."""

    def __init__(self, core: Core, endpoint: str, body: Mapping[str, Any], params: SamplingParams) -> None:
        self._batch = Batch(core)
        self._running = Running(core, "0", None, params, 0)
        self._batch.submit(self._running, endpoint, body, params.timeout)
        self._pieces = self._read(self._batch)

    @staticmethod
    def _read(batch: Batch) -> Iterator[str]:
        """Holds no Generation, so that one that is dropped is cancelled at once and not by the next garbage collection."""
        for _, new in batch.updates(whole=False):
            for answer in new:
                if answer.text:
                    yield answer.text

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Cancels what has not come yet."""
        self._pieces.close()  # type: ignore[attr-defined]
        self._batch.cancel()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_pieces"):
            self.close()

    @property
    def text(self) -> str:
        """All of the answer, waiting for it; also what was iterated over already."""
        for _ in self:
            pass
        return self.text_so_far

    def __str__(self) -> str:
        return self.text

    @property
    def text_so_far(self) -> str:
        answer = self._running.answers.get(0)
        return answer.text if answer else ""

    @property
    def token_ids(self) -> list[int]:
        """So far."""
        answer = self._running.answers.get(0)
        return list(answer.token_ids) if answer else []

    @property
    def logprobs(self) -> Any:
        """So far, as in CompletionOutput."""
        answer = self._running.answers.get(0)
        return answer.logprobs if answer else None

    @property
    def prompt_token_ids(self) -> list[int]:
        return list(self._running.prompt_ids)

    @property
    def finish_reason(self) -> str | None:
        """"stop", "length" or "abort"; None while it goes on."""
        answer = self._running.answers.get(0)
        return answer.finish_reason if answer else None


class Model(NotPickled):
    """A model that answers; celer.load() makes one. Threads may share it, and their requests run together."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tokenizer = Tokenizer(core)

    def close(self) -> None:
        """Cancels what is in flight and frees the memory. Idempotent; `del` does the same."""
        self._core.native.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        info = self._core.info
        state = "closed" if self._core.native.closed else f"{info['weight_bytes'] / 1e6:,.0f} MB on {info['device']}"
        return f"<celer.Model {self._core.name!r}: {info['architecture']}, {state}>"

    def _repr_html_(self) -> str:
        info = self._core.info
        rows = {"architecture": info["architecture"], "layers": info["layers"], "vocabulary": f"{info['vocab_size']:,}",
                "context": f"{info['context']:,} tokens", "read for a token": f"{info['weight_bytes'] / 1e6:,.1f} MB",
                "KV of a token": f"{info['kv_bytes_per_token']:,} bytes", "device": f"{info['device']}, {info['threads']} threads"}
        return table(self._core.name + (" (closed)" if self._core.native.closed else ""), rows)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def info(self) -> dict[str, Any]:
        """architecture, vocab_size, context, kv_tokens, weight_bytes, threads, device, ..."""
        return dict(self._core.info)

    @property
    def stats(self) -> dict[str, int]:
        """Counts since it was loaded: steps, tokens, blocks of the KV cache."""
        return self._core.native.stats()

    def _params(self, **given: Any) -> SamplingParams:
        defaults = self._core.native.defaults()
        return SamplingParams(**{name: defaults[name] if value is None and name in defaults else value
                                 for name, value in given.items()})

    @named
    def generate(
        self, prompt: str | Sequence[int], *, max_tokens: int | None = 256, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, min_p: float | None = None, repetition_penalty: float | None = None, seed: int | None = None,
        stop: str | Sequence[str] | None = None, logprobs: int | None = None, ignore_eos: bool = False,
        structured_outputs: StructuredOutputsParams | dict[str, Any] | None = None, timeout: float | None = None,
    ) -> Generation:
        """The text that follows a prompt, as an iterator. What is not given is as the model's files say, else greedy."""
        params = self._params(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                              repetition_penalty=repetition_penalty, seed=seed, stop=stop, logprobs=logprobs, ignore_eos=ignore_eos,
                              structured_outputs=structured_outputs, timeout=timeout)
        text = prompt if isinstance(prompt, str) else prompt_ids("prompt", prompt)
        return Generation(self._core, "completions", {"prompt": text} | params.to_json(chat=False), params)

    @named
    def chat(
        self, messages: Messages, *, tools: Sequence[Mapping[str, Any]] | None = None, max_tokens: int | None = None,
        temperature: float | None = None, top_k: int | None = None, top_p: float | None = None, min_p: float | None = None,
        repetition_penalty: float | None = None, seed: int | None = None, stop: str | Sequence[str] | None = None,
        logprobs: int | None = None, structured_outputs: StructuredOutputsParams | dict[str, Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None, timeout: float | None = None,
    ) -> Generation:
        """The answer to a question or a conversation, as an iterator of text."""
        params = self._params(max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
                              repetition_penalty=repetition_penalty, seed=seed, stop=stop, logprobs=logprobs,
                              structured_outputs=structured_outputs, timeout=timeout)
        body = chat_body(messages, tools, True, False, chat_template_kwargs)
        return Generation(self._core, "chat", body | params.to_json(chat=True), params)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """[len(tokens), vocab_size]: row i predicts what follows tokens[i]."""
        return self._core.arrays.logits(token_ids("tokens", tokens))

    def score(self, tokens: Sequence[int], first: int = 1) -> NDArray[np.float32]:
        """The log-probability of each token from `first` on, given those before it."""
        ids = token_ids("tokens", tokens)
        if len(ids) < 2:
            raise ValueError(f"tokens has {len(ids)} of them, and the first has no log-probability; expected at least two")
        return self._core.arrays.score(ids, whole("first", first))

    def embed(self, text: str | Sequence[str]) -> NDArray[np.float32]:
        """The embedding of a text [hidden_size], or of several, one in a row; their length is 1."""
        import numpy as np

        if text is None:
            raise TypeError("text is None, expected a string, or several")
        texts = strings("text", text)
        found = np.asarray([normalized(values) for _, values in embeddings(self._core, texts, None)], np.float32)
        return found[0] if isinstance(text, str) else found

    def perplexity(self, text: str, *, window: int = 512, stride: int = 0, progress: bool = False) -> float:
        """How surprised the model is by a text, as `celer ppl` computes it. stride 0: llama.cpp's method."""
        windows = self._core.native.windows(_text("text", text), whole("window", window), whole("stride", stride))
        bar = Progress(progress, len(windows), "windows")
        total, count = 0.0, 0
        for tokens, first in windows:
            logprobs = self._core.arrays.score(tokens, first)
            total -= float(logprobs.sum(dtype="float64"))
            count += len(logprobs)
            bar.step()
        bar.close()
        return math.exp(total / count)


def normalized(values: Sequence[float]) -> list[float]:
    norm = math.sqrt(math.fsum(one * one for one in values))
    return [one / norm for one in values] if norm > 0 else list(values)


def embeddings(core: Core, inputs: Sequence[str | list[int]], truncate: int | None,
               on_done: Progress | None = None) -> list[tuple[list[int], list[float]]]:
    """Of each input its token ids and its embedding, not normalized."""
    batch = Batch(core)
    every = [Running(core, str(i), None, None, i) for i in range(len(inputs))]
    try:
        for one, running in zip(inputs, every):
            body: dict[str, Any] = {"input": one}
            if truncate is not None:
                body["truncate_prompt_tokens"] = truncate
            batch.submit(running, "embed", body)
        for _ in batch.updates(whole=True):
            if on_done is not None:
                on_done.step()
    finally:
        batch.cancel()
        if on_done is not None:
            on_done.close()
    found = []
    for running in every:
        if running.embedding is None:
            raise RuntimeError(f"the text {running.number} has no embedding")
        found.append((running.prompt_ids, running.embedding))
    return found


@named
def load(
    model: Any, *, tokenizer: Any = DEFAULTS["tokenizer"], chat_template: str = DEFAULTS["chat_template"],
    weights: str = DEFAULTS["weights"], kv: str = DEFAULTS["kv"], kv_memory: str = DEFAULTS["kv_memory"],
    kv_host_memory: int = DEFAULTS["kv_host_memory"], device: str = DEFAULTS["device"], threads: int = DEFAULTS["threads"],
    context: int = DEFAULTS["context"], chunk: int = DEFAULTS["chunk"], sequences: int = DEFAULTS["sequences"],
    prefix_cache: bool = DEFAULTS["prefix_cache"], deterministic: bool = DEFAULTS["deterministic"],
    speculation: str = DEFAULTS["speculation"], pooling: str = DEFAULTS["pooling"],
    tensor_parallel_size: int = DEFAULTS["tensor_parallel_size"],
) -> Model:
    """Loads a model: a Hugging Face folder, a GGUF file, a llama2.c checkpoint, or a name that `celer pull` fetched.

    model may be a model of transformers, too, and tokenizer an AutoTokenizer: see from_transformers().

    weights: "stored", or a format to convert to: f32, f16, bf16, int8, int8-g64, int4, ...
    kv: the type of keys and values: f16, bf16, f32, int8, ...
    kv_memory: what they may take, "4GiB" or "50%"; kv_host_memory: bytes for what is swapped out.
    device: "auto", "cpu", "cuda", "cuda:1". "auto" is a GPU where there is one that runs the model; "cuda" without one is an error.
    threads: 0 is as many as this process may use. context: tokens of the longest sequence; 0 is the model's own, at most 4096.
    chunk: prompt tokens of one step. sequences: how many long ones are expected at once.
    speculation: "off", "lookup", "self:int4", or a smaller model. pooling: of embeddings, "mean" or "last"; "" is the model's own.
    tensor_parallel_size: ranks that share every layer, each with its part of the threads; on the CPU.
    """
    return Model(Core(model, tokenizer=tokenizer, chat_template=chat_template, weights=weights, kv=kv, kv_memory=kv_memory,
                      kv_host_memory=kv_host_memory, device=device, threads=threads, context=context, chunk=chunk,
                      sequences=sequences, prefix_cache=prefix_cache, deterministic=deterministic, speculation=speculation,
                      pooling=pooling, tensor_parallel_size=tensor_parallel_size))
