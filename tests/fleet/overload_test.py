#!/usr/bin/env python3
"""Five times as many requests as one server can answer: overload_test.py CELER. What it accepts is answered as fast as before, the
rest is refused at once with 429 and Retry-After, and memory stays flat.

Capacity is measured just before each turn. Work for others on the machine changes it, so what counts is the goodput for each second of CPU
that the server had and that its engine was never idle; by the clock as well where the machine is the test's alone."""
import concurrent.futures
import os
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
SECONDS, TOKENS, SESSIONS, TURNS, QUEUE = 8, (200, 600), 8, 3, 8


class Overload(FleetCase):
    flags = ["--max-queue", str(QUEUE)]
    kv = "32MiB"  # all of it is used once the server is full, and is no growth then

    def ask(self, number):
        """The answer, and when its first token and its end came."""
        begin, first = time.monotonic(), []
        messages = [{"role": "user", "content": f"Question {number}: " + "what else is there to say? " * 8}]
        answer = fleet.stream_chat(self.server.url, messages, f"o{number}", max_tokens=random.Random(number).randint(*TOKENS), model="tiny", ignore_eos=True,
                                   on_first=lambda: first.append(time.monotonic() - begin))
        return answer, first[0] if first else None, time.monotonic() - begin

    def at_capacity(self):
        """The answers of clients that ask again as soon as they have one, and what that took."""
        meter, answers = front.Meter(self.server), []
        end = time.monotonic() + SECONDS

        def client(which):
            number = which
            while time.monotonic() < end:
                answers.append(self.ask(number))
                number += SESSIONS

        with concurrent.futures.ThreadPoolExecutor(SESSIONS) as pool:
            list(pool.map(client, range(SESSIONS)))
        return answers, meter.read()

    def beyond_capacity(self, rate, first_number):
        """The same of clients that do not wait: `rate` requests a second, at random."""
        rng, answers, threads = random.Random(first_number), [], []
        meter, at = front.Meter(self.server), time.monotonic()
        end = at + SECONDS
        for number in range(first_number, first_number + 1_000_000):
            at += rng.expovariate(rate)
            if at > end:
                break
            time.sleep(max(0.0, at - time.monotonic()))
            threads.append(threading.Thread(target=lambda n=number: answers.append(self.ask(n))))
            threads[-1].start()
        for thread in threads:
            thread.join()
        return answers, meter.read()

    def test_five_times_the_capacity(self):
        self.at_capacity()  # warm: pages, allocators, the prefix cache's tables
        memory, grown, late = self.server.memory(), 0, 0
        calm, over, shares, efficiencies = [], [], [], []
        for turn in range(TURNS):
            answers, took = self.at_capacity()
            self.clean([answer for answer, _, _ in answers])
            calm.append((answers, took))
            rate = len(answers) / took["seconds"]
            target = 3 * QUEUE / rate  # thrice what those take that may wait before it
            asked, spent = self.beyond_capacity(5 * rate, (turn + 1) * 1_000_000)
            over.append((asked, spent, target))
            good = sum(answer.status == 200 and not answer.error and first <= target for answer, first, _ in asked)
            shares.append(good / spent["seconds"] / rate)
            late += sum(answer.status == 200 and not answer.error and first > target for answer, first, _ in asked)
            efficiencies.append(good / spent["server"] / (len(answers) / took["server"]))
            self.server.idle()
            grown = self.server.memory() - memory
        asked = [one for some, _, _ in over for one in some]
        refused = [(answer, whole) for answer, _, whole in asked if answer.status == 429]
        others = [answer.error for answer, _, _ in asked if answer.status not in (200, 429) or (answer.status == 200 and answer.error)]
        slowest = statistics.median(whole for _, whole in refused) if refused else 0
        share, efficiency = statistics.median(shares), statistics.median(efficiencies)
        busy = sum(spent["busy"] for _, spent, _ in over) / sum(spent["seconds"] for _, spent, _ in over)
        elsewhere = max(spent["others"] / spent["seconds"] for _, spent, *_ in calm + over) / os.cpu_count()
        rates = ", ".join(f"{len(some) / took['seconds']:.1f}" for some, took in calm)
        print(f"capacity {rates} requests/s; {len(asked)} requests at five times that: "
              f"goodput {share:.2f} of the peak, {efficiency:.2f} for each second of the server's CPU, engine at work {busy:.2f} of the time; "
              f"{late} were late, {len(refused)} refused (median after {1e3 * slowest:.0f} ms), {len(others)} other; memory grew by {grown / 2**20:.1f} MiB; "
              f"up to {elsewhere:.2f} of the machine was busy with something else")
        self.assertEqual(others, [])
        self.assertTrue(refused and all(answer.retry_after.isdigit() for answer, _ in refused))
        self.assertLess(slowest, max(1.0, statistics.median(whole for some, _ in calm for _, _, whole in some) / 2))
        self.assertGreaterEqual(efficiency, 0.85)
        self.assertGreaterEqual(busy, 0.85)
        if elsewhere < 0.1:  # else the clock says what the others did
            self.assertGreaterEqual(share, 0.85)
        self.assertLess(grown, 64 << 20)


if __name__ == "__main__":
    front.ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
