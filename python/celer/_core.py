"""A loaded model and its requests in flight; what every shape of the interface stands on."""
from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import _celer
from ._arguments import NotPickled, number, pass_messages, path, text, whole
from .lora.request import LoRARequest
from .outputs import CompletionOutput, Logprob, RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams

# How long a wait lasts before Python looks at signals: Ctrl-C is answered within it.
_TICK_S = 0.05

DEFAULTS: dict[str, Any] = {
    "tokenizer": "", "chat_template": "", "weights": "stored", "kv": "f16", "kv_memory": "", "kv_host_memory": 0, "device": "auto",
    "threads": 0, "context": 0, "chunk": 512, "sequences": 0, "prefix_cache": True, "deterministic": False, "speculation": "off",
    "pooling": "", "enable_lora": False, "max_loras": 0, "max_lora_rank": 0, "tensor_parallel_size": 1, "gpu_memory": 0.0}


def to_body(value: Mapping[str, Any]) -> str:
    try:
        body = json.dumps(value, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the request cannot be written as JSON: {error}") from None
    return text("the request", body)


def check_options(options: dict[str, Any]) -> dict[str, Any]:
    """Of the types that DEFAULTS has. The tokenizer may be an object, too."""
    for name, default in DEFAULTS.items():
        value = options[name]
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise TypeError(f"{name} is {value!r}, expected True or False")
        elif isinstance(default, int):
            options[name] = whole(name, value)
        elif isinstance(default, float):
            options[name] = number(name, value, 0, 1)
        elif name == "chat_template":
            options[name] = path(name, value)
        elif name != "tokenizer":
            text(name, value)
    return options


class Core(NotPickled):
    """The engine on its own thread. Thread-safe: each use has a queue of its own."""

    def __init__(self, model: Any, **options: Any) -> None:
        self.options = check_options(DEFAULTS | options)
        tokenizer = self.options["tokenizer"]
        try:
            if isinstance(model, (str, os.PathLike)) and isinstance(tokenizer, (str, os.PathLike)):
                self.name = path("model", model)
                self.options["tokenizer"] = path("tokenizer", tokenizer)
                self.native = _celer.Model(self.name, **self.options)
            else:
                self.name = self._load_objects(model, tokenizer)
        finally:
            pass_messages()
        self.info: dict[str, Any] = self.native.info()
        self._pieces: dict[int, str] = {}

    def _load_objects(self, model: Any, tokenizer: Any) -> str:
        """A model or a tokenizer of transformers."""
        from ._transformers import as_files, is_model, is_tokenizer, name_of

        if not isinstance(model, (str, os.PathLike)) and not is_model(model):
            raise TypeError(f"model is a {type(model).__name__}, expected a path, a name, or a model of transformers")
        if not isinstance(tokenizer, (str, os.PathLike)) and not is_tokenizer(tokenizer):
            raise TypeError(f"tokenizer is a {type(tokenizer).__name__}, expected a path or a tokenizer of transformers")
        with as_files(model, tokenizer if is_tokenizer(tokenizer) else os.fspath(tokenizer)) as (path, its_tokenizer):
            self.options["tokenizer"] = its_tokenizer
            self.native = _celer.Model(os.fspath(path), **self.options)
        self.options["tokenizer"] = tokenizer
        return name_of(model) if is_model(model) else os.fspath(model)

    @property
    def arrays(self) -> _celer.Model:
        """The library, for what gives arrays of numpy: else numpy would be imported below its frames, where no thread can be ended."""
        import numpy as np  # noqa: F401

        return self.native

    def piece(self, token: int) -> str:
        """The text of one token."""
        text = self._pieces.get(token)
        if text is None:
            text = self._pieces[token] = self.native.piece(token).decode("utf-8", "replace")
        return text

    def logprobs_of(self, rows: Sequence[tuple[int, float]], kept: int) -> dict[int, Logprob]:
        """The chosen token, and of the others the first `kept`."""
        chosen, logprob = rows[0]
        found = {chosen: Logprob(logprob, None, self.piece(chosen))}
        for rank, (token, value) in enumerate(rows[1:], 1):
            if token == chosen or rank <= kept:
                found[token] = Logprob(value, rank, self.piece(token))
        return found


class Running:
    """A request in flight and what came of it so far."""

    def __init__(self, core: Core, request_id: str, prompt: str | None, params: SamplingParams | None, number: int,
                 lora_request: LoRARequest | None = None) -> None:
        self.lora_request = lora_request
        self.core, self.request_id, self.prompt, self.params, self.number = core, request_id, prompt, params, number
        self.prompt_ids: list[int] = []
        self.answers: dict[int, CompletionOutput] = {}
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self.embedding: list[float] | None = None
        self.cached_tokens = 0
        self.finished = False

    def push(self, update: dict[str, Any]) -> list[CompletionOutput]:
        """Takes in what a queue reported; gives what is new of each answer."""
        self.finished = update["last"]
        self.cached_tokens = update["cached_tokens"]
        self.embedding = update.get("embedding", self.embedding)
        if "prompt_logprobs" in update:
            self._push_prompt(update["prompt_logprobs"])
        return [self._push_answer(row) for row in update["answers"]]

    def _push_prompt(self, rows: list[list[Any]]) -> None:
        asked = (self.params.prompt_logprobs if self.params else None) or 0
        self.prompt_logprobs = [None]
        for token, (logprob, *top) in zip(self.prompt_ids[1:], rows):
            self.prompt_logprobs.append(self.core.logprobs_of([(token, logprob), *top], asked))

    def _push_answer(self, row: dict[str, Any]) -> CompletionOutput:
        asked = self.params.logprobs if self.params else 0
        finish = row.get("finish")
        if finish in ("refused", "constraint"):
            raise ValueError(row.get("error") or f"the request was {finish}")
        if finish == "error":
            raise RuntimeError(row.get("error") or "the request failed")
        new = CompletionOutput(row["index"], row["text"], row["tokens"], lora_request=self.lora_request)
        if asked is not None and row["logprobs"]:
            new.logprobs = [self.core.logprobs_of(one, asked) for one in row["logprobs"]]
        if asked is not None:
            new.cumulative_logprob = sum(one[0][1] for one in row["logprobs"])
        if finish is not None:
            new.finish_reason = finish if finish in ("stop", "length") else "abort"
            new.stop_reason = "deadline" if finish == "deadline" else row.get("stop_reason")
        whole = self.answers.setdefault(new.index, CompletionOutput(
            new.index, "", [], 0.0 if asked is not None else None, [] if asked is not None else None, lora_request=self.lora_request))
        whole.text += new.text
        whole.token_ids += new.token_ids
        whole.finish_reason, whole.stop_reason = new.finish_reason, new.stop_reason
        if whole.logprobs is not None:
            whole.logprobs += new.logprobs or []
            whole.cumulative_logprob = (whole.cumulative_logprob or 0.0) + (new.cumulative_logprob or 0.0)
        return new

    def output(self, answers: Sequence[CompletionOutput] | None = None) -> RequestOutput:
        """All so far, or these answers."""
        if answers is None:
            answers = [CompletionOutput(**(one.__dict__ | {"token_ids": list(one.token_ids)}))
                       for _, one in sorted(self.answers.items())]
        return RequestOutput(self.request_id, self.prompt, self.prompt_ids, self.prompt_logprobs, list(answers), self.finished,
                             lora_request=self.lora_request, num_cached_tokens=self.cached_tokens)

    def streamed(self, new: list[CompletionOutput]) -> RequestOutput | None:
        """What RequestOutputKind asks for after an update."""
        kind = self.params.output_kind if self.params else RequestOutputKind.CUMULATIVE
        if kind is RequestOutputKind.DELTA:
            return self.output(new)
        if kind is RequestOutputKind.FINAL_ONLY and not self.finished:
            return None
        return self.output()


class Batch:
    """Requests that are submitted together and waited for; whatever ends early, by Ctrl-C too, cancels the others."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.queue = core.native.queue()
        self.running: dict[int, Running] = {}
        self.keys: dict[str, int] = {}  # of those, by their ids
        self._updates: deque[dict[str, Any]] = deque()

    def submit(self, running: Running, endpoint: str, body: Mapping[str, Any], timeout: float | None = None) -> int:
        key, running.prompt_ids = self.queue.submit(endpoint, to_body(body), timeout or 0.0)
        self.running[key] = running
        self.keys[running.request_id] = key
        return key

    def updates(self, whole: bool) -> Iterator[tuple[Running, list[CompletionOutput]]]:
        """Until every request has ended."""
        try:
            while self.running:
                yield from self.take(_TICK_S, whole)
        finally:
            self.cancel()

    def take(self, seconds: float, whole: bool) -> Iterator[tuple[Running, list[CompletionOutput]]]:
        """What came. A request that failed raises its error; what came of the others is given by the next call."""
        if not self._updates:
            self._updates.extend(self.queue.take(seconds, whole))
            pass_messages()
        while self._updates:
            update = self._updates.popleft()
            running = self.running[update["key"]]
            if update["last"]:
                del self.running[update["key"]], self.keys[running.request_id]
            yield running, running.push(update)

    def cancel(self) -> None:
        """Ends what is in flight and waits for that, which takes one step."""
        left = list(self.running)
        for key in left:
            self.queue.cancel(key)
        self.running.clear()
        self.keys.clear()
        self._updates.clear()
        while left and len(self.queue):
            self.queue.take(_TICK_S, True)


class Progress:
    """tqdm where it is installed and wanted."""

    def __init__(self, wanted: object, total: int, what: str) -> None:
        self.bar: Any = None
        if not wanted:
            return
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        make = wanted if callable(wanted) else tqdm
        self.bar = make(total=total, desc=what, dynamic_ncols=True)

    def step(self) -> None:
        if self.bar is not None:
            self.bar.update(1)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def is_ids(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
