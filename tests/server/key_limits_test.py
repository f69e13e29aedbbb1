#!/usr/bin/env python3
"""Limits of API keys: key_limits_test.py CELER. 429 at once with Retry-After, others unharmed, metrics by name and not by key."""
import concurrent.futures
import subprocess
import sys
import time
import unittest

from serving import SLOW, ServerCase

if len(sys.argv) > 1:
    ServerCase.celer = sys.argv.pop(1)


class KeyLimits(ServerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "keys").write_text("sk-one\nsk-two\nsk-three\n")
        (cls.folder / "limits").write_text("sk-one name=one rpm=2\nsk-two name=two tpm=50\n* name=other weight=2\n")
        cls.server = cls.start("--api-key-file", cls.folder / "keys", "--key-limits", cls.folder / "limits")

    def ask(self, key, tokens=3, path="/v1/completions", **fields):
        body = {"prompt": [7] * tokens, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
        began = time.monotonic()
        status, headers, answer = self.server.request("POST", path, body, {"Authorization": "Bearer " + key})
        return status, headers, answer, time.monotonic() - began

    def test_limits(self):
        self.assertEqual([self.ask("sk-one")[0] for _ in range(2)], [200, 200])
        status, headers, answer, seconds = self.ask("sk-one")
        self.assertEqual(status, 429, answer)
        self.assertTrue(1 <= int(headers["Retry-After"]) <= 30, headers)
        self.assertIn(b"one may have 2 requests per minute", answer)
        self.assertLess(seconds, SLOW * 5)
        self.assertEqual(self.ask("sk-one", path="/v1/completions/render")[0], 200)  # nothing is generated
        self.assertEqual(self.ask("sk-two", 60)[0], 200)  # the first may be larger than what is left
        status, headers, answer, _ = self.ask("sk-two")
        self.assertEqual(status, 429, answer)
        self.assertIn(b"two may have 50 tokens per minute", answer)
        self.assertTrue(1 <= int(headers["Retry-After"]) <= 30, headers)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(set(pool.map(lambda _: self.ask("sk-three")[0], range(24))), {200})
        self.assertEqual(self.ask("sk-four")[0], 401)
        text = self.server.request("GET", "/metrics", headers={"Authorization": "Bearer sk-one"})[2].decode()
        self.assertNotIn("sk-", text)
        for line in ('key_requests_total{KEY"one"} 2', 'key_rejected_total{KEY"one"} 1', 'key_requests_total{KEY"two"} 1',
                     'key_tokens_total{KEY"two"} 64', 'key_requests_total{KEY"other-3"} 24', 'key_rejected_total{KEY"other-3"} 0'):
            name, value = line.split("{KEY")
            self.assertRegex(text, rf'(?m)^celer:{name}{{[^}}]*key={value.split("}")[0]}}}{value.split("}")[1]}$')
        self.assertRegex(text, r'(?m)^celer:requests_rejected_total{[^}]*reason="key"} 2$')

    def test_what_cannot_be(self):
        (self.folder / "wrong").write_text("sk-nobody name=x\n")
        done = subprocess.run([self.celer, "serve", self.model, "--port", "0", "--device", "cpu", "--api-key-file", self.folder / "keys",
                               "--key-limits", self.folder / "wrong"], capture_output=True, text=True, timeout=SLOW * 60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("line 1 has a key that --api-key-file does not have", done.stderr)
        self.assertNotIn("sk-nobody", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
