#!/usr/bin/env python3
"""PyPI's vllm-router and sglang-router in front of two servers, both unchanged: routers_test.py CELER.
500 requests of 100 conversations in 12 families; none may fail, and of the prompt tokens that one server would have found
in its cache at least 0.95 must be found. tools/test_clients.sh makes a venv with the routers; without them it is skipped."""
import pathlib
import sys
import unittest

import fleet
from serving import ServerCase

FAMILIES, CONVERSATIONS, TURNS = 12, 100, 5
BIN = pathlib.Path(sys.executable).parent
SPREAD = ["--policy", "cache_aware"]


class Routers(ServerCase):
    @classmethod
    def start(cls, *flags, **kwargs):
        return super().start("--served-model-name", "tiny", *flags, kv="256MiB", context=4096, **kwargs)

    @staticmethod
    def conversations():
        return fleet.families(FAMILIES, -(-CONVERSATIONS // FAMILIES))[:CONVERSATIONS]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.alone = fleet.hold(cls.server.url, cls.conversations(), TURNS, at_once=1, model="tiny")
        cls.server.stop()

    def behind(self, *command):
        servers = [self.start(), self.start()]
        port, other = fleet.free_port(), fleet.free_port()
        router = fleet.Proxy([*command, "--host", "127.0.0.1", "--port", port, "--prometheus-port", other, "--worker-urls",
                              *(server.url for server in servers)], port, self.folder / "router.log")
        try:
            talks = self.conversations()
            answers = fleet.hold(router.url, talks, TURNS, at_once=8, model="tiny")
        finally:
            router.stop()
            for server in servers:
                server.stop()
        self.assertEqual(len(answers), 500)
        errors = [answer.error for answer in answers if answer.error]
        found, asked, ideal = fleet.hits(answers), sum(answer.prompt_tokens for answer in answers), fleet.hits(self.alone)
        counts = [server.log().count("path=\"/v1/chat/completions\" status=200") for server in servers]
        print(f"{pathlib.Path(command[0]).name}: {len(errors)} errors of {len(answers)}; {found} of {asked} prompt tokens found, one server finds "
              f"{ideal}: {found / ideal:.3f}; requests per server {counts}")
        self.assertEqual(errors, [])
        self.assertEqual([a.text for a in answers], [a.text for a in self.alone])
        self.assertGreaterEqual(found / ideal, 0.95)

    def test_vllm_router(self):
        if not (BIN / "vllm-router").exists():
            self.skipTest("vllm-router is not installed; tools/test_clients.sh does it")
        self.behind(BIN / "vllm-router", *SPREAD)

    def test_sglang_router(self):
        if not (BIN / "sglang-router").exists():
            self.skipTest("sglang-router is not installed; tools/test_clients.sh does it")
        self.behind(BIN / "sglang-router", "launch", *SPREAD)


if __name__ == "__main__":
    ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    if not (BIN / "vllm-router").exists() and not (BIN / "sglang-router").exists():
        print("skipped: neither vllm-router nor sglang-router is installed; tools/test_clients.sh does it")
        sys.exit(77)
    unittest.main()
