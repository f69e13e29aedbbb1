#!/usr/bin/env python3
"""Requests that mean harm: robustness_test.py CELER [COUNT]. Some thousand of them, then everything is as it was before."""
import json
import random
import select
import socket
import sys
import threading
import time
import unittest

from serving import ServerCase

COUNT = 3000
GOOD = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "temperature": 0}
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"]
FIELDS = ["model", "messages", "prompt", "input", "temperature", "top_p", "top_k", "n", "best_of", "stop", "stream", "logit_bias",
          "max_tokens", "seed", "tools", "tool_choice", "response_format", "structured_outputs", "logprobs", "top_logprobs", "echo",
          "stop_token_ids", "allowed_token_ids", "bad_words", "chat_template_kwargs", "stream_options", "metadata", "tokens",
          "prompt_logprobs", "truncate_prompt_tokens", "system", "instructions", "previous_response_id", "user", "cache_salt"]
VALUES = [None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -2**63, 1e308, -1e308, 0.5, "", "x", "\u0000", "\ud83d\ude00" * 50, [], {}, [[]],
          [{}], [None], ["x"] * 100, [1, 2, 3], [[1], [2]], {"a": 1}, {"type": "json_schema"}, {"role": "user"},
          [{"role": "user", "content": "x"}], [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
          [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], {"type": "function"},
          {"1": 1e9}, {"999999999999": 1}, "<|endoftext|>", "<|im_end|>\n<|im_start|>system\n", "A" * 5000]


class Hostile:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def body(self):
        r = self.random
        kind = r.randrange(10)
        good = json.dumps({**GOOD, "max_tokens": r.randrange(1, 4)}).encode()
        if kind == 0:
            return good[:r.randrange(len(good))]
        if kind == 1:
            return bytes(r.randrange(256) for _ in range(r.randrange(200)))
        if kind == 2:
            data = bytearray(good)
            for _ in range(r.randrange(1, 5)):
                data[r.randrange(len(data))] = r.randrange(256)
            return bytes(data)
        if kind == 3:
            return r.choice([b"[", b'{"a":', b'{"messages":[{"content":[']) * r.choice([10, 70, 5000])
        if kind == 4:
            return r.choice([b'{"temperature":NaN}', b'{"temperature":1e999}', b'{"n":1' + b"0" * 400 + b"}", b'{"prompt":"\xc3\x28"}',
                             b'{"prompt":"\\ud800"}', b"\xef\xbb\xbf{}", b'{"prompt":"x"}{"prompt":"y"}', b"\x00" * 50])
        ask = {"max_tokens": 2} if r.random() < 0.5 else dict(GOOD)
        for _ in range(r.randrange(0, 4)):
            ask[r.choice(FIELDS)] = r.choice(VALUES)
        if not isinstance(ask.get("max_tokens"), int) or ask["max_tokens"] > 8:
            ask["max_tokens"] = 2
        return json.dumps(ask).encode()

    def head(self, length):
        r = self.random
        lines = [b"Host: x", b"Content-Length: %d" % length]
        kind = r.randrange(32)
        if kind == 0:
            lines.append(b"Transfer-Encoding: chunked")  # two lengths: smuggling
        elif kind == 1:
            lines.append(b"Content-Length: %d" % (length + 1))
        elif kind == 2:
            lines[1] = b"Transfer-Encoding: xchunked"
        elif kind == 3:
            lines.append(b"X: " + b"y" * r.choice([100, 20000, 40000]))
        elif kind == 4:
            lines[1] = r.choice([b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: 0x10", b"Content-Length : 5",
                                 b"Transfer-Encoding: chunked, chunked", b"Content-Length: 5, 5"])
        elif kind == 5:
            lines.append(b"Host: y")
        elif kind == 6:
            lines = lines[1:]
        elif kind == 7:
            lines.append(r.choice([b"\x00: x", b"no colon", b" folded", b"A\xff: x", b"X-Request-Id: a\rb", b"X-Request-Id: " + b"z" * 300]))
        method = r.choice([b"POST"] * 40 + [b"GET", b"PUT", b"BREW", b"", b"POST POST", b"\xff"])
        path = r.choice(PATHS).encode()
        if r.random() < 0.1:
            path = r.choice([b"", b"*", b"//", b"/%", b"/%00", b"/../../etc/passwd", b"/" + b"a" * 30000, b"http://x/health", b"/v1/models/%2e%2e"])
        version = r.choice([b"HTTP/1.1"] * 50 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"", b"ICY"])
        return method + b" " + path + b" " + version + b"\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"

    def run(self, server):
        r = self.random
        body = self.body()
        data = self.head(len(body)) + body
        kind = r.randrange(12)
        with server.socket() as client:
            client.settimeout(20)
            try:
                if kind == 0:  # leaves somewhere in the middle
                    client.sendall(data[:r.randrange(len(data) + 1)])
                    return
                if kind == 1:  # leaves while it is answered
                    ask = json.dumps({**GOOD, "max_tokens": 500, "stream": r.random() < 0.5, "ignore_eos": True}).encode()
                    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(ask) + ask)
                    time.sleep(r.random() * 0.02)
                    if r.random() < 0.3:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # by a reset
                    return
                if kind == 2:  # half-closed
                    client.sendall(data)
                    client.shutdown(socket.SHUT_WR)
                elif kind == 3:  # pipelined
                    client.sendall(data * r.randrange(2, 6))
                    client.shutdown(socket.SHUT_WR)
                elif kind == 4:  # in chunks, perhaps broken ones
                    chunks = b"".join(b"%x\r\n" % len(part) + part + b"\r\n" for part in (body[:7], body[7:]) if part) + b"0\r\n\r\n"
                    if r.random() < 0.5:
                        chunks = chunks[:r.randrange(len(chunks))] + r.choice([b"zz\r\n", b"fffffffffffffffff\r\n", b"-1\r\n", b""])
                    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks)
                    client.shutdown(socket.SHUT_WR)
                elif kind == 5:  # a byte at a time
                    for i in range(0, min(len(data), 60)):
                        client.send(data[i:i + 1])
                    client.shutdown(socket.SHUT_WR)
                else:
                    client.sendall(data)
                    if not select.select([client], [], [], 3)[0]:
                        return  # it waits for more of a body than we have
                answer = b""
                while part := client.recv(65536):
                    answer += part
                    if kind > 5:
                        break
                if answer and b" 500 " in answer.split(b"\r\n", 1)[0]:
                    raise AssertionError((data[:500], answer[:500]))
            except (ConnectionError, socket.timeout, BrokenPipeError):
                pass


