#!/usr/bin/env python3
"""A mixed load with faults: soak_test.py CELER [--minutes 1]. Clients vanish, read slowly and send nonsense, and one of two replicas is
stopped or killed again and again. Every well-formed request gets its whole answer, and the other replica grows in nothing.

The load is 0.8 of what these clients could ask for: each waits for a quarter of the time that its last request took, however fast the
machine is at that moment."""
import argparse
import json
import pathlib
import random
import socket
import sys
import threading
import time
import unittest

import front
from front import FleetCase
from fleet import resume  # noqa: I001  front knows where it is

CHAT = "/v1/chat/completions"
LEAST_PAUSE = 0.1  # seconds on average, behind what costs next to nothing


class Soak(FleetCase):
    minutes = 1.0
    kv = "32MiB"  # all of it is used within the first minute, so that it is no growth
    flags = ["--write-timeout", "10", "--header-timeout", "10", "--body-timeout", "10"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server.stop()
        cls.model = front.slower_model(cls.folder)
        cls.server = cls.start(*cls.flags)

    def body(self, rng, tokens):
        return {"model": "tiny", "messages": [{"role": "system", "content": f"Rule {rng.randrange(4)} holds. " * 20},
                                              {"role": "user", "content": f"Say something about {rng.randrange(10_000)}."}],
                "max_tokens": tokens, "ignore_eos": True, "seed": rng.randrange(1 << 30)}

    def raw(self, body):
        data = json.dumps({**body, "stream": True}).encode()
        connection = self.server.socket()
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                           b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        return connection

    # --- Clients. Each is called again and again, with its own random numbers. ---

    def talks(self, rng):
        urls = [self.server.url, self.other_url]
        rng.shuffle(urls)
        tokens = 10 + rng.randrange(60)
        ids = []
        for chunk in resume.stream(urls, CHAT, self.body(rng, tokens), timeout=60, attempts=100):
            ids += [token for choice in chunk["choices"] for token in choice.get("token_ids", [])]
        assert len(ids) == tokens, f"{len(ids)} tokens of {tokens}"

    def vanishes(self, rng):
        with self.raw(self.body(rng, 300)) as connection:
            connection.recv(1 + rng.randrange(3000))
            if rng.randrange(2):  # RST instead of FIN
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def reads_slowly(self, rng):
        with self.raw(self.body(rng, 100)) as connection:
            connection.settimeout(60)
            said = b""
            while data := connection.recv(2000):
                said += data
                time.sleep(0.02)
        assert b"data: [DONE]" in said, said[-200:]

    def sends_nonsense(self, rng):
        good = json.dumps(self.body(rng, 3))
        bad = rng.choice([good[:rng.randrange(1, len(good))], good.replace('"tiny"', "5"), "[" * 500, '{"messages": 5}', "\0" * 50,
                          json.dumps({**json.loads(good), "resume": {"token_ids": [10 ** 6], "seed": 1}}),
                          json.dumps({**json.loads(good), "temperature": -1}), json.dumps({**json.loads(good), "messages": []})])
        status, _, data = self.server.request("POST", CHAT, bad.encode())
        assert 400 <= status < 500 and json.loads(data)["error"]["message"], (status, data)

    def breaks_off(self, rng):
        with self.server.socket() as connection:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n\r\n{"[:rng.randrange(1, 90)])
            time.sleep(rng.random() * 0.2)

    def test_soak(self):
        self.other = self.start(*self.flags)
        self.other_url = self.other.url
        stopping, errors, counts = threading.Event(), [], {}

        def client(act, seed):
            rng = random.Random(seed)
            while not stopping.is_set():
                begin = time.monotonic()
                try:
                    act(rng)
                    counts[act.__name__] = counts.get(act.__name__, 0) + 1
                except Exception as error:  # noqa: BLE001
                    errors.append(f"{act.__name__}: {type(error).__name__}: {error}")
                stopping.wait(rng.expovariate(1) * max(LEAST_PAUSE, (time.monotonic() - begin) / 4))

        acts = [self.talks] * 4 + [self.vanishes, self.reads_slowly, self.sends_nonsense, self.breaks_off]
        threads = [threading.Thread(target=client, args=(act, i)) for i, act in enumerate(acts)]
        for thread in threads:
            thread.start()
        every = min(60.0, 60 * self.minutes / 4)
        begin, restarts = time.monotonic(), 0
        meter, samples = front.Meter(self.server), []
        try:
            while time.monotonic() < begin + 60 * self.minutes:
                time.sleep(every)
                samples.append((self.server.memory(), self.server.descriptors()))
                port = self.other.port
                if restarts % 2:
                    self.other.stop()
                self.other.kill()
                restarts += 1
                self.other = self.start(*self.flags, port=port)
        finally:
            stopping.set()
            for thread in threads:
                thread.join()
        self.server.idle()
        time.sleep(1)
        samples.append((self.server.memory(), self.server.descriptors()))
        took, load = meter.read(), self.server.get("/load")[1]
        grown = samples[-1][0] - samples[0][0]
        series = ", ".join(f"{memory / 2**20:.1f}" for memory, _ in samples[::max(1, len(samples) // 10)])
        print(f"{took['seconds']:.0f} s, {restarts} restarts: {counts}; engine at work {took['busy'] / took['seconds']:.2f} of the time; memory grew by "
              f"{grown / 2**20:.1f} MiB ({series}), descriptors {samples[0][1]} -> {samples[-1][1]}")
        self.assertEqual(errors, [])
        self.assertTrue(all(counts.get(act.__name__) for act in acts), counts)
        self.assertLess(grown, 48 << 20)
        self.assertLessEqual(self.server.descriptors(), samples[0][1] + 4)
        self.assertEqual((load["running"], load["kv_blocks_used"]), (0, 0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("celer", type=pathlib.Path)
    parser.add_argument("--minutes", type=float, default=1)
    args, rest = parser.parse_known_args()
    Soak.minutes = args.minutes
    front.ServerCase.celer = args.celer.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
