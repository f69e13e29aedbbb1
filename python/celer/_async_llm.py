"""vLLM's AsyncLLM: requests as asynchronous generators. Leaving one, or cancelling its task, frees its blocks within a step."""
from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from . import _celer
from ._arguments import NotPickled, named, pass_messages
from ._core import Core, Running, to_body
from ._llm import EngineArgs, Prompt, beams_output, check_params, embedding_output, make_args, read_prompt, shows_arguments
from ._model import Messages, Tokenizer, chat_body
from .lora.request import LoRARequest, Loras
from .outputs import BeamSearchOutput, CompletionOutput, EmbeddingRequestOutput, RequestOutput
from .sampling_params import BeamSearchParams, PoolingParams, SamplingParams

AsyncEngineArgs = EngineArgs
Waiting = tuple[asyncio.AbstractEventLoop, "asyncio.Queue[dict[str, Any] | None]"]


def _pump(queue: _celer.Queue, waiting: dict[int, Waiting], lock: threading.Lock, stop: threading.Event) -> None:
    """Hands what comes to the loops that wait for it. On a thread of its own, which holds no engine alive."""
    while not stop.is_set():
        updates = queue.take(0.5)
        pass_messages()
        for update in updates:
            with lock:
                found = waiting.pop(update["key"], None) if update["last"] else waiting.get(update["key"])
            if found is not None:
                loop, mailbox = found
                try:
                    loop.call_soon_threadsafe(mailbox.put_nowait, update)
                except RuntimeError:  # the loop is closed: nobody waits any more
                    queue.cancel(update["key"])
    with lock:
        for loop, mailbox in waiting.values():
            try:
                loop.call_soon_threadsafe(mailbox.put_nowait, None)
            except RuntimeError:
                pass
        waiting.clear()


