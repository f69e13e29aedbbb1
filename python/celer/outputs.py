"""What requests give back, with vLLM's names."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from .lora.request import LoRARequest

__all__ = ["BeamSearchOutput", "BeamSearchSequence", "CompletionOutput", "EmbeddingOutput", "EmbeddingRequestOutput", "Logprob",
           "RequestOutput", "ScoringOutput", "ScoringRequestOutput", "TextPrompt", "TokensPrompt"]


class TextPrompt(TypedDict):
    """{"prompt": text}"""

    prompt: str


class TokensPrompt(TypedDict):
    """{"prompt_token_ids": ids}"""

    prompt_token_ids: Sequence[int]


@dataclass
class Logprob:
    """The log-probability of one token at one place."""

    logprob: float
    rank: int | None = None  # 1: the most likely; None: not among those reported
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One answer of a request."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None  # "stop", "length", "abort"; None: it goes on
    stop_reason: int | str | None = None  # the stop string or stop token; None: the model's own end
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A request with its answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: None = None
    lora_request: LoRARequest | None = None
    num_cached_tokens: int | None = None


@dataclass
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass
class EmbeddingRequestOutput:
    """The embedding of one text."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass
class ScoringOutput:
    score: float


@dataclass
class ScoringRequestOutput:
    """How near two texts are: the cosine of their embeddings."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass
class BeamSearchSequence:
    """One beam: the prompt's tokens with the answer's."""

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    """The beams of one prompt, the best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)
