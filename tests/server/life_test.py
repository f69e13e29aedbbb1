#!/usr/bin/env python3
"""What celer serve refuses and how it lives: life_test.py CELER. Errors by table, keys, TLS, CORS, drain, queue, metrics."""
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import unittest

from serving import JSON, ServerCase

ASK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0}
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "x", "max_tokens": 1900, "temperature": 0, "ignore_eos": True, "stream": True}


class ErrorsCase(ServerCase):
    def refused(self, path, body, status, param=None, says=""):
        got, answer = self.server.post(path, body)
        with self.subTest(path=path, body=str(body)[:80]):
            self.assertEqual(got, status, answer)
            error = answer["error"]
            self.assertEqual(set(error), {"message", "type", "param", "code"})
            self.assertIsInstance(error["code"], (str, type(None)))
            self.assertIn(says, error["message"])
            if param:
                self.assertEqual(error["param"], param)

    def test_table(self):
        for field, value, says in (
                ("temperature", -0.1, "is -0.1, expected a number from 0 to 100"),
                ("temperature", 1e30, "expected a number from 0 to 100"),
                ("temperature", "hot", "is 'hot', expected a number from 0 to 100"),
                ("temperature", True, "expected a number"),
                ("top_p", 0, "is 0, expected a number from 1e-06 to 1"),
                ("top_p", 1.5, "is 1.5"),
                ("top_k", -2, "expected a whole number from -1 to 2147483647"),
                ("top_k", 1.5, "expected a whole number"),
                ("min_p", 2, "expected a number from 0 to 1"),
                ("n", 0, "expected a whole number from 1 to 128"),
                ("n", 10**9, "expected a whole number from 1 to 128"),
                ("best_of", 129, "expected a whole number from 1 to 128"),
                ("presence_penalty", 3, "expected a number from -2 to 2"),
                ("frequency_penalty", -3, "expected a number from -2 to 2"),
                ("repetition_penalty", 0, "expected a number from 1e-06 to 1000000"),
                ("max_tokens", -1, "expected a whole number from 0"),
                ("max_tokens", 0, "max_tokens is 0"),
                ("max_tokens", 10**7, "the context holds 2048"),
                ("max_tokens", 10**30, "expected a whole number"),
                ("min_tokens", 50, "min_tokens is 50, but the answer may have 2 tokens"),
                ("seed", 1.5, "expected a whole number"),
                ("stream", "yes", "is 'yes', expected true or false"),
                ("stop", 5, "expected a string, or an array of"),
                ("stop", [""], "strings of 1 to 1024 bytes"),
                ("stop", ["x"] * 33, "expected a string, or an array of"),
                ("logit_bias", {"x": 1}, "names 'x', expected a token id"),
                ("logit_bias", {"1": 101}, "numbers from -100 to 100"),
                ("logit_bias", {"99999": 1}, "the vocabulary has 600 tokens"),
                ("stop_token_ids", [600], "names token 600, but the model has 600 tokens"),
                ("allowed_token_ids", [-1], "token ids"),
                ("top_logprobs", 21, "expected a whole number from 0 to 20"),
                ("top_logprobs", 2, "top_logprobs needs logprobs: true"),
                ("messages", [], "expected an array of 1 or more"),
                ("messages", "hi", "expected an array"),
                ("messages", [5], "messages[0] is 5"),
                ("messages", [{"role": "user"}], "messages[0].content is null"),
                ("messages", [{"role": "pirate", "content": "x"}], "which is not one of"),
                ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
                 "messages[0].content[0].type is 'image_url'; this model takes text only"),
                ("response_format", {"type": "xml"}, "expected text, json_object or json_schema"),
                ("chat_template", "{{ 1 }}", "'chat_template' is not supported"),
                ("chat_template_kwargs", {"chat_template": "x"}, "the server sets it"),
                ("tools", [{"type": "function", "function": {"name": "f"}}], "the model's chat template has no tools"),
                ("tool_choice", "required", "there are no tools"),
                ("functions", [], "use tools"),
                ("logprob", True, "did you mean 'logprobs'?"),
                ("request_id", "a b", "letters, digits and ._-")):
            self.refused(CHAT, {**ASK, field: value}, 400, None, says)
        for body, says in (
                ({}, "prompt is missing"), ({"prompt": ""}, "the prompt has no tokens"), ({"prompt": []}, "prompt is an array"),
                ({"prompt": [600]}, "names token 600"), ({"prompt": [1, "x"]}, "token ids"),
                ({"prompt": "x", "suffix": "y"}, "'suffix' is not supported: the model is not trained to fill in"),
                ({"prompt": "x " * 3000}, "the context of 2048 tokens has room for 2047"),
                ({"prompt": ["x"] * 1025}, "at most 1024"), ({"prompt": ["x"] * 100, "n": 100}, "10000 answers"),
                ({"prompt": "x", "n": 2, "best_of": 1}, "at least n, which is 2")):
            self.refused(COMPLETE, body, 400, None, says)
        self.refused("/v1/responses", {"input": 5}, 400, "input")
        self.refused(CHAT, {**ASK, "store": True}, 400, "store", "'store: true' is not supported")
        self.refused(CHAT, {**ASK, "continue_final_message": True}, 400, "continue_final_message")
        self.refused(CHAT, {**ASK, "max_completion_tokens": 10**7}, 400, "max_completion_tokens", "the context holds 2048")
        self.refused("/v1/responses", {"input": "x", "max_output_tokens": 10**7}, 400, "max_output_tokens")
        self.refused("/v1/nothing", {}, 404, None, "there is no '/v1/nothing' here")
        self.refused("/health", {}, 405, None, "does not take POST")
        self.assertEqual(self.server.request("PUT", "/v1/responses/x")[1]["Allow"], "OPTIONS, GET, DELETE")

    def test_bodies_that_are_no_json(self):
        for body, says in ((b"", "not valid JSON"), (b"{", "not valid JSON"), (b"[]", "expected an object"), (b"null", "expected an object"),
                           (b'{"temperature": NaN}', "not valid JSON"), (b'{"temperature": Infinity}', "not valid JSON"),
                           (b'{"temperature": 1e999}', "the body: the number 1e999 at byte 21 is too large"), (b'{"prompt": "\xff"}', "not valid JSON"),
                           (b"[" * 100000, "nested"), (b'{"a":' * 1000 + b"1" + b"}" * 1000, "nested"),
                           (b"{" + b",".join(b'"k%d":1' % i for i in range(3000)) + b"}", "more than 1024 fields"),
                           (b'{"prompt": "\\ud800"}', "not valid JSON")):
            self.refused(COMPLETE, body, 400, None, says)

    def test_pages_of_other_origins(self):
        """What a browser would send for a page that is not this server's own."""
        ask = json.dumps(ASK)
        for method, path, body, headers, status, says in (
                ("POST", CHAT, ask, {"Host": "evil.example"}, 403, "--allowed-hosts evil.example"),  # DNS rebinding
                ("GET", "/v1/models", None, {"Host": f"evil.example:{self.server.port}"}, 403, "--allowed-hosts evil.example"),
                ("GET", "/", None, {"Host": "evil.example"}, 403, "--allowed-hosts"),
                ("POST", CHAT, ask, {"Origin": "https://evil.example"}, 403, "--cors-origin https://evil.example"),
                ("POST", CHAT, ask, {"Origin": "null"}, 403, "--cors-origin"),
                ("GET", "/v1/models", None, {"Origin": "http://localhost:1"}, 403, "--cors-origin"),
                ("POST", CHAT, ask, {"Content-Type": "text/plain"}, 415, "expected application/json"),  # fetch with no-cors
                ("POST", "/tokenize", ask, {"Content-Type": "multipart/form-data"}, 415, "expected application/json"),
                ("POST", "/v1/embeddings", ask, {"Content-Type": "application/x-www-form-urlencoded"}, 415, "with curl -d, add -H")):
            got, _, answer = self.server.request(method, path, body, headers)
            self.assertEqual(got, status, (path, headers))
            self.assertIn(says, json.loads(answer)["error"]["message"])
        status, headers, _ = self.server.request("OPTIONS", CHAT, headers={"Origin": "https://evil.example"})
        self.assertEqual(status, 403)
        self.assertNotIn("Access-Control-Allow-Origin", headers)
        for headers in ({"Host": "localhost"}, {"Host": f"LOCALHOST:{self.server.port}"}, {"Host": "[::1]:1"},
                        {"Origin": self.server.url}, {"Content-Type": "application/json; charset=utf-8"}):
            self.assertEqual(self.server.request("POST", CHAT, ask, headers)[0], 200, headers)
        self.assertEqual(self.server.request("GET", "/health", headers={"Host": "balancer"})[0], 200)

    def test_errors_of_anthropics_routes(self):
        asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        for method, path, body, headers, status, kind in (
                ("POST", "/v1/messages", {}, {}, 400, "invalid_request_error"),
                ("POST", "/v1/messages", {**asked, "model": "other"}, {}, 404, "not_found_error"),
                ("POST", "/v1/messages/nothing", {}, {}, 404, "not_found_error"),
                ("GET", "/v1/messages", None, {}, 405, "invalid_request_error"),
                ("POST", "/v1/messages/count_tokens", {"messages": 5}, {}, 400, "invalid_request_error"),
                ("POST", "/v1/messages/count_tokens", asked, {}, 400, "invalid_request_error"),  # it has no max_tokens
                ("POST", "/v1/messages", b"x" * (9 << 20), {}, 413, "request_too_large"),
                ("POST", "/v1/messages", asked, {"Origin": "null"}, 403, "permission_error"),
                ("GET", "/v1/models/other", None, {"anthropic-version": "2023-06-01"}, 404, "not_found_error"),
                ("GET", "/v1/nothing", None, {"anthropic-version": "2023-06-01"}, 404, "not_found_error")):
            got, _, answer = self.server.request(method, path, body, headers)
            answer = json.loads(answer)
            self.assertEqual((got, answer["type"], answer["error"]["type"]), (status, "error", kind), (path, answer))

    def test_too_large(self):
        status, headers, body = self.server.request("POST", COMPLETE, b"x" * (9 << 20))
        self.assertEqual((status, headers["Connection"]), (413, "close"))
        self.assertIn("larger than", json.loads(body)["error"]["message"])
        status, _, _ = self.server.request("GET", "/health", headers={"X-Big": "y" * 40000})
        self.assertEqual(status, 431)

    def test_special_tokens_in_messages_stay_text(self):
        plain = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "a"}]})[1]["tokens"]
        evil = self.server.post("/tokenize", {"messages": [{"role": "user", "content": "<|endoftext|>"}]})[1]["tokens"]
        self.assertNotIn(599, evil)
        self.assertNotIn(599, plain)

    def test_tokens(self):
        for text in ("Hello, wörld! \U0001f600", ""):
            tokens = self.server.post("/tokenize", {"prompt": text, "return_token_strs": True})[1]
            self.assertEqual(tokens["count"], len(tokens["tokens"]))
            self.assertEqual(len(tokens["token_strs"]), tokens["count"])
            self.assertEqual(self.server.post("/detokenize", {"tokens": tokens["tokens"]})[1]["prompt"], text)
        self.refused("/detokenize", {"tokens": [600]}, 400, "tokens")
        self.refused("/detokenize", {}, 400, "tokens", "tokens is missing")
        self.assertEqual(self.server.post("/detokenize", {"tokens": []}), (200, {"prompt": ""}))
        info = self.server.get("/tokenizer_info")[1]
        self.assertEqual(len(self.server.post("/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False})[1]["tokens"]), 1)
        self.assertIn("<|im_start|>", info["chat_template"])

    def test_openapi_is_the_routes(self):
        api = self.server.get("/openapi.json")[1]
        self.assertEqual(api["openapi"], "3.1.0")
        schema = api["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
        self.assertEqual(schema["properties"]["temperature"]["maximum"], 100)
        self.assertFalse(schema["additionalProperties"])
        self.assertNotIn("functions", schema["properties"])
        for path, methods in api["paths"].items():
            if "get" in methods and "{" not in path:
                self.assertEqual(self.server.request("GET", path)[0], 200, path)

    def test_the_page(self):
        status, headers, body = self.server.request("GET", "/")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertIn(b"<title>", body)
        for name in ("celer.js", "celer.css"):
            self.assertIn(name.encode(), body)
            self.assertEqual(self.server.request("GET", "/" + name)[0], 200)
        status, _, body = self.server.request("GET", "/", headers={"If-None-Match": headers["ETag"]})
        self.assertEqual((status, body), (304, b""))

    def test_what_routers_ask(self):
        self.assertEqual(self.server.get("/health"), (200, {"status": "ok"}))
        self.assertEqual(self.server.get("/health/live")[0], 200)
        self.assertEqual(self.server.get("/server_info")[1]["served_model_name"], "tiny")
        self.assertTrue(self.server.get("/get_model_info")[1]["is_generation"])
        self.assertRegex(self.server.get("/version")[1]["version"], r"\d+\.\d+\.\d+")
        self.assertEqual(self.server.get("/v1/models")[1]["data"][0]["max_model_len"], 2048)

    def test_metrics(self):
        before = self.server.metric("celer:generation_tokens_total")
        count = self.server.metric("celer:time_to_first_token_seconds_count")
        self.server.post(COMPLETE, {"prompt": "metrics", "max_tokens": 5, "ignore_eos": True})
        self.server.idle()
        self.assertEqual(self.server.metric("celer:generation_tokens_total"), before + 5)
        self.assertEqual(self.server.metric("celer:time_to_first_token_seconds_count"), count + 1)
        text = self.server.request("GET", "/metrics")[2].decode()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info",
                     "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total", "prompt_tokens_total",
                     "prompt_tokens_cached_total", "request_success_total", "spec_decode_num_drafts_total",
                     "request_prompt_tokens_bucket", "iteration_tokens_total_count", "inter_token_latency_seconds_sum",
                     "request_time_per_output_token_seconds_count", "e2e_request_latency_seconds_bucket",
                     "request_inference_time_seconds_sum", "gpu_cache_usage_perc", "gpu_prefix_cache_hit_rate",
                     "gpu_prefix_cache_hits_total", "bytes_per_second", "http_requests_total", "requests_preparing",
                     "request_body_bytes", "requests_rejected_total"):
            self.assertIn("\nceler:" + name + "{", text)
        self.assertRegex(text, r'cache_config_info\{[^}]*block_size="16",num_gpu_blocks="\d+"')


class ImpatientCase(ServerCase):
    """Short limits. What is not about them would fail here on a machine that stops for a moment."""
    flags = ["--max-unsent", "4096", "--header-timeout", "0.5", "--body-timeout", "0.7", "--idle-timeout", "1.5"]

    def test_a_slow_reader_is_let_go(self):
        slow = self.server.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        body = json.dumps({**LONG, "n": 8, "logprobs": 20}).encode()
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.server.until(r"reads too slowly", 120)
        self.server.idle()
        slow.close()

    def test_slow_senders(self):
        for data in (b"GET /health HT", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 100\r\n\r\n{"):
            with self.server.socket() as slow:
                slow.sendall(data)
                self.assertIn(b" 408 ", slow.recv(4096))
        with self.server.socket() as silent:
            self.assertEqual(silent.recv(1), b"")  # idle


class LifeCase(ServerCase):
    flags = ["--cors-origin", "https://page.example", "--max-queue", "2", "--log-format", "json"]

    def test_numbers_in_the_json_log_are_numbers(self):
        self.server.post("/v1/chat/completions", ASK)
        self.server.until(r'"answer_tokens"')
        lines = [json.loads(line) for line in self.server.log().splitlines() if '"answer_tokens"' in line]
        for name in ("status", "ms", "bytes", "prompt_tokens", "cached_tokens", "answer_tokens"):
            self.assertIsInstance(lines[0][name], (int, float), name)
        self.assertIsInstance(lines[0]["finish"], str)

    def test_a_client_that_leaves_cancels(self):
        body = {**LONG, "n": 16, "temperature": 1}
        for stream in (True, False):
            left = self.server.metric("celer:request_success_total")
            for _ in range(50):  # a very quick answer may come to its end before it is seen
                connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
                self.addCleanup(connection.close)
                connection.request("POST", COMPLETE, json.dumps({**body, "stream": stream}), JSON)
                seen = False
                while not seen and self.server.metric("celer:request_success_total") == left:
                    seen = self.server.get("/load")[1]["kv_blocks_used"] > 0
                connection.sock.close() if not stream else connection.getresponse().close()
                connection.close()
                self.server.idle()
                if seen:
                    break
                left = self.server.metric("celer:request_success_total")
            self.assertTrue(seen)
        self.server.until(r'"status": ?499')

    def test_keep_alive_and_pipelining(self):
        with self.server.socket() as one:
            body = json.dumps({**ASK}).encode()
            post = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            get = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
            one.sendall(post + get + post + get + get.replace(b"1.1\r\n", b"1.1\r\nConnection: close\r\n", 1))
            data = b""
            while part := one.recv(65536):
                data += part
        self.assertEqual(data.count(b"HTTP/1.1 200 OK"), 5)
        self.assertEqual(data.count(b'"chat.completion"'), 2)
        self.assertEqual(data.count(b'"version"'), 3)
        order = [data.find(b'"chat.completion"'), data.find(b'"version"')]
        self.assertLess(order[0], order[1])

    def test_http_1_0_head_and_expect(self):
        with self.server.socket() as old:
            old.sendall(b"GET /version HTTP/1.0\r\n\r\n")
            data = b""
            while part := old.recv(4096):
                data += part
            self.assertIn(b"Connection: close", data)
        status, headers, body = self.server.request("HEAD", "/version")
        self.assertEqual((status, body), (200, b""))
        self.assertGreater(int(headers["Content-Length"]), 0)
        with self.server.socket() as polite:
            body = json.dumps(ASK).encode()
            polite.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
                           % len(body))
            self.assertEqual(polite.recv(4096), b"HTTP/1.1 100 Continue\r\n\r\n")
            polite.sendall(body)
            self.assertIn(b"HTTP/1.1 200 OK", polite.recv(4096))

    def test_cors(self):
        _, headers, _ = self.server.request("GET", "/version", headers={"Origin": "https://page.example"})
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://page.example")
        _, headers, _ = self.server.request("GET", "/version", headers={"Origin": "https://evil.example"})
        self.assertNotIn("Access-Control-Allow-Origin", headers)
        plain = {"Origin": "https://page.example", "Content-Type": "text/plain"}
        self.assertEqual(self.server.request("POST", CHAT, ASK, plain)[0], 200)  # any type from a --cors-origin
        status, headers, _ = self.server.request("OPTIONS", CHAT, headers={"Origin": "https://page.example"})
        self.assertEqual(status, 204)
        self.assertIn("POST", headers["Access-Control-Allow-Methods"])

    def test_a_full_queue(self):
        def ask(statuses):
            status, headers, _ = self.server.request("POST", COMPLETE, {"prompt": "x" * 1800, "max_tokens": 1, "cache_salt": os.urandom(4).hex()})
            statuses.append((status, headers.get("Retry-After")))

        kinds = set()
        for _ in range(50):  # until they come close enough together
            statuses = []
            threads = [threading.Thread(target=ask, args=(statuses,)) for _ in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(len(statuses), 12)
            self.assertTrue(all(int(after) >= 1 for status, after in statuses if status == 429))
            kinds |= {status for status, _ in statuses}
            if kinds == {200, 429}:
                break
        self.assertEqual(kinds, {200, 429})
        self.server.idle()

    def test_a_deadline(self):
        status, answer = self.server.post(COMPLETE, {**LONG, "stream": False, "timeout": 0.05, "n": 4, "temperature": 1})
        self.assertIn(status, (200, 504))
        if status == 200:
            self.assertIn("deadline", {choice["stop_reason"] for choice in answer["choices"]})
        self.server.idle()


class StartAndEndCase(ServerCase):
    def test_loading_keys_and_prefix(self):
        keys = self.folder / "keys"
        keys.write_text("# keys\n  secret-1\t\n\nsecret-2\n")
        server = self.start("--api-key-file", keys, "--metrics-prefix", "vllm:")
        foreign = {"Host": "chat.example", "Origin": "https://evil.example", "Content-Type": "text/plain"}
        self.assertEqual(server.request("POST", CHAT, ASK, foreign)[0], 401)  # the key is all that is asked for
        self.assertEqual(server.request("POST", CHAT, ASK, {**foreign, "Authorization": "bearer secret-1"})[0], 200)
        for path in ("/v1/models", "/metrics", "/version", "/load", "/server_info", "/openapi.json", "/nothing"):
            self.assertEqual(server.request("GET", path)[0], 401, path)
        self.assertEqual(server.request("POST", CHAT, ASK)[0], 401)
        self.assertEqual(server.request("GET", "/health")[0], 200)
        for headers, status in (({"Authorization": "Bearer secret-1"}, 200), ({"x-api-key": "secret-2"}, 200),
                                ({"Authorization": "Bearer secret-"}, 401), ({"Authorization": "secret-1"}, 401),
                                ({"Authorization": "Bearer # keys"}, 401), ({"Authorization": "Bearer "}, 401)):
            self.assertEqual(server.request("POST", CHAT, ASK, headers)[0], status, headers)
        text = server.request("GET", "/metrics", headers={"x-api-key": "secret-1"})[2]
        self.assertIn(b"\nvllm:num_requests_running{", text)
        self.assertNotIn("secret", server.stop()[1])

    def test_tls(self):
        cert, key = self.folder / "cert.pem", self.folder / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                        "2", "-keyout", key, "-out", cert, "-subj", "/CN=127.0.0.1", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        server = self.start("--tls-cert", cert, "--tls-key", key)
        self.assertEqual(server.scheme, "https")
        context = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection(server.host, server.port, context=context, timeout=120)
        self.addCleanup(connection.close)
        for _ in range(3):
            connection.request("POST", CHAT, json.dumps({**ASK, "stream": True}), JSON)
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            self.assertTrue(response.read().endswith(b"data: [DONE]\n\n"))
        connection.close()
        with server.socket() as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertNotIn(b"200 OK", plain.recv(4096))
        self.assertEqual(server.stop()[0], 0)

    def test_drain(self):
        server = self.start("--drain-limit", "120")
        connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
        self.addCleanup(connection.close)
        connection.request("POST", COMPLETE, json.dumps({**LONG, "max_tokens": 400}), JSON)
        response = connection.getresponse()
        response.read(10)
        server.process.send_signal(signal.SIGTERM)
        status = 200
        try:  # it may end at any moment
            while server.process.poll() is None and status != 503:
                status = server.request("GET", "/health")[0]
            if status == 503:
                self.assertEqual(server.request("POST", CHAT, ASK)[0], 503)
        except (OSError, http.client.HTTPException):
            pass
        self.assertTrue(response.read().endswith(b"data: [DONE]\n\n"))  # the one that ran came to its end
        self.assertEqual(server.process.wait(120), 0)
        late = self.start("--drain-limit", "0.2")
        connection = http.client.HTTPConnection(late.host, late.port, timeout=60)
        self.addCleanup(connection.close)
        connection.request("POST", COMPLETE, json.dumps({**LONG, "n": 16, "temperature": 1}), JSON)
        response = connection.getresponse()
        response.read(10)
        late.process.send_signal(signal.SIGTERM)
        rest = response.read()
        self.assertIn(b'"code":"shutting_down"', rest)
        self.assertTrue(rest.endswith(b"data: [DONE]\n\n"))
        self.assertEqual(late.process.wait(120), 0)

    def test_names_of_the_server(self):
        server = self.start("--allowed-hosts", "Chat.example,b.example", "--cors", "*")
        for host, status in (("chat.example", 200), ("b.example:8000", 200), ("localhost", 200), ("evil.example", 403)):
            self.assertEqual(server.request("POST", CHAT, ASK, {"Host": host, "Origin": "https://any.example"})[0], status, host)
        server.stop()
        server = self.start("--allowed-hosts", "*")
        self.assertEqual(server.request("POST", CHAT, ASK, {"Host": "evil.example"})[0], 200)
        self.assertEqual(server.request("POST", CHAT, ASK, {"Host": "evil.example", "Origin": "https://page.example"})[0], 403)
        server.stop()
        server = self.start("--host", "0.0.0.0")
        self.assertIn("anyone who can reach 0.0.0.0 can use this server; set --api-key-file", server.log())
        self.assertEqual(server.request("POST", CHAT, ASK, {"Host": "gpu7.lan:8000"})[0], 200)
        self.assertEqual(server.request("POST", CHAT, ASK, {"Host": "gpu7.lan:8000", "Origin": "http://gpu8.lan"})[0], 403)
        server.stop()

    def test_bodies_in_flight(self):
        server = self.start("--max-body-memory", "8388608", "--body-timeout", "600")
        held = [server.socket() for _ in range(2)]
        head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 8000000\r\n\r\n"
        held[0].sendall(head % COMPLETE.encode() + b" " * 7_000_000)
        while server.get("/load")[1]["body_bytes"] < 7_000_000:
            time.sleep(0.01)
        held[1].sendall(head % b"/v1/messages")  # it would not fit any more
        answer = held[1].recv(4096)
        self.assertIn(b" 429 ", answer)
        self.assertIn(b"\r\nRetry-After: 1\r\n", answer)
        self.assertIn(b'{"type":"error","error":{"type":"rate_limit_error"', answer)
        self.assertEqual(server.post(CHAT, ASK)[0], 200)  # a small one does
        for one in held:
            one.close()
        while server.get("/load")[1]["body_bytes"] > 0:
            time.sleep(0.01)
        self.assertEqual(server.metric("celer:requests_rejected_total"), 1)
        server.stop()

    def test_lenient(self):
        server = self.start("--lenient")
        status, headers, _ = server.request("POST", CHAT, {**ASK, "no_such_thing": 1, "verbosity": "low"})
        self.assertEqual((status, headers["X-Celer-Ignored"]), (200, "no_such_thing, verbosity"))
        self.assertEqual(server.request("POST", CHAT, {**ASK, "temperature": -1})[0], 400)

    def test_it_cannot_start(self):
        taken = socket.socket()
        self.addCleanup(taken.close)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for flags, code, says in ((["--port", str(taken.getsockname()[1])], 2, "cannot listen on 127.0.0.1:"),
                                  (["--tls-cert", "x"], 2, "TLS needs both --tls-cert and --tls-key"),
                                  (["--api-key-file", "/nothing/here"], 2, "/nothing/here: no such file"),
                                  (["--port", "70000"], 2, "--port '70000': expected a whole number from 0 to 65535"),
                                  (["--allowed-hosts", "https://a.example"], 2, "--allowed-hosts 'https://a.example': expected a host name"),
                                  (["--cors-origin", "a.example"], 2, "--cors-origin 'a.example': expected the origin of a page"),
                                  (["--host", "no.such.host.invalid"], 2, "host 'no.such.host.invalid' is not an address")):
            result = subprocess.run([ServerCase.celer, "serve", self.model, "--device", "cpu", "--kv-memory", "32MiB", *flags],
                                    capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertIn(says, result.stderr)
        bad = self.folder / "bad.gguf"
        bad.write_bytes(b"GGUFxxxx")
        result = subprocess.run([ServerCase.celer, "serve", bad, "--port", "0"], capture_output=True, text=True, timeout=300)
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"error: [^\n]+bad.gguf[^\n]+\n\Z")


if __name__ == "__main__":
    ServerCase.celer = sys.argv.pop(1)
    unittest.main()
