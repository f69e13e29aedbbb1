#!/usr/bin/env python3
"""celer serve --data-parallel-size: data_parallel_test.py CELER. Several engines in one process over the same weights: answers are
those of one engine, requests find the engine with their prefix, a client may name the rank."""
import concurrent.futures
import http.client
import json
import subprocess
import sys
import time
import unittest

from adapters import make_adapter
from serving import Server, ServerCase

CELER = sys.argv.pop(1) if len(sys.argv) > 1 else "celer"
COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"
RANK = "X-Data-Parallel-Rank"
RANKS = 3


def prompt(seed, blocks=8):
    """Token ids of so many blocks of the KV, and one more."""
    return [(seed * 131 + i * 17) % 500 + 20 for i in range(16 * blocks + 1)]


class DataParallel(ServerCase):
    flags = ["--data-parallel-size", str(RANKS), "--allow-runtime-lora", "--enable-sleep-mode"]

    def ask(self, tokens, rank=None, server=None, path=COMPLETE, **params):
        """The answer and the rank that gave it."""
        body = {"prompt": tokens, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **params}
        status, headers, data = (server or self.server).request("POST", path, body, {} if rank is None else {RANK: str(rank)})
        self.assertEqual(status, 200, data)
        return json.loads(data), headers.get(RANK)

    def cached(self, answer):
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def by_rank(self, name, **labels):
        """A metric of each engine."""
        found = {}
        for line in self.server.request("GET", "/metrics")[2].decode().splitlines():
            if line.startswith(f"celer:{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                rank = line.split('engine="')[1].split('"')[0]
                self.assertNotIn(rank, found, "a series twice")
                found[rank] = float(line.rsplit(" ", 1)[1])
        return found

    def test_answers_are_those_of_one_engine(self):
        one = self.start("--served-model-name", "tiny")
        bodies = [{"prompt": prompt(seed, 3 + seed % 3), "max_tokens": 12, "ignore_eos": True, "temperature": seed % 2, "seed": seed, "n": 1 + seed % 3}
                  for seed in range(12)]
        bodies.append({"prompt": [prompt(seed, 2) for seed in range(6)], "max_tokens": 5, "temperature": 0, "ignore_eos": True})
        alone = [[choice["text"] for choice in one.post(COMPLETE, body)[1]["choices"]] for body in bodies]
        self.assertTrue(all(any(texts) for texts in alone))
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            together = list(pool.map(lambda body: self.server.request("POST", COMPLETE, body), bodies))
        ranks = set()
        for (status, headers, data), texts in zip(together, alone):
            self.assertEqual(status, 200, data)
            self.assertEqual([choice["text"] for choice in json.loads(data)["choices"]], texts)
            ranks |= set(headers[RANK].split(","))
        self.assertEqual(ranks, {"0", "1", "2"})
        # The prompts of one request run on several.
        self.assertGreater(len(together[-1][1][RANK].split(",")), 1, together[-1][1][RANK])
        one.stop()

    def test_each_rank_gives_the_same_answer_and_has_a_cache_of_its_own(self):
        tokens, texts = prompt(100), set()
        for rank in range(RANKS):
            answer, by = self.ask(tokens, rank)
            self.assertEqual((by, self.cached(answer)), (str(rank), 0))
            texts.add(answer["choices"][0]["text"])
        self.assertEqual(len(texts), 1)
        for rank in range(RANKS):
            answer, by = self.ask(tokens, rank)
            self.assertEqual((by, self.cached(answer)), (str(rank), 128))

    def test_a_prefix_is_followed(self):
        for rank in (2, 0, 1):
            self.ask(prompt(200 + rank), rank)
        for seed, found in ((201, 128), (200, 128), (202, 128), (200, 144), (201, 144)):
            answer, by = self.ask(prompt(seed) + [9] * 20)
            self.assertEqual((by, self.cached(answer)), (str(seed - 200), found))
        # Of another tenant it is another one.
        self.assertEqual(self.cached(self.ask(prompt(200), cache_salt="mine")[0]), 0)
        answer, _ = self.ask(prompt(200), cache_salt="mine")
        self.assertEqual(self.cached(answer), 128)

    def test_a_busy_engine_is_passed_by(self):
        """Long answers on rank 1, which has the prefix: it is computed elsewhere, where it is found then."""
        tokens = prompt(300)
        self.ask(tokens, 1)
        open_streams = []
        for _ in range(6):
            connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
            connection.request("POST", COMPLETE, json.dumps({"prompt": [5, 6, 7], "max_tokens": 1500, "stream": True, "ignore_eos": True}),
                               {"Content-Type": "application/json", RANK: "1"})
            response = connection.getresponse()
            self.assertEqual(response.getheader(RANK), "1")
            response.readline()
            open_streams.append(connection)
        answer, by = self.ask(tokens)
        self.assertNotEqual(by, "1")
        self.assertEqual(self.cached(answer), 0)
        again, by_then = self.ask(tokens)
        self.assertEqual((by_then, self.cached(again)), (by, 128))
        for connection in open_streams:  # each cancels its request
            connection.close()
        self.server.idle()
        self.assertEqual(self.server.get("/load")[1]["in_flight"], [0] * RANKS)

    def test_what_is_not_a_rank(self):
        for rank in ("3", "-1", "99999999999999999999"):
            status, headers, data = self.server.request("POST", COMPLETE, {"prompt": "a", "max_tokens": 1}, {RANK: rank})
            self.assertEqual(status, 400)
            self.assertIn(f"is {rank}, but this server has ranks 0 to 2", json.loads(data)["error"]["message"])
        self.assertEqual(self.server.request("POST", COMPLETE, {"prompt": "a", "max_tokens": 1}, {RANK: "first"})[0], 200)

    def test_metrics_and_info(self):
        before = self.by_rank("prompt_tokens_total")
        self.assertEqual(set(before), {"0", "1", "2"})
        success = self.by_rank("request_success_total", finished_reason="length")
        for _ in range(2):
            self.ask(prompt(400, 2), 2)
        after = self.by_rank("prompt_tokens_total")
        self.assertEqual([after[rank] - before[rank] for rank in "012"], [0, 0, 66])
        self.assertEqual(self.by_rank("request_success_total", finished_reason="length")["2"] - success["2"], 2)
        for name in ("num_requests_running", "kv_cache_usage_perc", "time_to_first_token_seconds_count", "engine_steps_total"):
            self.assertEqual(set(self.by_rank(name)), {"0", "1", "2"}, name)
        self.assertEqual(set(self.by_rank("healthy")), {"0"}, "of the server, not of an engine")
        text = self.server.request("GET", "/metrics")[2].decode()
        for name in ("num_requests_running", "time_to_first_token_seconds", "cache_config_info"):
            self.assertEqual(text.count(f"# TYPE celer:{name} "), 1)
        info = self.server.get("/server_info")[1]
        self.assertEqual((info["data_parallel_size"], [one["rank"] for one in info["engines"]]), (RANKS, [0, 1, 2]))
        self.assertEqual(info["max_total_num_tokens"], sum(one["max_total_num_tokens"] for one in info["engines"]))

    def test_weights_are_there_once(self):
        """More engines take KV, and no second copy of the weights."""
        model = self.folder / "larger.gguf"
        subprocess.run([CELER, "synth", "llama-3.1-8b", "--weights", "q8_0", "-o", model, "--layers", "4", "--hidden", "512", "--intermediate", "2048",
                        "--vocab", "8000", "--heads", "8", "--kv-heads", "2", "--head-dim", "64"], check=True, capture_output=True, timeout=300)
        resident = []
        for engines in (1, 3):
            server = Server(CELER, model, "--data-parallel-size", engines, kv="4MiB")
            self.addClassCleanup(server.kill)
            for rank in range(engines):
                server.request("POST", COMPLETE, {"prompt": [5] * 20, "max_tokens": 4}, {RANK: str(rank)})
            resident.append(server.memory())
            server.stop()
        self.assertLess(resident[1] - resident[0], 0.7 * model.stat().st_size + (24 << 20), f"{resident} of {model.stat().st_size}")

    def test_adapters_are_on_all(self):
        path = make_adapter(self.folder / "sql", 1)
        status, _, data = self.server.request("POST", "/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": str(path)})
        self.assertEqual(status, 200, data)
        plain = self.ask(prompt(500), 0)[0]["choices"][0]["text"]
        texts = {self.ask(prompt(500), rank, model="sql")[0]["choices"][0]["text"] for rank in range(RANKS)}
        self.assertEqual(len(texts), 1)
        self.assertNotIn(plain, texts)
        # A prefix of the adapter is not one of the model.
        self.ask(prompt(510), 1, model="sql")
        answer, by = self.ask(prompt(510), model="sql")
        self.assertEqual((by, self.cached(answer)), ("1", 128))
        self.assertEqual(self.server.request("POST", "/v1/unload_lora_adapter", {"lora_name": "sql"})[0], 200)

    def test_a_conversation_that_is_kept_may_go_on_anywhere(self):
        status, headers, data = self.server.request("POST", "/v1/responses", {"input": "Remember the number four.", "max_output_tokens": 4}, {RANK: "0"})
        self.assertEqual((status, headers[RANK]), (200, "0"), data)
        first = json.loads(data)["id"]
        for rank in range(RANKS):
            status, headers, data = self.server.request("POST", "/v1/responses",
                                                        {"input": "Which?", "previous_response_id": first, "max_output_tokens": 4}, {RANK: str(rank)})
            self.assertEqual((status, headers[RANK]), (200, str(rank)), data)

    def test_sleep_is_of_all(self):
        for rank in range(RANKS):
            self.ask(prompt(600), rank)
        for level in (1, 2):
            self.assertEqual(self.server.request("POST", f"/sleep?level={level}")[0], 200)
            self.assertEqual(self.server.request("POST", COMPLETE, {"prompt": "a"})[0], 503)
            self.assertEqual(self.by_rank("engine_sleep_state", sleep_state="awake"), {"0": 0, "1": 0, "2": 0})
            self.assertEqual(self.server.request("POST", "/wake_up")[0], 200)
            for rank in range(RANKS):
                answer, by = self.ask(prompt(600), rank)
                self.assertEqual((by, self.cached(answer)), (str(rank), 0))

    def test_drain_waits_for_all(self):
        server = self.start("--data-parallel-size", "2")

        def stream(rank):
            connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
            connection.request("POST", COMPLETE, json.dumps({"prompt": [5, 6, 7], "max_tokens": 400, "stream": True, "ignore_eos": True}),
                               {"Content-Type": "application/json", RANK: str(rank)})
            response = connection.getresponse()
            response.readline()
            begun.append(rank)
            said = response.read().decode()
            connection.close()
            return said
        begun = []
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            running = [pool.submit(stream, rank) for rank in range(2)]
            while len(begun) < 2:
                time.sleep(0.01)
            code, log = server.stop()
            self.assertEqual(code, 0, log)
            for one in running:
                self.assertIn("data: [DONE]", one.result())
                self.assertNotIn("error", one.result())


class Refusals(unittest.TestCase):
    def test_sizes(self):
        for size in ("0", "257", "many"):
            done = subprocess.run([CELER, "serve", "nothing", "--data-parallel-size", size], capture_output=True, text=True, timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("--data-parallel-size", done.stderr)


if __name__ == "__main__":
    ServerCase.celer = CELER
    unittest.main(verbosity=2)
