"""How the next token is chosen, with vLLM's names and defaults."""
from __future__ import annotations

import enum
import json as _json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ._arguments import mapping_of, named, number, only, strings, whole

__all__ = ["BeamSearchParams", "GuidedDecodingParams", "PoolingParams", "RequestOutputKind", "SamplingParams",
           "StructuredOutputsParams"]


class RequestOutputKind(enum.Enum):
    """What the outputs of a request hold while it runs."""

    CUMULATIVE = 0  # all so far
    DELTA = 1       # what is new
    FINAL_ONLY = 2  # nothing until the end


@dataclass
class StructuredOutputsParams:
    """The form that an answer must have: one of these."""

    json: str | dict[str, Any] | type | None = None  # a JSON schema, as text or dict, or a pydantic model
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # GBNF
    json_object: bool | None = None

    def __post_init__(self) -> None:
        given = [one.name for one in fields(self) if getattr(self, one.name) not in (None, False)]
        if len(given) != 1:
            raise ValueError(f"StructuredOutputsParams has {', '.join(given) or 'nothing'}, expected one of json, regex, choice, "
                             "grammar and json_object")

    def to_json(self) -> dict[str, Any]:
        """The parameter structured_outputs of the server."""
        schema = self.json
        if isinstance(schema, type):
            make = getattr(schema, "model_json_schema", None)
            if make is None:
                raise TypeError(f"json is {schema!r}, expected a JSON schema as text or dict, or a pydantic model")
            schema = make()
        if isinstance(schema, str):
            try:
                schema = _json.loads(schema)
            except ValueError as error:
                raise ValueError(f"json is no JSON schema: {error}") from None
        wanted = {"json": schema, "regex": self.regex, "choice": self.choice, "grammar": self.grammar,
                  "json_object": self.json_object or None}
        return {name: value for name, value in wanted.items() if value is not None}


class GuidedDecodingParams(StructuredOutputsParams):
    """StructuredOutputsParams by their older name."""


def _integers(name: str, value: Sequence[int] | None) -> list[int]:
    return [whole(f"an item of {name}", one, 0, 2**31 - 1) for one in value or []]


