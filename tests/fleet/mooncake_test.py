#!/usr/bin/env python3
"""Mooncake's trace in small behind each balancer and router that is installed: mooncake_test.py CELER TRACE.jsonl[.gz] [--requests 500].

Some conversations of the trace, each block of 512 tokens as one short line of text, two and four replicas, every other answer
streamed. None may fail. A router decides which replica gets what; of what that replica has had before, it must find 0.95 in its prefix
cache. What all find together stands beside what one replica with the whole load would.
"""
import argparse
import collections
import concurrent.futures
import gzip
import json
import pathlib
import random
import sys
import time
import unittest

import front
from front import FleetCase, fleet

BLOCK = 16  # tokens of a block of the KV
MOST_BLOCKS = 60  # of a prompt, so that it fits into the context
AT_ONCE = 8
WORDS = "time year people way day man thing woman life child world school state family student group country problem hand part".split()


def line_of(block):
    """About 30 tokens of the small model, which only this block has."""
    rng = random.Random(block)
    return f"{block}: " + " ".join(rng.choices(WORDS, k=4)) + ".\n"


def read_trace(path, count):
    """Whole conversations out of all of the trace, about `count` requests together, in its order."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        rows = [json.loads(row)["hash_ids"] for row in file]
    every = max(1, len(rows) // count)
    # The first block is many conversations', the second one is its own.
    chosen = [ids for ids in rows if random.Random(ids[min(1, len(ids) - 1)]).randrange(every) == 0]
    return ["".join(map(line_of, ids[:MOST_BLOCKS])) for ids in chosen[:count]]


class Ideal:
    """What a cache without limits finds, in tokens, of prompts in the order in which they are asked."""

    def __init__(self):
        self.seen = set()

    def ask(self, tokens):
        key, found = 0, 0
        for end in range(BLOCK, len(tokens), BLOCK):  # the last token is always computed
            key = hash((key, tuple(tokens[end - BLOCK:end])))
            found += BLOCK * (key in self.seen)
            self.seen.add(key)
        if len(tokens) % BLOCK == 0:
            self.seen.add(hash((key, tuple(tokens[-BLOCK:]))))
        return found


class Mooncake(FleetCase):
    trace, requests = None, 500
    kv = "768MiB"  # everything fits

    def test_all(self):
        prompts = read_trace(self.trace, self.requests)
        tokens = [self.server.post("/tokenize", {"prompt": prompt})[1]["tokens"] for prompt in prompts]
        self.assertGreaterEqual(len(prompts), 2)
        one = Ideal()
        alone = sum(one.ask(prompt) for prompt in tokens)
        print(f"{len(prompts)} requests, {sum(map(len, tokens))} prompt tokens, of which one replica could find {alone}")
        for name in front.available():
            for count in (2, 4):
                with self.subTest(name=name, count=count):
                    self.behind(name, count, prompts, tokens, alone)

    def behind(self, name, count, prompts, tokens, alone):
        servers = [self.start() for _ in range(count)]
        proxy = self.before(name, servers, *(["--policy", "cache_aware"] if name in front.ROUTERS else []))

        def ask(i):
            asked = fleet.stream_completion if i % 2 else fleet.whole_completion
            return asked(proxy.url, prompts[i], f"m{i}", model="tiny")

        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(ask, range(len(prompts))))
        seconds = time.monotonic() - begin
        self.clean(answers)
        served = fleet.served_by(servers, answers)
        proxy.stop()
        for server in servers:
            server.stop()
        ideals = collections.defaultdict(Ideal)
        ideal = sum(ideals[served[f"m{i}"]].ask(prompt) for i, prompt in enumerate(tokens))
        found = fleet.hits(answers)
        share = found / max(1, ideal)
        print(f"{name}, {count} replicas: {sum(bool(a.error) for a in answers)} errors of {len(answers)} in {seconds:.1f} s; {found} prompt tokens "
              f"found, {share:.3f} of what these replicas could, {found / max(1, alone):.3f} of what one could; requests per replica "
              f"{[list(served.values()).count(i) for i in range(count)]}")
        self.assertEqual([answer.prompt_tokens for answer in answers], [len(prompt) for prompt in tokens])
        self.assertGreaterEqual(share, 0.95)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("celer", type=pathlib.Path)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--requests", type=int, default=500)
    args, rest = parser.parse_known_args()
    if not args.trace.exists():
        print(f"skipped: there is no {args.trace}; it is conversation_trace.jsonl of github.com/kvcache-ai/Mooncake")
        sys.exit(77)
    Mooncake.trace, Mooncake.requests = args.trace, args.requests
    front.ServerCase.celer = args.celer.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
