#!/usr/bin/env python3
"""How far llama.cpp is from exact arithmetic on the same file, to compare with `celer eval`.

  celer eval MODEL.gguf FILE --windows 64 --kernels default --exact-rows rows.f32
  python3 llama_cpp_kl.py MODEL.gguf FILE rows.f32 [--windows 64] [--window 512]

Needs llama-cpp-python. The windows and the scored positions are those of `celer eval`: the second half of each window, which
begins with BOS if the vocabulary adds it.
"""
import argparse
import sys

import llama_cpp
import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("rows", help="exact log-probabilities, written by celer eval --exact-rows")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--window", type=int, default=512)
    args = parser.parse_args()
    model = llama_cpp.Llama(args.model, n_ctx=args.window, n_batch=args.window, logits_all=True, verbose=False)
    with open(args.file, "rb") as file:
        tokens = model.tokenize(file.read(), add_bos=True, special=False)
    adds_bos = bool(tokens) and tokens[0] == model.token_bos()
    first = args.window // 2
    per_window = args.window - 1 - first
    exact = np.memmap(args.rows, np.float32, "r").reshape(-1, model.n_vocab())
    windows = min(args.windows, len(tokens) // args.window, len(exact) // per_window)
    divergence, surprise, exact_surprise, same = [], 0.0, 0.0, 0
    for i in range(windows):
        window = tokens[i * args.window:(i + 1) * args.window]
        if adds_bos:
            window[0] = model.token_bos()
        model.reset()
        model.eval(window)
        theirs = np.asarray(model.scores[first:args.window - 1], dtype=np.float64)
        theirs -= theirs.max(axis=1, keepdims=True)
        theirs -= np.log(np.exp(theirs).sum(axis=1, keepdims=True))
        ours = np.asarray(exact[i * per_window:(i + 1) * per_window], dtype=np.float64)
        divergence.append((np.exp(ours) * (ours - theirs)).sum(axis=1))
        at = np.arange(per_window), window[first + 1:]
        surprise -= theirs[at].sum()
        exact_surprise -= ours[at].sum()
        same += (theirs.argmax(axis=1) == ours.argmax(axis=1)).sum()
        print(f"\r{i + 1}/{windows} windows", end="", file=sys.stderr)
    print(file=sys.stderr)
    kl = np.concatenate(divergence)
    theirs, ours = np.exp(surprise / len(kl)), np.exp(exact_surprise / len(kl))
    print(f"llama.cpp {llama_cpp.__version__}: perplexity {theirs:.4f} ({100 * (theirs / ours - 1):+.2f} % of exact, {ours:.4f}), "
          f"KL mean {kl.mean():.2g}, p99 {np.percentile(kl, 99):.2g}, max {kl.max():.2g}, top 1 {100 * same / len(kl):.1f} %")


if __name__ == "__main__":
    main()