class SamplingParams:
    """How the tokens of an answer are chosen, when it ends and what is reported about it.

    Names and defaults are vLLM's: temperature 1, max_tokens 16. max_tokens=None goes on to the end of the context.
    """

    @named
    def __init__(
        self, n: int = 1, *, best_of: int | None = None, presence_penalty: float = 0.0, frequency_penalty: float = 0.0,
        repetition_penalty: float = 1.0, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0,
        typical_p: float = 1.0, seed: int | None = None, stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None, ignore_eos: bool = False, max_tokens: int | None = 16, min_tokens: int = 0,
        logprobs: int | None = None, prompt_logprobs: int | None = None, detokenize: bool = True, skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True, include_stop_str_in_output: bool = False,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
        structured_outputs: StructuredOutputsParams | dict[str, Any] | None = None,
        guided_decoding: StructuredOutputsParams | dict[str, Any] | None = None, logit_bias: Mapping[int, float] | None = None,
        allowed_token_ids: Sequence[int] | None = None, bad_words: Sequence[str] | None = None,
        truncate_prompt_tokens: int | None = None, cache_salt: str | None = None, timeout: float | None = None,
    ) -> None:
        self.n = whole("n", n, 1, 128)
        self.best_of = None if best_of is None else whole("best_of", best_of, self.n, 128)
        self.presence_penalty = number("presence_penalty", presence_penalty, -2, 2)
        self.frequency_penalty = number("frequency_penalty", frequency_penalty, -2, 2)
        self.repetition_penalty = number("repetition_penalty", repetition_penalty, 1e-6, 1e6)
        self.temperature = number("temperature", temperature, 0, 100)
        self.top_p = number("top_p", top_p, 1e-6, 1)
        self.top_k = whole("top_k", top_k, -1, 2**31 - 1)
        self.min_p = number("min_p", min_p, 0, 1)
        self.typical_p = number("typical_p", typical_p, 1e-6, 1)
        self.seed = None if seed is None else whole("seed", seed, -(2**63), 2**64 - 1)
        self.stop = strings("stop", stop)
        self.stop_token_ids = _integers("stop_token_ids", stop_token_ids)
        self.ignore_eos = bool(ignore_eos)
        self.max_tokens = None if max_tokens is None else whole("max_tokens", max_tokens, 1, 10**9)
        self.min_tokens = whole("min_tokens", min_tokens, 0, 10**9)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {min_tokens}, expected at most max_tokens, which is {max_tokens}")
        self.logprobs = None if logprobs is None else whole("logprobs", logprobs, 0, 20)
        self.prompt_logprobs = None if prompt_logprobs is None else whole("prompt_logprobs", prompt_logprobs, 0, 20)
        only("detokenize", detokenize, (True,), "texts are made while the engine computes, and cost it nothing")
        only("spaces_between_special_tokens", spaces_between_special_tokens, (True,), "texts are as the tokenizer makes them")
        self.detokenize = True
        self.spaces_between_special_tokens = True
        self.skip_special_tokens = bool(skip_special_tokens)
        self.include_stop_str_in_output = bool(include_stop_str_in_output)
        self.output_kind = RequestOutputKind(output_kind)
        if structured_outputs is not None and guided_decoding is not None:
            raise ValueError("guided_decoding is the older name of structured_outputs; give one of them")
        wanted = structured_outputs if structured_outputs is not None else guided_decoding
        self.structured_outputs = StructuredOutputsParams(**wanted) if isinstance(wanted, dict) else wanted
        if self.structured_outputs is not None and not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise TypeError(f"structured_outputs is {wanted!r}, expected StructuredOutputsParams")
        self.logit_bias = None if logit_bias is None else {
            whole("a token of logit_bias", int(token) if isinstance(token, str) and token.isdecimal() else token, 0, 2**31 - 1): number("logit_bias", bias, -100, 100)
            for token, bias in mapping_of("logit_bias", logit_bias).items()}
        self.allowed_token_ids = None if allowed_token_ids is None else _integers("allowed_token_ids", allowed_token_ids)
        if self.allowed_token_ids == []:
            raise ValueError("allowed_token_ids is empty, so no token could be chosen")
        self.bad_words = strings("bad_words", bad_words)
        self.truncate_prompt_tokens = None if truncate_prompt_tokens is None else whole(
            "truncate_prompt_tokens", truncate_prompt_tokens, -1, 10**9)
        self.cache_salt = cache_salt
        self.timeout = None if timeout is None else number("timeout", timeout, 0.001, 86400)

    @property
    def guided_decoding(self) -> StructuredOutputsParams | None:
        return self.structured_outputs

    def clone(self) -> SamplingParams:
        """A copy that can be changed."""
        other = SamplingParams()
        other.__dict__.update(self.__dict__)
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SamplingParams) and self.__dict__ == other.__dict__

    def __repr__(self) -> str:
        default = SamplingParams().__dict__
        changed = [f"{name}={value!r}" for name, value in self.__dict__.items() if value != default[name]]
        return f"SamplingParams({', '.join(changed)})"

    def to_json(self, chat: bool) -> dict[str, Any]:
        """The parameters of a request to /v1/chat/completions or /v1/completions."""
        body: dict[str, Any] = {"temperature": self.temperature, "n": self.n}
        default = _DEFAULT
        for name in ("best_of", "presence_penalty", "frequency_penalty", "repetition_penalty", "top_p", "top_k", "min_p", "typical_p",
                     "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "prompt_logprobs", "skip_special_tokens",
                     "include_stop_str_in_output", "allowed_token_ids", "bad_words", "truncate_prompt_tokens", "cache_salt"):
            value = getattr(self, name)
            if default is None or value != getattr(default, name):
                body[name] = value
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if self.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": self.logprobs} if chat else {"logprobs": self.logprobs}
        if self.structured_outputs is not None:
            body["structured_outputs"] = self.structured_outputs.to_json()
        if self.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        return body


_DEFAULT: SamplingParams | None = None
_DEFAULT = SamplingParams()


class BeamSearchParams:
    """Beam search, as `generate` of Hugging Face's transformers does it."""

    @named
    def __init__(self, beam_width: int, max_tokens: int, ignore_eos: bool = False, temperature: float = 0.0,
                 length_penalty: float = 1.0, include_stop_str_in_output: bool = False, early_stopping: bool | str = False) -> None:
        self.beam_width = whole("beam_width", beam_width, 1, 128)
        self.max_tokens = whole("max_tokens", max_tokens, 1, 10**9)
        self.ignore_eos = bool(ignore_eos)
        only("temperature", temperature, (0, 0.0), "beams are ranked by the model's own probabilities")
        self.temperature = 0.0
        self.length_penalty = number("length_penalty", length_penalty, -10, 10)
        self.include_stop_str_in_output = bool(include_stop_str_in_output)
        if early_stopping not in (True, False, "never"):
            raise ValueError(f"early_stopping is {early_stopping!r}, expected True, False or 'never'")
        self.early_stopping = early_stopping

    def to_json(self) -> dict[str, Any]:
        return {"use_beam_search": True, "beam_width": self.beam_width, "n": self.beam_width, "max_tokens": self.max_tokens,
                "ignore_eos": self.ignore_eos, "length_penalty": self.length_penalty, "early_stopping": self.early_stopping,
                "include_stop_str_in_output": self.include_stop_str_in_output, "logprobs": 0, "temperature": 0}


class PoolingParams:
    """Of LLM.embed."""

    @named
    def __init__(self, dimensions: int | None = None, normalize: bool | None = None, truncate_prompt_tokens: int | None = None) -> None:
        self.dimensions = None if dimensions is None else whole("dimensions", dimensions, 1, 10**6)
        self.normalize = True if normalize is None else bool(normalize)
        self.truncate_prompt_tokens = None if truncate_prompt_tokens is None else whole(
            "truncate_prompt_tokens", truncate_prompt_tokens, -1, 10**9)
