#!/usr/bin/env python3
"""Disaggregated prefill: disagg_test.py CELER [--model MODEL]. Keys and values that one server has computed are fetched by another
one, whose answers must be those of a server that did all by itself: greedy and sampled, streamed and not, with adapters, with each
KV type, with a part of the prompt cached already, and with peers that are killed, frozen, wrong or hostile."""
import concurrent.futures
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))

from adapters import make_adapter  # noqa: E402
from serving import SLOW, Server, make_model  # noqa: E402

MODEL = None
if "--model" in sys.argv:
    at = sys.argv.index("--model")
    MODEL = pathlib.Path(sys.argv[at + 1])
    del sys.argv[at:at + 2]
CELER = sys.argv.pop(1) if len(sys.argv) > 1 else "celer"
BLOCK, TIMEOUT = 16, 2
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None, "remote_host": None,
           "remote_port": None}


def story(number):
    return f"{number}: " + "Once upon a time there was a story, which was told again and again by people who had nothing else to do. " * 12


class Relay:
    """Between two servers: passes so many bytes on to the one that fetches, then does something, and closes."""

    def __init__(self, port, most, then):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.target, self.most, self.then = self.listener.getsockname()[1], port, most, then
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        here, _ = self.listener.accept()
        there = socket.create_connection(("127.0.0.1", self.target))
        threading.Thread(target=self.forward, args=(here, there), daemon=True).start()
        left = self.most
        while left > 0 and (data := there.recv(min(left, 65536))):
            here.sendall(data)
            left -= len(data)
        self.then()
        here.shutdown(socket.SHUT_RDWR)  # the other thread still reads from it
        here.close()
        there.close()
        self.listener.close()

    @staticmethod
    def forward(here, there):
        try:
            while data := here.recv(65536):
                there.sendall(data)
        except OSError:
            pass


