#!/usr/bin/env python3
"""vLLM's routes that control and inspect a server: sleep_test.py CELER. Sleep mode, rendered requests, the data-parallel rank."""
import json
import random
import sys
import threading
import unittest

from serving import SLOW, ServerCase

if len(sys.argv) > 1:
    ServerCase.celer = sys.argv.pop(1)
PROMPT = list(range(20, 120))
ASK = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}


class Sleep(ServerCase):
    flags = ["--enable-sleep-mode"]

    def setUp(self):
        self.post("/wake_up")
        self.server.idle()

    def post(self, path, status=200):
        got, _, body = self.server.request("POST", path)
        self.assertEqual(got, status, body)
        return body

    def text(self, server=None, status=200, **fields):
        got, answer = (server or self.server).post("/v1/completions", {**ASK, **fields})
        self.assertEqual(got, status, answer)
        return answer["choices"][0]["text"] if status == 200 else answer["error"]

    def state(self):
        text = self.server.request("GET", "/metrics")[2].decode()
        return [line.split('sleep_state="')[1].split('"')[0] for line in text.splitlines()
                if line.startswith("celer:engine_sleep_state{") and line.endswith(" 1")]

    def check_asleep(self, level):
        self.assertEqual(self.server.get("/is_sleeping"), (200, {"is_sleeping": True}))
        self.assertEqual(self.state(), [None, ["weights_offloaded"], ["discard_all"]][level] if level else [])
        self.assertIn("asleep", self.text(status=503)["message"])
        self.assertEqual(self.server.get("/health")[0], 503)
        self.assertEqual(self.server.get("/health/live")[0], 200)
        self.assertEqual(self.server.get("/v1/models")[0], 200)
        self.assertEqual(self.server.get("/load")[0], 200)

    def check_awake(self):
        self.assertEqual(self.server.get("/is_sleeping"), (200, {"is_sleeping": False}))
        self.assertEqual(self.state(), ["awake"])
        self.assertEqual(self.server.get("/health")[0], 200)

    def test_each_level_and_back(self):
        self.check_awake()
        before = self.text()
        for level in (0, 1, 2, 1, 2):
            self.post(f"/sleep?level={level}")
            self.check_asleep(level)
            self.post(f"/sleep?level={level}")  # it is already
            self.post("/wake_up")
            self.check_awake()
            self.assertEqual(self.text(), before, f"level {level}")
        self.post("/sleep")  # level 1
        self.check_asleep(1)
        self.post("/sleep?level=2")  # deeper
        self.check_asleep(2)
        self.post("/wake_up")
        self.assertEqual(self.text(), before)

    def test_nothing_is_cached_after_sleep(self):
        self.text()
        for level in (1, 2):
            self.assertGreater(self.cached(), 0)
            self.post(f"/sleep?level={level}")
            self.post("/wake_up")
            self.assertEqual(self.cached(), 0)

    def cached(self):
        return self.server.post("/v1/completions", ASK)[1]["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_memory_is_given_back(self):
        # 1 KiB per token: 2 layers with keys and values of 2 heads of 32 numbers in f32.
        server = self.start("--enable-sleep-mode", "--kv", "f32", kv="48MiB", context=16000)
        draw = random.Random(1)
        for _ in range(2):
            prompts = [[draw.randrange(600) for _ in range(4000)] for _ in range(8)]
            status, _ = server.post("/v1/completions", {**ASK, "prompt": prompts, "max_tokens": 1})
            self.assertEqual(status, 200)
            full = server.memory()
            self.assertEqual(server.request("POST", "/sleep?level=1")[0], 200)
            asleep = server.memory()
            self.assertLess(asleep, full - (20 << 20), f"{full} bytes before, {asleep} asleep")
            self.assertEqual(server.request("POST", "/wake_up")[0], 200)
        text = self.text(server)
        self.assertEqual(server.request("POST", "/sleep?level=2")[0], 200)
        self.assertEqual(server.request("POST", "/wake_up")[0], 200)
        self.assertEqual(self.text(server), text)
        self.assertEqual(server.stop()[0], 0)

    def test_parts_wake_up_one_by_one(self):
        before = self.text()
        self.post("/sleep?level=2")
        self.post("/wake_up?tags=weights")
        self.check_asleep(2)
        self.post("/wake_up?tags=kv_cache")
        self.check_awake()
        self.post("/sleep?level=1")
        self.post("/wake_up?tags=kv_cache&tags=weights")
        self.assertEqual(self.text(), before)

    def stream(self):
        """Begins one; returns a function that gives the rest of its text."""
        socket = self.server.socket()
        body = json.dumps({**ASK, "max_tokens": 400, "stream": True}).encode()
        socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                       b"Content-Length: %d\r\n\r\n" % len(body) + body)
        text = b""
        while b'"text":' not in text:
            text += socket.recv(65536)

        def rest():
            nonlocal text
            while piece := socket.recv(65536):
                text += piece
            socket.close()
            return text.decode()
        return rest

    def test_requests_in_flight_are_ended_or_awaited(self):
        rest = self.stream()
        self.post("/sleep?level=1&mode=abort")
        self.check_asleep(1)
        ended = rest()
        self.assertIn("put to sleep", ended)
        self.assertIn("[DONE]", ended)
        self.post("/wake_up")
        rest = self.stream()
        asking = threading.Thread(target=self.post, args=["/sleep?level=2&mode=wait"])
        asking.start()
        finished = rest()
        asking.join(SLOW * 60)
        self.assertIn('"finish_reason":"length"', finished)
        self.assertIn("[DONE]", finished)
        self.check_asleep(2)

    def test_wrong_values(self):
        for path in ("/sleep?level=3", "/sleep?level=", "/sleep?level=one", "/sleep?mode=keep", "/sleep?level=1&level=9", "/wake_up?tags=all"):
            self.assertIn(b"expected", self.post(path, 400), path)
        for path in ("/sleep?mod=wait", "/sleep?tags=weights", "/wake_up?level=1", "/sleep?=1"):
            self.assertIn(b"is not supported", self.post(path, 400), path)
        self.check_awake()
        self.assertEqual(self.server.request("GET", "/sleep")[0], 405)
        off = self.start()
        self.assertEqual(off.get("/is_sleeping"), (200, {"is_sleeping": False}))
        for path in ("/sleep", "/wake_up"):
            status, _, body = off.request("POST", path)
            self.assertEqual(status, 404)
            self.assertIn(b"--enable-sleep-mode", body)

    def test_many_at_once_leave_it_usable(self):
        before = self.text()

        def turn(i):
            for path in ("/sleep?level=2", "/wake_up") if i % 2 else ("/sleep", "/wake_up"):
                status = self.server.request("POST", path)[0]
                self.assertIn(status, (200, 409, 503))
            status = self.server.request("POST", "/v1/completions", ASK)[0]
            self.assertIn(status, (200, 503))
        threads = [threading.Thread(target=turn, args=[i]) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SLOW * 120)
        self.post("/wake_up")
        self.assertEqual(self.text(), before)

    def test_a_signal_ends_it_asleep(self):
        server = self.start("--enable-sleep-mode")
        self.assertEqual(server.request("POST", "/sleep?level=2")[0], 200)
        self.assertEqual(server.stop()[0], 0)


