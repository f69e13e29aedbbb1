"""EleutherAI's lm-evaluation-harness on a model of celer.

    import celer.lm_eval
    lm_eval.simple_evaluate(celer.lm_eval.CelerLM("smollm2"), tasks=["arc_easy"], limit=100)

or `python -m celer.lm_eval --model celer --model_args model=smollm2 --tasks arc_easy`, which is the harness' own command. It needs the
package lm-eval.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from ._core import Batch, Running
from ._model import load
from .sampling_params import SamplingParams


@register_model("celer")
class CelerLM(LM):  # type: ignore[misc,unused-ignore]
    """Likelihoods and texts for the harness. Arguments beside the model are those of celer.load()."""

    def __init__(self, model: Any = None, *, max_gen_toks: int = 256, context: int = 2048, batch_size: object = None, device: object = None,
                 max_batch_size: object = None, **options: Any) -> None:
        super().__init__()
        if model is None:
            raise ValueError("model is missing; give --model_args model=NAME")
        if device not in (None, "cpu"):
            options["device"] = device
        self.model = load(model, context=int(context), **options)
        self.max_gen_toks = int(max_gen_toks)

    @property
    def tokenizer_name(self) -> str:
        return self.model._core.name.replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        tokenizer = self.model.tokenizer
        return tokenizer.decode(tokenizer.apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt))

    def _score(self, context: Sequence[int], rest: Sequence[int]) -> tuple[float, bool]:
        """log p(rest | context), and whether each of its tokens is the most likely one."""
        room = int(self.model.info["context"]) - 1
        tokens = [*context, *rest][-room:]
        first = len(tokens) - len(rest)
        if first < 1:
            raise ValueError(f"a continuation has {len(rest)} tokens, and the context holds {room}; load the model with a larger context")
        logits = self.model.logits(tokens[:-1])[first - 1:].astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return float(logprobs[np.arange(len(rest)), rest].sum()), bool((logits.argmax(1) == rest).all())

    def _begin(self) -> list[int]:
        tokenizer = self.model.tokenizer
        found = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        return [0 if found is None else found]

    def loglikelihood(self, requests: Iterable[Any]) -> list[tuple[float, bool]]:
        encode = self.model.tokenizer.encode
        found = []
        for context, continuation in (one.args for one in requests):
            # White space belongs to the continuation, as the harness' other models have it.
            cut = len(context.rstrip())
            context, continuation = context[:cut], context[cut:] + continuation
            before = encode(context) if context else self._begin()
            whole = encode(context + continuation) if context else before + encode(continuation, add_special_tokens=False)
            found.append(self._score(whole[:len(before)], whole[len(before):]))
        return found

    def loglikelihood_rolling(self, requests: Iterable[Any]) -> list[float]:
        found = []
        room = int(self.model.info["context"]) - 2
        for (text,) in (one.args for one in requests):
            tokens, total = self.model.tokenizer.encode(text, add_special_tokens=False), 0.0
            for at in range(0, len(tokens), room):
                before = [tokens[at - 1]] if at else self._begin()
                total += self._score(before, tokens[at:at + room])[0]
            found.append(total)
        return found

    def generate_until(self, requests: Iterable[Any]) -> list[str]:
        """All prompts together, in one batch."""
        batch = Batch(self.model._core)
        every = []
        for i, (context, settings) in enumerate(one.args for one in requests):
            stop = settings.get("until") or []
            params = SamplingParams(max_tokens=int(settings.get("max_gen_toks") or self.max_gen_toks), stop=stop,
                                    temperature=float(settings.get("temperature") or 0) if settings.get("do_sample") else 0.0)
            room = max(1, int(self.model.info["context"]) - int(params.max_tokens or 0))
            tokens = self.model.tokenizer.encode(context)[-room:]
            running = Running(self.model._core, str(i), None, params, i)
            batch.submit(running, "completions", {"prompt": tokens} | params.to_json(chat=False))
            every.append(running)
        for _ in batch.updates(whole=True):
            pass
        return [running.answers[0].text for running in every]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
