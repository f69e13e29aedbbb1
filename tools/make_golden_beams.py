#!/usr/bin/env python3
"""Makes tests/golden/beams.json: what beam search of transformers finds with the tiny models of tests/golden/models.

  python tools/make_golden_beams.py tests/golden

Versions: tools/requirements-golden.txt. A case is kept if f32 and f64 find the same texts, so that the last bits of a
kernel do not decide it.
"""

import itertools
import json
import pathlib
import sys

import numpy as np
import torch
import transformers

MODELS = ["llama3", "qwen2", "smollm2", "mistral"]
CASES = 24  # per model


def search(model, prompt, case):
    out = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
        num_beams=case["width"], num_return_sequences=case["n"], length_penalty=case["length_penalty"],
        early_stopping=case["early_stopping"], max_new_tokens=case["max_tokens"], min_new_tokens=case["min_tokens"] or None,
        eos_token_id=case["stop_tokens"] or None, pad_token_id=0, return_dict_in_generate=True, output_scores=True)
    texts = []
    for row in out.sequences[:, len(prompt):].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in case["stop_tokens"]), len(row))
        texts.append(row[:end])
    return texts, [float(score) for score in out.sequences_scores]


def main():
    root = pathlib.Path(sys.argv[1])
    transformers.logging.set_verbosity_error()
    rng = np.random.default_rng(7)
    result = []
    for name in MODELS:
        folder = root / "models" / name
        models = [transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype) for dtype in (torch.float32, torch.float64)]
        for model in models:
            model.generation_config = transformers.GenerationConfig()
        vocab = models[0].config.vocab_size
        kept = 0
        for early, penalty in itertools.cycle(itertools.product([False, True, "never"], [1.0, 0.0, 2.0, -1.0])):
            if kept == CASES:
                break
            width = int(rng.integers(1, 6)) + (1 if rng.random() < 0.9 else 0)
            if width < 2:
                continue
            case = dict(model=name, width=width, n=int(rng.integers(1, width + 1)), length_penalty=penalty, early_stopping=early,
                        max_tokens=int(rng.integers(1, 25)), min_tokens=0,
                        stop_tokens=sorted(int(t) for t in rng.choice(vocab, size=int(rng.integers(0, 5)), replace=False)))
            if rng.random() < 0.3:
                case["min_tokens"] = int(rng.integers(1, case["max_tokens"] + 1))
            prompt = [int(t) for t in rng.integers(0, vocab, size=int(rng.integers(1, 40)))]
            if max(2, 1 + len(case["stop_tokens"])) * width > vocab:
                continue
            (texts, scores), (texts64, scores64) = (search(model, prompt, case) for model in models)
            if texts != texts64 or np.abs(np.array(scores) - scores64).max() > 1e-3:
                continue
            # A negative penalty makes ties of nothing; everything else that is nearly equal is left out.
            if len(scores) > 1 and np.abs(np.diff(scores64)).min() < 1e-4:
                continue
            result.append({**case, "prompt": prompt, "texts": texts, "scores": [round(score, 6) for score in scores64]})
            kept += 1
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in result)
    (root / "beams.json").write_text(f"[\n{lines}\n]\n")
    print(f"{len(result)} cases")


main()