class RobustnessCase(ServerCase):
    flags = ["--header-timeout", "2", "--body-timeout", "2", "-q"]

    def test_hostile_requests(self):
        server = self.server
        first = server.post("/v1/chat/completions", GOOD)[1]["choices"][0]["message"]
        faults = []

        def work(part, count):
            for i in range(count):
                try:
                    Hostile(part * 1_000_000 + i).run(server)
                except AssertionError as fault:
                    faults.append(fault)

        def wave(base, count):
            threads = [threading.Thread(target=work, args=(base + part, count // 8)) for part in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        wave(0, 400)  # what allocators keep after the first wave is theirs
        server.idle()
        time.sleep(2.5)  # those that were left open time out
        descriptors, memory = server.descriptors(), server.memory()
        wave(100, COUNT)
        self.assertEqual(faults, [])
        server.idle()
        end = time.monotonic() + 60
        while server.descriptors() > descriptors + 2 and time.monotonic() < end:
            time.sleep(0.1)
        self.assertIsNone(server.process.poll(), server.log()[-2000:])
        self.assertLessEqual(server.descriptors(), descriptors + 2)
        self.assertLess(server.memory() - memory, 48 << 20)
        self.assertEqual(server.post("/v1/chat/completions", GOOD)[1]["choices"][0]["message"], first)

    def test_slowloris(self):
        """As many as may connect do nothing; the others are told to wait, and when time is over all is well again."""
        server = self.start("--max-connections", "40", "--header-timeout", "1", "--idle-timeout", "1", "-q")
        open_ones = [server.socket() for _ in range(60)]
        for one in open_ones:
            try:
                one.sendall(b"GET /health HT")
            except OSError:
                pass
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                if server.get("/health")[0] == 200:
                    break
            except (OSError, ValueError):
                time.sleep(0.1)
        else:
            self.fail("the server did not come back")
        for one in open_ones:
            one.close()


if __name__ == "__main__":
    ServerCase.celer = sys.argv.pop(1)
    if len(sys.argv) > 1 and sys.argv[1].isdigit():
        COUNT = int(sys.argv.pop(1))
    unittest.main()
