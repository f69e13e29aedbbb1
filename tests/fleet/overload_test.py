#!/usr/bin/env python3
"""Five times as many requests as one server can answer: overload_test.py CELER. What it accepts is answered as fast as before, the
rest is refused at once with 429 and Retry-After, and memory stays flat."""
import concurrent.futures
import pathlib
import random
import statistics
import sys
import threading
import time
import unittest

import front
from front import FleetCase, fleet

# Long enough answers that one costs much more than a refusal, and its client, which shares the cores with the server.
SECONDS, TOKENS, SESSIONS = 10, 400, 8


class Overload(FleetCase):
    flags = ["--max-queue", "8"]
    kv = "32MiB"  # all of it is used once the server is full, and is no growth then

    def ask(self, number):
        """The answer, and when its first token and its end came."""
        begin, first = time.monotonic(), []
        messages = [{"role": "user", "content": f"Question {number}: " + "what else is there to say? " * 8}]
        answer = fleet.stream_chat(self.server.url, messages, f"o{number}", max_tokens=TOKENS, model="tiny", ignore_eos=True,
                                   on_first=lambda: first.append(time.monotonic() - begin))
        return answer, first[0] if first else None, time.monotonic() - begin

    def at_capacity(self):
        end, answers = time.monotonic() + SECONDS, []

        def client(which):
            number = which
            while time.monotonic() < end:
                answers.append(self.ask(number))
                number += SESSIONS

        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(SESSIONS) as pool:
            list(pool.map(client, range(SESSIONS)))
        return answers, len(answers) / (time.monotonic() - begin)

    def test_five_times_the_capacity(self):
        self.at_capacity()  # warm: pages, allocators, the prefix cache's tables
        calm, rate = self.at_capacity()
        self.clean([answer for answer, _, _ in calm])
        target = 3 * statistics.quantiles([first for _, first, _ in calm], n=10)[-1] + 0.5
        memory = self.server.memory()
        rng, answers, threads = random.Random(1), [], []
        begin = time.monotonic()
        at = begin
        number = 1_000_000
        while at < begin + SECONDS:
            at += rng.expovariate(5 * rate)
            time.sleep(max(0.0, at - time.monotonic()))
            threads.append(threading.Thread(target=lambda n=number: answers.append(self.ask(n))))
            threads[-1].start()
            number += 1
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - begin
        good = [1 for answer, first, _ in answers if answer.status == 200 and not answer.error and first <= target]
        late = [1 for answer, first, _ in answers if answer.status == 200 and not answer.error and first > target]
        refused = [(answer, took) for answer, _, took in answers if answer.status == 429]
        others = [answer.error for answer, _, _ in answers if answer.status not in (200, 429) or (answer.status == 200 and answer.error)]
        share = len(good) / seconds / rate
        self.server.idle()
        grown = self.server.memory() - memory
        slowest = statistics.median(took for _, took in refused) if refused else 0
        print(f"capacity {rate:.1f} requests/s; {len(answers)} requests in {seconds:.1f} s: {len(good)} within {target:.2f} s to the first token "
              f"= {share:.2f} of the peak, {len(late)} later, {len(refused)} refused (median after {1e3 * slowest:.0f} ms), "
              f"{len(others)} other; memory grew by {grown / 2**20:.1f} MiB")
        self.assertEqual(others, [])
        self.assertTrue(refused and all(answer.retry_after.isdigit() for answer, _ in refused))
        self.assertLess(slowest, 1)
        self.assertGreaterEqual(share, 0.85)
        self.assertLess(grown, 64 << 20)


if __name__ == "__main__":
    front.ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
