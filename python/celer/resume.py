"""Streams that survive the server that they come from. Needs the standard library only.

    from celer.resume import stream
    servers = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    for chunk in stream(servers, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}):
        for choice in chunk["choices"]:
            print(choice["delta"].get("content") or "", end="", flush=True)

When a server dies, the next one is asked to continue behind the tokens that have arrived: the chunks are those of a stream
that nothing disturbed, sampled or greedy. The first one has the seed: chunk["resume"]["seed"]. docs/server.md, "Resuming an
answer", has the protocol.
"""
from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["ResumeError", "stream"]

# What another server, or the same one later, may well answer.
RETRIED_STATUS = (408, 429, 500, 502, 503, 504)
RETRIED_CODES = ("shutting_down", "device_fault", "deadline")


class ResumeError(Exception):
    """The answer could not be had; `tokens` says how many had arrived."""

    def __init__(self, message: str, tokens: int) -> None:
        super().__init__(message)
        self.tokens = tokens


class _Interrupted(Exception):
    """Worth another try, after so many seconds."""

    def __init__(self, message: str, seconds: float = 0) -> None:
        super().__init__(message)
        self.seconds = seconds


class _Answer:
    """One answer, and what of it has arrived."""

    def __init__(self, body: Mapping[str, Any], through_metadata: bool) -> None:
        self.body = {**body, "stream": True}
        self.through_metadata = through_metadata
        self.wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.state: dict[str, Any] = {}
        self.tokens: list[int] = []
        self.head: dict[str, Any] | None = None  # fields that all chunks of a stream share
        self.begun = self.finished = self.complete = False

    def request(self) -> bytes:
        state = {**self.state, "token_ids": self.tokens} if self.tokens else {}
        if not self.through_metadata:
            return json.dumps({**self.body, "resume": state}).encode()
        metadata = {**(self.body.get("metadata") or {}), "celer_resume": json.dumps(state)}
        return json.dumps({**self.body, "metadata": metadata}).encode()

    def read(self, response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        """The chunks of one connection that are new."""
        held: list[dict[str, Any]] = []  # of a token whose id has not come: without it they would come again
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                break
            chunk = json.loads(line[6:])
            if error := chunk.get("error"):
                text = f"the stream ended with an error: {error.get('message')}"
                raise _Interrupted(text, 0.1) if error.get("code") in RETRIED_CODES else ResumeError(text, len(self.tokens))
            if "resume" in chunk:
                if not self.state:
                    self.state = chunk["resume"]
                    yield self._as_first(chunk)
                continue
            if not self.state:
                raise ResumeError("the server began without 'resume': it is no celer server, or a router before it drops fields that "
                                  "it does not know; through_metadata=True may pass it", 0)
            held.append(chunk)
            if self._settles(chunk):
                yield from map(self._as_first, held)
                held.clear()
                self.complete |= self.finished and (not self.wants_usage or bool(chunk.get("usage")))
        if not self.complete:
            raise _Interrupted("the stream ended early")

    def _settles(self, chunk: dict[str, Any]) -> bool:
        """Whether what is held has arrived with this chunk."""
        choices = chunk.get("choices") or []
        if not choices:
            return True
        choice = choices[0]
        ids = choice.get("token_ids") or []
        self.tokens += ids
        first = not ids and not self.begun and choice.get("finish_reason") is None
        self.begun = True
        self.finished |= choice.get("finish_reason") is not None
        return bool(ids) or first or self.finished

    def _as_first(self, chunk: dict[str, Any]) -> dict[str, Any]:
        if self.head is None:
            self.head = {name: chunk[name] for name in ("id", "created", "model") if name in chunk}
        return {**chunk, **self.head}


def _connect(url: str, timeout: float) -> tuple[http.client.HTTPConnection, str]:
    place = urllib.parse.urlsplit(url)
    if place.scheme not in ("http", "https") or not place.hostname:
        raise ValueError(f"'{url}' is no address of a server, expected http://HOST:PORT")
    if place.scheme == "https":
        return http.client.HTTPSConnection(place.hostname, place.port, timeout=timeout,
                                           context=ssl.create_default_context()), place.path.rstrip("/")
    return http.client.HTTPConnection(place.hostname, place.port, timeout=timeout), place.path.rstrip("/")


def _attempt(url: str, path: str, answer: _Answer, headers: Mapping[str, str], timeout: float) -> Iterator[dict[str, Any]]:
    connection, prefix = _connect(url, timeout)
    try:
        connection.request("POST", prefix + path, answer.request(), {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        if response.status != 200:
            text = f"{url}: status {response.status}: {response.read(500).decode(errors='replace')}"
            if response.status not in RETRIED_STATUS:
                raise ResumeError(text, len(answer.tokens))
            after = response.headers.get("Retry-After", "")
            raise _Interrupted(text, float(after) if after.isdigit() else 0.1)
        yield from answer.read(response)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _Interrupted(f"{url}: {type(error).__name__}: {error}", 0.1) from error
    finally:
        connection.close()


def stream(servers: str | Sequence[str], path: str, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None,
           timeout: float = 60, attempts: int = 10, through_metadata: bool = False) -> Iterator[dict[str, Any]]:
    """The chunks of one answer of /v1/chat/completions or /v1/completions.

    servers: one address, also of a router, or several that serve the same model; each attempt asks the next one.
    timeout: seconds without a byte, after which a server counts as dead. A server says something every few seconds.
    attempts: failures in a row, without a new token, after which ResumeError is raised.
    through_metadata: of a conversation, for routers that drop fields of the body that they do not know (sglang-router).
    """
    urls = [servers] if isinstance(servers, str) else list(servers)
    if not urls:
        raise ValueError("there is no server")
    if through_metadata and not path.endswith("/chat/completions"):
        raise ValueError(f"through_metadata is for /v1/chat/completions; {path} has no metadata")
    answer = _Answer(body, through_metadata)
    failures = turn = 0
    while True:
        had, skips_first, had_finished = len(answer.tokens), answer.begun, answer.finished
        try:
            for chunk in _attempt(urls[turn % len(urls)], path, answer, headers or {}, timeout):
                choices = chunk.get("choices") or []
                new = bool(choices and (choices[0].get("token_ids") or choices[0].get("finish_reason")))
                if had_finished and choices or skips_first and not new and "role" in (choices or [{}])[0].get("delta", {}):
                    continue  # a beginning or an end that came before
                yield chunk
            return
        except _Interrupted as reason:
            if answer.complete:
                return
            failures = 1 if len(answer.tokens) > had else failures + 1
            turn += 1
            if failures >= attempts:
                raise ResumeError(f"{failures} attempts in a row failed; the last one: {reason}", len(answer.tokens)) from reason
            # Another server is asked at once, and all of them again after a while.
            time.sleep(reason.seconds * min(2 ** (failures // len(urls)), 32) if failures >= len(urls) else 0)
