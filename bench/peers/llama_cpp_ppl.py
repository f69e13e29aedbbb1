#!/usr/bin/env python3
"""Perplexity by llama.cpp itself (pip install llama-cpp-python), to compare with `celer ppl`.

  python3 llama_cpp_ppl.py MODEL.gguf FILE [--chunks N] [--window 512]

llama.cpp's method: windows side by side, the second half of each is scored, each begins with BOS if the vocabulary adds it.
"""
import argparse
import sys

import llama_cpp
import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("--chunks", type=int, default=0)
    parser.add_argument("--window", type=int, default=512)
    args = parser.parse_args()
    model = llama_cpp.Llama(args.model, n_ctx=args.window, n_batch=args.window, logits_all=True, verbose=False)
    with open(args.file, "rb") as file:
        tokens = model.tokenize(file.read(), add_bos=True, special=False)
    adds_bos = bool(tokens) and tokens[0] == model.token_bos()
    windows = len(tokens) // args.window
    if args.chunks:
        windows = min(windows, args.chunks)
    total, count = 0.0, 0
    first = args.window // 2
    for i in range(windows):
        window = tokens[i * args.window:(i + 1) * args.window]
        if adds_bos:
            window[0] = model.token_bos()
        model.reset()
        model.eval(window)
        logits = np.asarray(model.scores[first:args.window - 1], dtype=np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        targets = window[first + 1:]
        total -= logprobs[np.arange(len(targets)), targets].sum()
        count += len(targets)
        print(f"\r{i + 1}/{windows} windows, perplexity {np.exp(total / count):.4f}", end="", file=sys.stderr)
    print(file=sys.stderr)
    print(f"perplexity {np.exp(total / count):.4f} ({count} tokens in {windows} windows of {args.window}, {len(tokens)} tokens in all)")


if __name__ == "__main__":
    main()