@shows_arguments
class AsyncLLM(NotPickled):
    """An engine for asyncio. EngineArgs lists what it takes; unknown names are errors."""

    def __init__(self, model: Any, **kwargs: Any) -> None:
        self._start(make_args(model, kwargs, "AsyncLLM"))

    def _start(self, args: EngineArgs) -> None:
        self._args = args
        self._core = Core(args.model, **args.options())
        self._loras = Loras(self._core, args.enable_lora)
        self._queue = self._core.native.queue()
        self._numbers = itertools.count()
        self._keys: dict[str, int] = {}
        self._waiting: dict[int, Waiting] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=_pump, args=(self._queue, self._waiting, self._lock, self._stop),
                                        name="celer-async", daemon=True)
        self._thread.start()
        self._end = weakref.finalize(self, _finish, self._stop, self._queue, self._thread)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> AsyncLLM:
        made = cls.__new__(cls)
        made._start(engine_args)
        return made

    def shutdown(self) -> None:
        """Cancels what is in flight and frees the memory. Idempotent."""
        self._end()
        self._core.native.close()

    @property
    def is_running(self) -> bool:
        return not self._stop.is_set()

    @property
    def is_stopped(self) -> bool:
        return self._stop.is_set()

    errored = is_stopped

    async def check_health(self) -> None:
        if self._stop.is_set():
            raise RuntimeError("the engine was shut down")

    async def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._core)

    def get_num_unfinished_requests(self) -> int:
        return len(self._keys)

    @named
    def generate(
        self, prompt: Prompt, sampling_params: SamplingParams, request_id: str, *, lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The outputs of a request as they come, each with all so far unless output_kind says otherwise."""
        text, body = read_prompt(prompt)
        return self._stream("completions", text, body, sampling_params, request_id, priority, lora_request)

    @named
    def chat(
        self, messages: Messages, sampling_params: SamplingParams, request_id: str, *, lora_request: LoRARequest | None = None,
        priority: int = 0, tools: list[dict[str, Any]] | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """The same of a conversation."""
        return self._stream("chat", None, chat_body(messages, tools, True, False, chat_template_kwargs), sampling_params,
                            request_id, priority, lora_request)

    async def _stream(self, endpoint: str, text: str | None, body: dict[str, Any], params: SamplingParams, request_id: str,
                      priority: int, lora: LoRARequest | None) -> AsyncGenerator[RequestOutput, None]:
        check_params([params])
        number = next(self._numbers)
        body = body | params.to_json(chat=endpoint == "chat")
        if params.seed is None and self._args.seed is not None:
            body["seed"] = self._args.seed + number
        if priority:
            body["priority"] = priority
        running = Running(self._core, request_id, text, params, number, lora)
        async with contextlib.aclosing(self._events(running, endpoint, body)) as events:
            async for new in events:
                output = running.streamed(new)
                if output is not None:
                    yield output

    @named
    async def encode(self, prompt: Prompt, pooling_params: PoolingParams | None, request_id: str) -> AsyncGenerator[EmbeddingRequestOutput, None]:
        """The embedding of a text: one output."""
        params = PoolingParams() if pooling_params is None else pooling_params
        if not isinstance(params, PoolingParams):
            raise TypeError(f"pooling_params is {params!r}, expected PoolingParams")
        text, body = read_prompt(prompt)
        body = {"input": body["prompt"]}
        if params.truncate_prompt_tokens is not None:
            body["truncate_prompt_tokens"] = params.truncate_prompt_tokens
        running = Running(self._core, request_id, text, None, next(self._numbers))
        async with contextlib.aclosing(self._events(running, "embed", body)) as events:
            async for _ in events:
                pass
        yield embedding_output(request_id, running.prompt_ids, running.embedding or [], params)

    @named
    async def beam_search(self, prompt: Prompt, request_id: str, params: BeamSearchParams, *,
                          lora_request: LoRARequest | None = None) -> AsyncGenerator[BeamSearchOutput, None]:
        """The most likely texts: one output."""
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params is {params!r}, expected BeamSearchParams")
        text, body = read_prompt(prompt)
        running = Running(self._core, request_id, text, SamplingParams(logprobs=0), next(self._numbers), lora_request)
        async with contextlib.aclosing(self._events(running, "completions", body | params.to_json())) as events:
            async for _ in events:
                pass
        yield beams_output(running)

    async def _events(self, running: Running, endpoint: str, body: dict[str, Any]) -> AsyncGenerator[list[CompletionOutput], None]:
        """Submits it and gives what is new of its answers. Leaving it early cancels it."""
        await self.check_health()
        request_id, lora = running.request_id, running.lora_request
        if request_id in self._keys:
            raise ValueError(f"a request '{request_id}' is in flight already")
        if lora is not None:  # reading it takes a while
            await asyncio.to_thread(self._loras.add, lora)
            if request_id in self._keys:  # another one began meanwhile
                raise ValueError(f"a request '{request_id}' is in flight already")
        mailbox: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        with self._loras.using(lora) as adapter, self._lock:  # its first update must find it
            timeout = running.params.timeout if running.params else None
            key, running.prompt_ids = self._queue.submit(endpoint, to_body(body | adapter), timeout or 0.0)
            self._waiting[key] = (asyncio.get_running_loop(), mailbox)
        self._keys[request_id] = key
        try:
            while not running.finished:
                update = await mailbox.get()
                if update is None:
                    raise RuntimeError("the engine was shut down")
                yield running.push(update)
        finally:
            del self._keys[request_id]
            if not running.finished:
                self._queue.cancel(key)
                with self._lock:
                    self._waiting.pop(key, None)

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter before a request needs it. False if it is there already."""
        return await asyncio.to_thread(self._loras.add, lora_request)

    async def remove_lora(self, lora_id: int) -> bool:
        """Requests that have it go on with it; its memory is free when they have ended."""
        return self._loras.remove(lora_id)

    async def list_loras(self) -> set[int]:
        return self._loras.ids()

    async def abort(self, request_id: str) -> None:
        """Its last output, with "abort", comes within one step."""
        if request_id in self._keys:
            self._queue.cancel(self._keys[request_id])


def _finish(stop: threading.Event, queue: _celer.Queue, thread: threading.Thread) -> None:
    stop.set()
    queue.wake()
    if thread is not threading.current_thread():
        thread.join()


AsyncLLMEngine = AsyncLLM