class Render(ServerCase):
    def test_a_conversation(self):
        messages = [{"role": "user", "content": "Why is the sky blue?"}]
        status, rendered = self.server.post("/v1/chat/completions/render",
                                            {"messages": messages, "temperature": 0.5, "max_tokens": 7, "stop": ["x"], "seed": 3,
                                             "stream": True, "stream_options": {"include_usage": True}, "cache_salt": "s", "priority": 2})
        self.assertEqual(status, 200, rendered)
        tokens = self.server.post("/tokenize", {"messages": messages})[1]["tokens"]
        self.assertEqual(rendered["token_ids"], tokens)
        self.assertTrue(rendered["request_id"].startswith("chatcmpl-"))
        self.assertEqual((rendered["stream"], rendered["stream_options"]["include_usage"]), (True, True))
        self.assertEqual((rendered["cache_salt"], rendered["priority"], rendered["model"]), ("s", 2, None))
        sampling = rendered["sampling_params"]
        self.assertEqual((sampling["temperature"], sampling["max_tokens"], sampling["stop"], sampling["seed"]), (0.5, 7, ["x"], 3))
        self.assertEqual((sampling["n"], sampling["top_p"], sampling["logprobs"]), (1, 1, None))

    def test_completions(self):
        status, rendered = self.server.post("/v1/completions/render", {"model": "tiny", "prompt": [[1, 2, 3], [4, 5]], "logprobs": 2})
        self.assertEqual(status, 200, rendered)
        self.assertEqual([one["token_ids"] for one in rendered], [[1, 2, 3], [4, 5]])
        self.assertEqual([one["model"] for one in rendered], ["tiny"] * 2)
        self.assertTrue(all(one["request_id"].startswith("cmpl-") and one["sampling_params"]["max_tokens"] == 16 for one in rendered))
        self.assertEqual(rendered[0]["sampling_params"]["logprobs"], 2)
        self.assertEqual(self.server.metric("celer:engine_steps_total"), 0)

    def test_what_the_request_itself_would_get(self):
        for path, body, status in (("completions", {"model": "other", "prompt": "a"}, 404), ("completions", {"prompt": "a", "top_p": 7}, 400),
                                   ("chat/completions", {"messages": []}, 400), ("completions", {"prompt": [1] * 5000}, 400),
                                   ("completions", {"prompt": "a", "use_beam_search": True, "n": 2}, 400)):
            got, answer = self.server.post(f"/v1/{path}/render", body)
            self.assertEqual(got, status, answer)
            self.assertIn("message", answer["error"])

    def test_the_description_has_them(self):
        paths = self.server.get("/openapi.json")[1]["paths"]
        for path in ("/v1/completions/render", "/v1/chat/completions/render"):
            self.assertEqual(list(paths[path]["post"]["responses"]["200"]["content"]), ["application/json"])
            self.assertIn("requestBody", paths[path]["post"])
        self.assertTrue({"/sleep", "/wake_up", "/is_sleeping"} <= set(paths))

    def test_headers_of_routers(self):
        body = {**ASK, "max_tokens": 1}
        for rank, status in (("0", 200), ("1", 400), ("-1", 400), ("", 200), ("first", 200)):
            got, headers, answer = self.server.request("POST", "/v1/completions", body,
                                                       {"X-Data-Parallel-Rank": rank, "X-Request-Id": "one-2.3_4"})
            self.assertEqual(got, status, answer)
            self.assertEqual(headers["X-Request-Id"], "one-2.3_4")

    def test_older_names_of_metrics(self):
        text = self.server.request("GET", "/metrics")[2].decode()
        for name in ("gpu_cache_usage_perc", "cpu_cache_usage_perc", "gpu_prefix_cache_hit_rate", "gpu_prefix_cache_hits_total",
                     "gpu_prefix_cache_queries_total", "num_requests_swapped", "time_per_output_token_seconds_bucket"):
            self.assertIn(f"\nceler:{name}{{", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
