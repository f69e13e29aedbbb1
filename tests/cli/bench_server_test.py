#!/usr/bin/env python3
"""celer bench --server against celer serve with a tiny model, and against servers that misbehave. Speeds are not judged.

usage: bench_server_test.py PATH_TO_CELER        (Python's standard library only)
"""
import http.server
import json
import os
import pathlib
import socketserver
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from bench_serve_test import azure, mooncake  # noqa: E402
from serving import ServerCase  # noqa: E402
from written_page import WrittenPage  # noqa: E402


def bench(*args, env=None):
    done = subprocess.run([ServerCase.celer, "bench", *map(str, args)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "COLUMNS": "200", **(env or {})})
    return done.returncode, done.stdout, done.stderr


def measure(*args, env=None):
    code, out, err = bench(*args, "--json", env=env)
    assert code == 0, (args, code, err, out)
    return json.loads(out)


class Load(ServerCase):
    """A real server."""

    def check(self, report, failed=0):
        result = report["result"]
        self.assertEqual(result["failed"], failed, result["errors"])
        self.assertEqual(result["done"] + result["failed"], report["trace"]["requests"])
        for name in ("ttft_s", "end_to_end_s"):
            p = result[name]
            self.assertTrue(0 < p["p50"] <= p["p90"] <= p["p99"] <= p["max"], (name, p))
        self.assertEqual(result["counted_by_server"], result["done"])
        self.assertLessEqual(result["pieces"], result["output_tokens"])  # a token may be invisible, or half a letter
        self.assertAlmostEqual(result["output_tokens_per_s"], result["output_tokens"] / result["seconds"])
        return result

    def test_closed_loop(self):
        args = ["--server", self.server.url, "--requests", 24, "--prompt-tokens", 40, "--output-tokens", 9, "--token-ids", 500]
        alone = self.check(measure(*args, "--concurrency", 1))
        company = self.check(measure(*args, "--concurrency", 8))
        self.assertEqual((alone["prompt_tokens"], alone["output_tokens"]), (24 * 40, 24 * 9))
        self.assertEqual((alone["most_open"], company["most_open"]), (1, 8))
        self.assertEqual(alone["text"], company["text"])

    def test_words_have_about_as_many_tokens_as_wanted(self):
        for api in ("completions", "chat"):
            report = measure("--server", self.server.url + "/v1/", "tiny", "--api", api, "--concurrency", 4, "--requests", 12,
                             "--prompt-tokens", 200, "--output-tokens", 4)
            result = self.check(report)
            self.assertEqual(report["server"]["model"], "tiny")
            self.assertAlmostEqual(result["prompt_tokens"] / 12, 200, delta=30)

    def test_traces(self):
        result = self.check(measure("--server", self.server.url, "--serve-trace", azure(), "--token-ids", 500))
        self.assertEqual(result["prompt_tokens"], sum(1 + i * 7 % 30 for i in range(12)))
        self.assertEqual(result["output_tokens"], sum(1 + i * 5 % 11 for i in range(12)))
        self.assertGreaterEqual(result["seconds"], 0.55)  # the last arrives then

    def test_shared_prefixes_are_found(self):
        report = measure("--server", self.server.url, "--serve-trace", mooncake(), "--rate-scale", 40, "--length-scale", 0.0625,
                         "--token-ids", 500, "--concurrency", 2)
        result = self.check(report)
        self.assertGreater(result["hit_rate"], 0.2)
        self.assertLessEqual(result["most_open"], 2)

    def test_random_arrivals_and_targets(self):
        report = measure("--server", self.server.url, "--serve-poisson", 100, "--requests", 10, "--prompt-tokens", 20,
                         "--output-tokens", 4, "--target-ttft", 1e6, "--target-itl", 1e6)
        self.assertEqual(self.check(report)["goodput"]["requests"], 10)

    def test_hundreds_of_streams(self):
        report = measure("--server", self.server.url, "--concurrency", 256, "--requests", 300, "--prompt-tokens", 8,
                         "--output-tokens", 16, "--token-ids", 500)
        self.assertEqual(self.check(report)["most_open"], 256)
        self.server.idle()

    def test_some_are_refused(self):
        """Those that do not fit are errors of their kind; the others are served."""
        lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        lines += [f"2023-11-16 18:17:03.{i},{5000 if i == 3 else 10},3" for i in range(6)]
        path = self.folder / "long.csv"
        path.write_text("\n".join(lines) + "\n")
        result = self.check(measure("--server", self.server.url, "--serve-trace", path, "--token-ids", 500), failed=1)
        self.assertEqual([(error["kind"], error["count"]) for error in result["errors"]], [("HTTP 400", 1)])
        self.assertIn("2048", result["errors"][0]["first"])

    def test_the_same_requests_for_a_batch(self):
        requests, answers = self.folder / "requests.jsonl", self.folder / "answers.jsonl"
        args = ["--concurrency", 4, "--requests", 6, "--prompt-tokens", 30, "--output-tokens", 7]
        result = self.check(measure("--server", self.server.url, *args, "--save-requests", requests))
        subprocess.run([ServerCase.celer, "batch", self.model, requests, "-o", answers, "--device", "cpu", "--threads", "1",
                        "--kv-memory", "32MiB"], check=True, capture_output=True, timeout=120)
        usage = [json.loads(line)["response"]["body"]["usage"] for line in answers.read_text().splitlines()]
        self.assertEqual(sum(u["prompt_tokens"] for u in usage), result["prompt_tokens"])
        self.assertEqual(sum(u["completion_tokens"] for u in usage), result["output_tokens"])

    def test_text_and_page(self):
        page_file = self.folder / "load.html"
        code, out, err = bench("--server", self.server.url, "--concurrency", 2, "--requests", 4, "--prompt-tokens", 10,
                               "--output-tokens", 5, "--html", page_file, "--target-itl", 1e6)
        self.assertEqual(code, 0, err)
        for text in ("first token (TTFT)", "TPOT", "goodput", "counted by the server", "2 at once", "hits"):
            self.assertIn(text, out)
        self.assertEqual(len(WrittenPage(page_file).pictures), 3)

    def test_keys_and_tls(self):
        cert, key, keys = (self.folder / name for name in ("cert.pem", "key.pem", "keys"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                        "2", "-keyout", key, "-out", cert, "-subj", "/CN=127.0.0.1", "-addext",
                        "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        keys.write_text("secret-1\n")
        server = self.start("--tls-cert", cert, "--tls-key", key, "--api-key-file", keys)
        args = ["--server", server.url, "--concurrency", 3, "--requests", 6, "--prompt-tokens", 10, "--output-tokens", 5]
        self.check(measure(*args, "--api-key", "secret-1", "--insecure"))
        self.check(measure(*args, "--api-key", "secret-1", env={"SSL_CERT_FILE": str(cert)}))
        code, _, err = bench(*args, "--api-key", "secret-1")
        self.assertEqual(code, 2)
        self.assertIn("certificate verify failed", err)
        code, _, err = bench(*args, "--insecure")
        self.assertEqual(code, 2)
        self.assertIn("HTTP 401", err)

    def test_sentences(self):
        url = ["--server", self.server.url]
        for args, code, says in (
                (url, 2, "--server needs a load"),
                ([*url, "--concurrency", 0], 2, "--concurrency"),
                ([*url, "--concurrency", 1, "--threads", 2], 2, "--threads has no effect with --server"),
                ([*url, "--concurrency", 1, "--simulate", "h200"], 2, "--simulate has no effect with --server"),
                ([*url, "--concurrency", 1, "--api", "chat", "--token-ids", 5], 2, "a chat has messages"),
                ([*url, "--concurrency", 1, "--body", "[]"], 2, "expected a JSON object"),
                ([*url, "--concurrency", 1, "--rate-scale", 2], 2, "--rate-scale has no effect without"),
                ([*url, "--concurrency", 1, "--insecure"], 2, "without https://"),
                (["--server", "localhost:1", "--concurrency", 1], 2, "neither http:// nor https://"),
                (["--server", "http://127.0.0.1:1", "--concurrency", 1], 2, "connect: Connection refused"),
                ([self.model, "--concurrency", 1], 2, "--concurrency needs --server URL"),
                ([*url, "no-such-model", "--concurrency", 1], 2, "HTTP 404"),
                ([*url, "--concurrency", 1, "--body", '{"no_such": 1}'], 2, "no_such")):
            got, out, err = bench(*args)
            self.assertEqual((got, out), (code, ""), (args, err))
            self.assertIn(says, err)
            self.assertEqual(len(err.strip().splitlines()), 1, err)


class Rude(http.server.BaseHTTPRequestHandler):
    """Answers each stream in the way that `turns` names: well, or wrong."""
    protocol_version = "HTTP/1.1"
    turns = []

    def log_message(self, *args):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not body.get("stream"):
            return self.answer(200, {"choices": [{"text": "x"}], "usage": {"prompt_tokens": 9}})
        turn = self.turns.pop(0)
        if turn == "busy":
            return self.answer(429, {"error": {"message": "come back later"}})
        if turn == "whole":
            return self.answer(200, {"choices": []})
        if turn == "hang up":
            self.close_connection = True
            return None
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.piece(b": hello\n\n")
        for text in ("a", "b"):
            if turn == "slow":
                time.sleep(1)
            self.piece(b"data: " + json.dumps({"choices": [{"text": text, "finish_reason": None}]}).encode() + b"\n\n")
        if turn == "error":
            self.piece(b'data: {"error": {"message": "it broke"}}\n\n')
        if turn == "nonsense":
            self.piece(b"data: <html>\n\n")
        if turn == "cut":
            self.close_connection = True
            return None
        if turn in ("good", "slow", "good and close"):
            self.piece(b'data: {"choices": [{"text": "c", "finish_reason": "length"}]}\n\n')
        if turn != "unfinished":
            self.piece(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        # Without a word: the client may try to use the connection again.
        self.close_connection = turn == "good and close"
        return None

    def piece(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class ThreadingServer(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


class Misbehaving(unittest.TestCase):
    def play(self, turns):
        server = ThreadingServer(("127.0.0.1", 0), type("Handler", (Rude,), {"turns": list(turns)}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        code, out, err = bench("--server", f"http://127.0.0.1:{server.server_port}", "model", "--concurrency", 1, "--requests",
                               len(turns), "--prompt-tokens", 20, "--output-tokens", 3, "--json")
        self.assertTrue(out, err)
        return code, json.loads(out)["result"]

    def test_errors_by_kind(self):
        code, result = self.play(["good", "busy", "whole", "error", "nonsense", "cut", "unfinished", "busy", "good"])
        self.assertEqual(code, 0)
        self.assertEqual((result["done"], result["failed"]), (2, 7))
        kinds = {error["kind"]: error["count"] for error in result["errors"]}
        self.assertEqual(kinds, {"HTTP 429": 2, "no stream": 1, "in the stream": 2, "broken": 1, "cut off": 1})
        first = {error["kind"]: error["first"] for error in result["errors"]}
        self.assertEqual(first["HTTP 429"], "come back later")
        self.assertEqual(first["in the stream"], "it broke")
        # Nobody counted the tokens: each piece is one.
        self.assertEqual((result["output_tokens"], result["counted_by_server"]), (6, 0))

    def test_pieces_are_seen_when_they_come(self):
        result = self.play(["slow"])[1]
        self.assertEqual(result["done"], 1)
        self.assertGreater(result["inter_token_s"]["max"], 0)  # not all together at the end

    def test_a_connection_that_was_closed_is_opened_again(self):
        code, result = self.play(["good and close", "good and close", "good"])
        self.assertEqual((code, result["done"], result["errors"]), (0, 3, []))

    def test_nothing_done_is_a_failure(self):
        code, result = self.play(["hang up", "busy"])
        self.assertEqual((code, result["done"]), (1, 0))
        self.assertEqual({error["kind"]: error["count"] for error in result["errors"]}, {"broken": 1, "HTTP 429": 1})


if __name__ == "__main__":
    ServerCase.celer = sys.argv.pop(1)
    unittest.main()
