#!/usr/bin/env python3
"""Every replica is replaced in turn while 200 requests run: rolling_test.py CELER [--all]. None may be lost. The order is that of
a cluster: readiness goes, then SIGTERM, then the next one once the new one is ready. Without --all only behind nginx."""
import concurrent.futures
import itertools
import pathlib
import sys
import threading
import unittest

import front
from front import FleetCase, fleet

REQUESTS, AT_ONCE = 200, 6


class Rolling(FleetCase):
    everything = False
    # The grace is for those that look at /health; nginx looks at failures alone.
    drain = ["--drain-grace", "3", "--drain-limit", "60"]

    def ask(self, url, number, streamed):
        messages = [{"role": "user", "content": f"What is number {number} about?"}]
        if streamed:
            return fleet.stream_chat(url, messages, f"r{number}", max_tokens=30, model="tiny", ignore_eos=True)
        return fleet.whole_chat(url, messages, f"r{number}", max_tokens=30, model="tiny", ignore_eos=True)

    def roll(self, name, *flags):
        servers = [self.start(*self.drain), self.start(*self.drain)]
        proxy = self.before(name, servers, *flags)
        numbers, rolled = itertools.count(), threading.Event()
        answers = []

        def client(_):
            # At least so many requests, and as long as replicas are replaced.
            while (number := next(numbers)) < REQUESTS or not rolled.is_set():
                answers.append(self.ask(proxy.url, number, number % 2 == 0))

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            running = pool.map(client, range(AT_ONCE))
            try:
                for i, server in enumerate(servers):
                    code, log = server.stop()
                    self.assertEqual(code, 0, log)
                    servers[i] = self.start(*self.drain, port=server.port)
                    self.until_used(servers[i])
            finally:
                rolled.set()
            list(running)
        proxy.stop()
        for server in servers:
            server.stop()
        print(f"{name}: 2 of 2 replicas replaced under {len(answers)} requests, {sum(bool(a.error) for a in answers)} of them lost")
        self.assertGreaterEqual(len(answers), REQUESTS)
        self.clean(answers)
        self.assertEqual({answer.finish for answer in answers}, {"length"})

    def until_used(self, server, seconds=180):
        server.until(r"POST|path=\"/v1/chat", seconds)

    def test_rolling(self):
        for name in front.available():
            if name != "nginx" and not self.everything:
                continue
            with self.subTest(name=name):
                self.roll(name, *(["--health-check-interval-secs", "1", "--policy", "round_robin"] if name in front.ROUTERS else []))


if __name__ == "__main__":
    if not front.available():
        print("skipped: there is no balancer here; tools/setup.sh unpacks nginx")
        sys.exit(77)
    Rolling.everything = "--all" in sys.argv
    sys.argv = [one for one in sys.argv if one != "--all"]
    front.ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
