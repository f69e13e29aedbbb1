#!/usr/bin/env python3
"""kill -9 of a replica under 36 streams, greedy and sampled: resume_test.py CELER [--all]. Every text must be complete and the one
that nothing disturbed, with the addresses of both replicas, and behind each balancer and router that is installed; without
--all only nginx."""
import concurrent.futures
import pathlib
import sys
import threading
import unittest

import front
from front import FleetCase
from fleet import resume  # noqa: I001  front knows where it is

TOKENS, STREAMS = 300, 36
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class Stream(threading.Thread):
    """One answer, as its client hears it."""

    def __init__(self, number, urls, seed=None, **how):
        super().__init__()
        self.number, self.urls, self.how = number, urls, how
        self.path = CHAT if number % 3 else TEXT
        ask = {"prompt": f"Story {number}:"} if self.path == TEXT else {"messages": [
            {"role": "system", "content": "You tell stories."}, {"role": "user", "content": f"Tell me story number {number}."}]}
        # Greedy, with a seed, and with one that the server chooses.
        sampling = [{"temperature": 0}, {"temperature": 1, "seed": number}, {"temperature": 1.1, "top_p": 0.9}][number // 3 % 3]
        if seed is not None:
            sampling = {**sampling, "seed": seed}
        self.body = {"model": "tiny", **ask, "max_tokens": TOKENS, "ignore_eos": True, "stream_options": {"include_usage": True}, **sampling}
        self.text, self.tokens, self.seed, self.finish, self.usage, self.error = "", [], None, None, None, None
        self.under_way = threading.Event()

    def run(self):
        how = {**self.how, "through_metadata": self.how.get("through_metadata", False) and self.path == CHAT}
        try:
            for chunk in resume.stream(self.urls, self.path, self.body, **how):
                self.seed = chunk.get("resume", {}).get("seed", self.seed)
                self.usage = chunk.get("usage") or self.usage
                for choice in chunk["choices"]:
                    self.text += (choice.get("delta", {}).get("content") or "") + choice.get("text", "")
                    self.tokens += choice.get("token_ids", [])
                    self.finish = choice["finish_reason"] or self.finish
                if len(self.tokens) >= 3:
                    self.under_way.set()
        except Exception as error:  # noqa: BLE001  the test says which
            self.error = f"stream {self.number}: {type(error).__name__}: {error}"
        self.under_way.set()


class Death(FleetCase):
    everything = False

    def setUp(self):
        self.servers = [self.start(), self.start()]
        self.addCleanup(lambda: [server.kill() for server in self.servers])

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.undisturbed = {}  # by the number of the stream and the seed

    def alone(self, stream):
        key = stream.number, stream.seed
        if key not in self.undisturbed:
            one = Stream(stream.number, self.server.url, stream.seed)
            one.run()
            self.undisturbed[key] = one
        return self.undisturbed[key]

    def kill_one(self, name, urls, **how):
        # Half of them begin with the other replica, where they choose.
        turn = (lambda i: urls[i % 2:] + urls[:i % 2]) if isinstance(urls, list) else (lambda i: urls)
        streams = [Stream(i, turn(i), **how) for i in range(STREAMS)]
        for stream in streams:
            stream.start()
        for stream in streams:
            stream.under_way.wait()
        running = sum(stream.is_alive() for stream in streams)
        victim, heir = self.servers
        victim.process.kill()
        for stream in streams:
            stream.join()
        self.assertEqual([stream.error for stream in streams if stream.error], [])
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            undisturbed = list(pool.map(self.alone, streams))
        for stream, whole in zip(streams, undisturbed):
            self.assertIsNone(whole.error)
            self.assertEqual(stream.text, whole.text, f"stream {stream.number}")
            self.assertEqual((stream.tokens, stream.finish, stream.seed), (whole.tokens, "length", whole.seed))
            self.assertEqual(stream.usage["completion_tokens"], TOKENS)
        heir.idle()
        resumed = len([line for line in heir.log().splitlines() if "status=200" in line and "completions" in line])
        print(f"{name}: {running} of {STREAMS} streams were running when a replica was killed; the other one answered {resumed} requests; "
              f"all texts are whole and the same")
        self.assertGreater(running, STREAMS // 2, "too few were running to show anything")
        return resumed

    def test_addresses(self):
        resumed = self.kill_one("two addresses", [server.url for server in self.servers], timeout=30)
        self.assertGreater(resumed, STREAMS // 2)

    def test_balancers(self):
        for name in front.available():
            if name != "nginx" and not self.everything:
                continue
            with self.subTest(name=name):
                # What chooses by the conversation sends all of it to the same replica; sglang-router drops unknown fields.
                flags = ["--policy", "round_robin"] if name in front.ROUTERS else []
                proxy = self.before(name, self.servers, *flags)
                self.kill_one(name, proxy.url, timeout=30, attempts=60, through_metadata=name == "sglang-router")
                proxy.stop()
                self.doCleanups()
                self.setUp()


if __name__ == "__main__":
    Death.everything = "--all" in sys.argv
    sys.argv = [one for one in sys.argv if one != "--all"]
    front.ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
