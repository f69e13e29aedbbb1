#!/usr/bin/env python3
"""Two and four replicas behind each balancer and router that is installed: routers_test.py CELER. 500 requests each, every other
one streamed, none of which may fail."""
import concurrent.futures
import pathlib
import sys
import time
import unittest

import front
from front import FleetCase, fleet

REQUESTS, AT_ONCE = 500, 8


class Routers(FleetCase):
    alone = 0  # prompt tokens that one replica finds which gets all requests

    def behind(self, name, count):
        servers = [self.start() for _ in range(count)]
        proxy = servers[0] if name is None else self.before(name, servers, *(["--policy", "cache_aware"] if name in front.ROUTERS else []))
        talks = fleet.families(10, REQUESTS // 50)

        def one(talk):
            answers = []
            for turn in range(5):
                asked = fleet.stream_chat if turn % 2 == 0 else fleet.whole_chat
                answers.append(talk.ask(proxy.url, how=asked, model="tiny"))
            return answers

        begin = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            answers = [answer for some in pool.map(one, talks) for answer in some]
        seconds = time.monotonic() - begin
        served = list(fleet.served_by(servers, answers).values())  # a line of the log comes after the answer
        counts = [served.count(i) for i in range(count)]
        if name is not None:
            proxy.stop()
        for server in servers:
            server.stop()
        found, asked = fleet.hits(answers), sum(answer.prompt_tokens for answer in answers)
        self.alone = self.alone or found
        print(f"{name or 'no router'}, {count} replicas: {sum(bool(a.error) for a in answers)} errors of {len(answers)} in {seconds:.1f} s; {found} of "
              f"{asked} prompt tokens found, {found / self.alone:.3f} of what one replica finds; requests per replica {counts}")
        self.assertEqual(len(answers), REQUESTS)
        self.clean(answers)

    def test_all(self):
        self.behind(None, 1)
        for name in front.available():
            for count in (2, 4):
                with self.subTest(name=name, count=count):
                    self.behind(name, count)


if __name__ == "__main__":
    front.ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