class Disaggregated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="celer_disagg_")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.model = MODEL or make_model(CELER, cls.folder)
        cls.alone = cls.start(transfer=False)
        cls.a = cls.start()
        cls.b = cls.start("--kv-transfer-peers", "127.0.0.1")

    @classmethod
    def start(cls, *flags, transfer=True, timeout=TIMEOUT, model=None, **kwargs):
        if transfer:
            flags = ("--kv-transfer", "127.0.0.1:0", "--kv-transfer-timeout", timeout, *flags)
        server = Server(CELER, model or cls.model, "--served-model-name", "tiny", *flags,
                        **{"kv": "256MiB" if MODEL else "32MiB", "template": None if MODEL else "chatml.jinja", **kwargs})
        cls.addClassCleanup(server.kill)
        return server

    def body(self, number, **more):
        # Each with a salt of its own, so that a template's first words are not cached.
        return {"model": "tiny", "prompt": story(number), "cache_salt": str(number), "max_tokens": 24, "temperature": 0, "ignore_eos": True,
                **more}

    def answer(self, server, body, path=TEXT):
        """Text, token ids, usage, and the header that says what was fetched."""
        stream = body.get("stream", False)
        body = {**body, "return_token_ids": True, **({"stream_options": {"include_usage": True}} if stream else {})}
        status, headers, data = server.request("POST", path, body)
        self.assertEqual(status, 200, data)
        answers = [json.loads(data)]  if not stream else [
            json.loads(line[6:]) for line in data.decode().split("\n\n") if line.startswith("data: {")]
        texts, ids, usage, params = {}, {}, None, None
        for one in answers:
            usage = one.get("usage") or usage
            params = one.get("kv_transfer_params") or params
            for choice in one["choices"]:
                i = choice["index"]
                message = choice.get("delta") or choice.get("message") or {}
                texts[i] = texts.get(i, "") + (choice.get("text") or message.get("content") or "")
                ids[i] = ids.get(i, []) + (choice.get("token_ids") or [])
        return {"texts": texts, "ids": ids, "usage": usage, "params": params, "said": headers.get("X-Celer-KV-Transfer")}

    def prefill(self, server, body, path=TEXT):
        short = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": PREFILL}
        return self.answer(server, short, path)["params"]

    def same(self, answer, body, path=TEXT):
        alone = self.answer(self.alone, body, path)
        self.assertEqual(answer["texts"], alone["texts"])
        self.assertEqual(answer["ids"], alone["ids"])
        self.assertEqual(answer["usage"]["completion_tokens"], alone["usage"]["completion_tokens"])
        return alone

    def whole(self, answer):
        return (answer["usage"]["prompt_tokens"] - 1) // BLOCK * BLOCK

    def settled(self, server):
        """Nothing runs, and nothing is held for a peer."""
        end = time.monotonic() + SLOW * 30
        while server.metric("celer:kv_transfer_held") and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(server.metric("celer:kv_transfer_held"), 0)
        server.idle()

    def fetched(self, answer, tokens):
        self.assertEqual(answer["said"], f"fetched={tokens}")
        self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], tokens)

    def computed(self, answer, reason):
        self.assertEqual(answer["said"], f"fetched=0; computed={reason}")
        self.assertEqual(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_text_is_that_of_one_server(self):
        a, b, number = self.start(), self.start("--kv-transfer-peers", "127.0.0.1"), 0
        for path in (TEXT, CHAT):
            for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 7}, {"temperature": 1, "seed": 8, "n": 3}):
                for stream in (False, True):
                    number += 1
                    with self.subTest(path=path, stream=stream, **sampling):
                        body = self.body(f"first {number}", stream=stream, **sampling)
                        if path == CHAT:
                            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
                        params = self.prefill(a, body, path)
                        self.assertEqual((params["do_remote_prefill"], params["do_remote_decode"]), (True, False))
                        self.assertEqual(len(params["remote_block_ids"]) * BLOCK, params["remote_num_tokens"])
                        answer = self.answer(b, {**body, "kv_transfer_params": params}, path)
                        self.same(answer, body, path)
                        self.fetched(answer, self.whole(answer))
                        self.assertIsNone(answer["params"])
        for server in (a, b):
            self.settled(server)
        self.assertEqual(a.metric("celer:kv_transfer_bytes_total"), b.metric("celer:kv_transfer_bytes_total"))
        self.assertEqual(b.metric("celer:external_prefix_cache_hits_total"), b.metric("celer:external_prefix_cache_queries_total"))
        self.assertGreaterEqual(b.metric("celer:nixl_xfer_time_seconds_count"), number)

    def test_a_streamed_prefill_says_it_too(self):
        body = self.body("streamed prefill", stream=True, max_tokens=1, kv_transfer_params=PREFILL)
        params = self.answer(self.a, body)["params"]
        body = self.body("streamed prefill")
        self.fetched(self.answer(self.b, {**body, "kv_transfer_params": params}), params["remote_num_tokens"])

    def test_a_part_is_cached(self):
        body = self.body("half")
        half = {**body, "prompt": body["prompt"][:len(body["prompt"]) // 2], "max_tokens": 1}
        known = self.answer(self.b, half)
        params = self.prefill(self.a, body)
        answer = self.answer(self.b, {**body, "kv_transfer_params": params})
        self.same(answer, body)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(cached, self.whole(answer))
        fetched = int(re.fullmatch(r"fetched=(\d+)", answer["said"])[1])
        self.assertLess(fetched, cached)
        self.assertLessEqual(cached - fetched, known["usage"]["prompt_tokens"])
        # And all of it: nothing is fetched, also where nobody listens.
        for again in ({**params, "remote_port": 1}, self.prefill(self.a, body)):
            answer = self.answer(self.b, {**body, "kv_transfer_params": again})
            self.assertEqual((answer["said"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]), ("fetched=0", cached))

    def test_a_resumed_answer(self):
        body = self.body("resumed", temperature=1, seed=5)
        whole = self.answer(self.alone, body)
        params = self.prefill(self.a, body)
        half = whole["ids"][0][:9]
        resumed = self.answer(self.b, {**body, "resume": {"token_ids": half}, "kv_transfer_params": params})
        self.assertEqual(half + resumed["ids"][0], whole["ids"][0])
        self.assertTrue(resumed["said"].startswith("fetched="))

    def test_adapters(self):
        if MODEL:
            self.skipTest("the adapters are of the small model")
        path = make_adapter(self.folder / "adapter", 3)
        a = self.start("--lora", f"one={path}")
        b = self.start("--lora", f"two={path}", "--lora", f"other={make_adapter(self.folder / 'other', 4)}", "--kv-transfer-peers", "127.0.0.1")
        alone = self.start("--lora", f"two={path}", transfer=False)
        body = self.body("adapted")
        params = self.prefill(a, {**body, "model": "one"})
        for name, reason in (("tiny", "refused"), ("other", "refused")):
            self.computed(self.answer(b, {**body, "model": name, "kv_transfer_params": params}), reason)
        answer = self.answer(b, {**body, "model": "two", "kv_transfer_params": params})
        self.fetched(answer, params["remote_num_tokens"])
        self.assertEqual(answer["texts"], self.answer(alone, {**body, "model": "two"})["texts"])
        self.assertNotEqual(answer["texts"], self.answer(alone, body)["texts"])

    def test_each_kv_type(self):
        if MODEL:
            self.skipTest("once is enough")
        for kv in ("f32", "bf16", "int8", "int8-channel", "int4"):
            with self.subTest(kv=kv):
                a, b = self.start("--kv", kv), self.start("--kv", kv, "--kv-transfer-peers", "127.0.0.1")
                body = self.body(kv)
                params = self.prefill(a, body)
                answer = self.answer(b, {**body, "kv_transfer_params": params})
                self.fetched(answer, params["remote_num_tokens"])
                self.assertEqual(answer["ids"], self.answer(a, body)["ids"])
                # Another type than that of the others.
                params = self.prefill(a, self.body(kv + " again"))
                self.computed(self.answer(self.b, {**self.body(kv + " again"), "kv_transfer_params": params}), "refused")
                self.assertIn("its kv is 'f16", a.log())
                a.kill()
                b.kill()

    def test_replicas_in_one_process(self):
        if MODEL:
            self.skipTest("once is enough")
        a, b = self.start("--data-parallel-size", "2"), self.start("--data-parallel-size", "2", "--kv-transfer-peers", "127.0.0.1")
        for rank in ("0", "1", "0", "1"):
            body = self.body("rank " + rank)
            status, _, data = a.request("POST", TEXT, {**body, "max_tokens": 1, "kv_transfer_params": PREFILL}, {"X-Data-Parallel-Rank": rank})
            self.assertEqual(status, 200)
            params = json.loads(data)["kv_transfer_params"]
            self.same(self.answer(b, {**body, "kv_transfer_params": params}), body)
        self.settled(a)
        b.idle()

    def test_a_is_killed_in_the_middle(self):
        a = self.start()
        body = self.body("killed", stream=True, temperature=1, seed=3)
        params = self.prefill(a, body)
        relay = Relay(params["remote_port"], 3000, a.process.kill)
        answer = self.answer(self.b, {**body, "kv_transfer_params": {**params, "remote_port": relay.port}})
        self.same(answer, body)
        self.computed(answer, "lost")
        # And before: nobody listens there any more.
        later = self.body("killed before")
        self.computed(self.answer(self.b, {**later, "kv_transfer_params": params}), "unreachable")
        self.b.idle()
        self.assertGreater(self.b.metric("celer:nixl_num_failed_transfers_total"), 0)
        self.assertIn("the others are computed", self.b.log())

    def test_a_frozen_peer(self):
        a = self.start()
        patient = self.start("--kv-transfer-peers", "127.0.0.1", timeout=60)
        frozen = [self.body(f"frozen {i}") for i in range(4)]
        params = [self.prefill(a, body) for body in frozen]
        once = self.body("frozen once")
        once_params = self.prefill(a, once)
        a.process.send_signal(signal.SIGSTOP)
        try:
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                waiting = [pool.submit(self.answer, patient, {**body, "kv_transfer_params": one}) for body, one in zip(frozen, params)]
                begin = time.monotonic()
                for i in range(8):
                    self.answer(patient, self.body(f"others {i}", max_tokens=4))
                print(f"8 requests beside 4 that wait for a frozen peer: {time.monotonic() - begin:.2f} s")
                self.assertEqual([one.done() for one in waiting], [False] * 4, "the others waited for them")
                # One that waits no longer than it may.
                answer = self.answer(self.b, {**once, "kv_transfer_params": once_params})
                self.same(answer, once)
                self.computed(answer, "timeout")
                a.process.send_signal(signal.SIGCONT)
                for body, one in zip(frozen, waiting):
                    self.same(one.result(), body)
                    self.fetched(one.result(), self.whole(one.result()))
        finally:
            a.process.send_signal(signal.SIGCONT)
        self.b.idle()
        patient.idle()

    def test_peers_that_are_none(self):
        hostile = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(hostile.close)

        def noise():
            there, _ = hostile.accept()
            there.sendall(b"\xff" * 4096)
            there.close()
        threading.Thread(target=noise, daemon=True).start()
        cases = [({"remote_host": "169.254.169.254", "remote_port": 80}, "peer", "169.254.169.254:80 is not among the servers"),
                 ({"remote_host": "localhost"}, "peer", "localhost:"), ({"remote_port": self.b.port}, "lost|malformed", "are computed"),
                 ({"remote_port": hostile.getsockname()[1]}, "lost|malformed", "are computed"),
                 ({"transfer_id": "0" * 32}, "refused", "nothing is held under '00000"), ({"remote_engine_id": "another"}, "refused", "it was started again"),
                 ({"transfer_id": None}, "incomplete", "names no remote_host"), ({"remote_num_tokens": 16}, "", "16 tokens of its prompt")]
        for number, (changed, reason, sentence) in enumerate(cases):
            with self.subTest(**changed):
                body = self.body(f"wrong peer {number}")
                answer = self.answer(self.b, {**body, "kv_transfer_params": {**self.prefill(self.a, body), **changed}})
                self.same(answer, body)
                if reason:
                    self.assertRegex(answer["said"], f"^fetched=0; computed=({reason})$")
                    self.assertIn(sentence, self.b.log())
                else:
                    self.fetched(answer, 16)
        body = self.body("held")
        params = self.prefill(self.a, body)
        # Without a list nobody is asked.
        self.computed(self.answer(self.a, {**body, "cache_salt": "a", "kv_transfer_params": params}), "peer")
        self.assertIn("see --kv-transfer-peers", self.a.log())
        # Other prompts under the same number, with which it is held all the same.
        for other in (self.body("another prompt"), {**body, "cache_salt": "another"}):
            self.computed(self.answer(self.b, {**other, "kv_transfer_params": params}), "refused")
        self.assertIn("of another prompt", self.b.log())
        self.fetched(self.answer(self.b, {**body, "kv_transfer_params": params}), params["remote_num_tokens"])

    def test_another_model(self):
        if MODEL:
            self.skipTest("once is enough")
        other = self.folder / "other.gguf"
        data = bytearray(self.model.read_bytes())
        data[-5] ^= 1  # of a weight
        other.write_bytes(data)
        a = self.start(model=other)
        body = self.body("another model")
        answer = self.answer(self.b, {**body, "kv_transfer_params": self.prefill(a, body)})
        self.computed(answer, "refused")
        self.same(answer, body)
        self.assertIn("its model is", a.log())

    def test_what_nobody_fetches_is_released(self):
        a = self.start("--kv-transfer-hold", "1")
        body = self.body("expires")
        params = self.prefill(a, body)
        self.assertEqual(a.metric("celer:kv_transfer_held_blocks"), len(params["remote_block_ids"]))
        self.assertGreater(a.get("/load")[1]["kv_blocks_used"], 0)
        self.settled(a)
        self.assertEqual(a.metric("celer:nixl_num_kv_expired_reqs_total"), 1)
        self.computed(self.answer(self.b, {**body, "kv_transfer_params": params}), "refused")

    def test_held_blocks_make_room(self):
        if MODEL:
            self.skipTest("once is enough")
        # Ten times what fits, and nobody fetches it.
        a = self.start(kv="1MiB")
        for i in range(30):
            self.prefill(a, self.body(f"room {i}"))
        answer = self.answer(a, self.body("room"))
        self.same(answer, self.body("room"))
        blocks = float(re.search(r'num_gpu_blocks="(\d+)"', a.request("GET", "/metrics")[2].decode())[1])
        self.assertLessEqual(a.get("/load")[1]["kv_blocks_used"], blocks / 2)

    def test_bad_parameters(self):
        for params, words in (({"do_remote_prefill": 1}, "kv_transfer_params.do_remote_prefill is 1, expected true or false"),
                              ({"remote_host": 5}, "kv_transfer_params.remote_host"), ({"remote_port": "x"}, "kv_transfer_params.remote_port"),
                              ({"remote_port": 65536}, "0 to 65535"), ({"remote_num_tokens": -1}, "remote_num_tokens"), ([], "an object")):
            status, answer = self.b.post(TEXT, self.body("bad", kv_transfer_params=params))
            self.assertEqual(status, 400)
            self.assertIn(words, answer["error"]["message"])
        status, answer = self.b.post(TEXT, {**self.body("bad"), "prompt": ["a", "b"], "kv_transfer_params": PREFILL})
        self.assertEqual((status, "is of one prompt" in answer["error"]["message"]), (400, True))
        status, answer = self.alone.post(TEXT, self.body("off", kv_transfer_params=PREFILL))
        self.assertEqual((status, "--kv-transfer HOST:PORT" in answer["error"]["message"]), (400, True))
        for nothing in (None, {}, {"do_remote_decode": False, "do_remote_prefill": False}):
            self.assertEqual(self.alone.post(TEXT, self.body("off", kv_transfer_params=nothing))[0], 200)
        # As strings and with fields of other connectors.
        params = self.prefill(self.a, self.body("strings"))
        params = {**params, "remote_port": str(params["remote_port"]), "tp_size": 8, "remote_bootstrap_addr": "http://x"}
        self.fetched(self.answer(self.b, {**self.body("strings"), "kv_transfer_params": params}), params["remote_num_tokens"])

    def test_flags(self):
        for flags, words in ((["--kv-transfer", "0.0.0.0:0"], "is not one address of this machine"), (["--kv-transfer", "x"], "HOST:PORT"),
                             (["--kv-transfer-peers", "10.0.0.1"], "--kv-transfer"),
                             (["--kv-transfer", "127.0.0.1:0", "--kv-transfer-peers", "10.0.0.0/99"], "is no network"),
                             (["--kv-transfer", "127.0.0.1:0", "--no-prefix-cache"], "prefix cache")):
            done = subprocess.run([CELER, "serve", self.model, "--port", "0", "--context", "512", "--kv-memory", "8MiB", *flags], capture_output=True,
                                  text=True, timeout=120)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)

    def test_through_the_proxy(self):
        a = self.start()
        proxy = subprocess.Popen([sys.executable, ROOT / "deploy/disaggregated/proxy.py", "--port", "0", "--prefill", a.url, "--decode", self.b.url],
                                 stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (proxy.kill(), proxy.wait(), proxy.stderr.close()))

        class Front:
            port = int(re.search(r":(\d+)$", proxy.stderr.readline().strip())[1])
            host, request = "127.0.0.1", Server.request
        front = Front()
        bodies = [self.body(f"proxy {i}", stream=i % 2 == 0, temperature=i % 3 / 2, seed=i) for i in range(12)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda body: self.answer(front, body), bodies))
        for body, answer in zip(bodies, answers):
            self.same(answer, body)
            self.fetched(answer, self.whole(answer))
        self.assertEqual(a.metric("celer:kv_transfer_sent_total"), 12)
        a.process.kill()
        body = self.body("without a prefiller")
        answer = self.answer(front, body)
        self.same(answer, body)
        self.assertIsNone(answer["said"])


if __name__ == "__main__":
    unittest.main()
