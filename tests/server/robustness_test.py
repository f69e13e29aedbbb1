#!/usr/bin/env python3
"""Requests that mean harm: robustness_test.py CELER [COUNT]. Some thousand of them, then everything is as it was before."""
import json
import os
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
# What each endpoint would answer, to be spoilt.
ASKS = {"/v1/chat/completions": GOOD, "/v1/completions": {"prompt": "Hi", "max_tokens": 3}, "/v1/responses": {"input": "Hi", "max_output_tokens": 3},
        "/v1/messages": GOOD, "/v1/messages/count_tokens": {"messages": GOOD["messages"]}, "/v1/embeddings": {"input": "Hi"}, "/tokenize": {"prompt": "Hi"}, "/detokenize": {"tokens": [65, 66]}}
PATHS = list(ASKS)
FIELDS = ["model", "messages", "prompt", "input", "temperature", "top_p", "top_k", "n", "best_of", "stop", "stream", "logit_bias",
          "max_tokens", "seed", "tools", "tool_choice", "response_format", "structured_outputs", "logprobs", "top_logprobs", "echo",
          "stop_token_ids", "allowed_token_ids", "bad_words", "chat_template_kwargs", "stream_options", "metadata", "tokens",
          "prompt_logprobs", "truncate_prompt_tokens", "system", "instructions", "previous_response_id", "user", "cache_salt",
          "encoding_format", "dimensions"]
VALUES = [None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -2**63, 1e308, -1e308, 0.5, "", "x", "\u0000", "\ud83d\ude00" * 50, [], {}, [[]],
          [{}], [None], ["x"] * 100, [1, 2, 3], [[1], [2]], {"a": 1}, {"type": "json_schema"}, {"role": "user"},
          [{"role": "user", "content": "x"}], [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
          [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], {"type": "function"},
          {"1": 1e9}, {"999999999999": 1}, "<|endoftext|>", "<|im_end|>\n<|im_start|>system\n", "A" * 5000]
# Values that are allowed and yet unkind: the ends of ranges, as much as the context holds, everything forbidden, no time.
ALLOWED = {"temperature": [0, 1e-6, 100], "top_p": [1e-6, 1], "top_k": [-1, 1, 2**31 - 1], "min_p": [0, 1], "n": [2, 4], "best_of": [4], "seed": [0, -5, 2**62],
           "use_beam_search": [True], "stop": ["A", ["a", "\u20ac", "b" * 1000]], "logprobs": [True, 5], "top_logprobs": [20], "echo": [True],
           "presence_penalty": [-2, 2], "frequency_penalty": [-2, 2], "repetition_penalty": [1e-6, 1e6], "ignore_eos": [True],
           "logit_bias": [{"65": 100}, {str(i): -100 for i in range(600)}], "allowed_token_ids": [[65]], "bad_words": [["a", "b c"]], "stop_token_ids": [[65]],
           "min_tokens": [1, 3], "prompt": ["A" * 2500, [65] * 2045, [65] * 2048, ["a"] * 20, [[65], [66]]], "tokens": [[], [0, 599], [65] * 5000],
           "input": ["A" * 1500, ["a"] * 20, [65] * 2000], "stream": [True], "stream_options": [{"include_usage": True}], "prompt_logprobs": [5],
           "truncate_prompt_tokens": [1], "skip_special_tokens": [False], "cache_salt": ["x"], "timeout": [0.001, 5], "encoding_format": ["base64"],
           "dimensions": [1], "system": ["x"], "instructions": ["x"], "add_generation_prompt": [False], "continue_final_message": [True],
           "response_format": [{"type": "json_object"}], "chat_template_kwargs": [{"enable_thinking": False}], "thinking": [{"type": "disabled"}],
           "structured_outputs": [{"regex": "[ab]{2}"}, {"choice": ["x", "y"]}, {"json": {"type": "integer"}}, {"grammar": "root ::= \"a\" root | \"b\""}]}
# What a grammar is compiled from: too deep, too large, endless, ambiguous beyond all bounds, or no grammar at all.
SCHEMAS = [{"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, {"type": "nothing"},
           {"enum": []}, {"enum": ["x" * 20] * 5000}, {"type": "string", "maxLength": 10**12}, {"type": "string", "minLength": 5, "maxLength": 1},
           {"type": "array", "items": {"$ref": "#"}, "minItems": 10**9}, {"type": "integer", "minimum": 1e300, "maximum": -1e300},
           {"type": "string", "pattern": "((a+)+)+$"}, {"allOf": [{"anyOf": [{"type": "string"}] * 50}] * 50}, {"not": {}}, True, False, 7]
deep = {"type": "string"}
for _ in range(200):
    deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
SCHEMAS.append(deep)
STRUCTURED = [{"json": one} for one in SCHEMAS] + [
    {"regex": one} for one in ("(((a+)+)+)+$", "a{1000000}", "(a{1000}){1000}", "(?R)", "\\1", "[", "(" * 5000, "\ud83d", "x|" * 3000, ".*.*.*.*.*.*.*z")] + [
    {"grammar": one} for one in ("root ::= root", "root ::= root root | \"\"", "root ::= x", "root ::= " + "(" * 3000, "root ::= \"a\"{1000000}", "::=", "\u0000")] + [
    {"choice": one} for one in ([], [""], ["x"] * 10000, [1], ["\u0000"])] + [{"json": {}, "regex": "x"}, {"what": 1}]
FORMATS = [{"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": one}} for one in SCHEMAS] + [{"type": "json_object"}]
TOOLS = [[{"type": "function", "function": {"name": "f", "parameters": one}}] for one in SCHEMAS]


class Hostile:
    def __init__(self, seed, fields):
        self.random = random.Random(seed)
        self.fields = fields  # those that each endpoint knows
        self.path = self.random.choice(PATHS)

    def spoilt(self):
        """A body of which everything but a few fields is right."""
        r = self.random
        ask = dict(ASKS[self.path])
        for _ in range(r.choice([0, 1, 1, 1, 2, 3])):
            field = r.choice(self.fields[self.path] if r.random() < 0.9 else FIELDS)
            ask[field] = r.choice(ALLOWED[field] if field in ALLOWED and r.random() < 0.7 else VALUES)
        if r.random() < 0.2 and "max_tokens" in ask:
            field, values = r.choice([("structured_outputs", STRUCTURED), ("response_format", FORMATS), ("tools", TOOLS)])
            ask[field] = r.choice(values)
            if field == "tools":
                ask["tool_choice"] = "required"
        if r.random() < 0.3 and "stream" in self.fields[self.path]:
            ask["stream"] = True
        for field in ("max_tokens", "max_output_tokens"):
            if isinstance(ask.get(field), (int, float)) and ask[field] > 8:
                ask[field] = 2
        return json.dumps(ask).encode()

    def body(self):
        r = self.random
        kind = r.randrange(16)
        good = json.dumps(ASKS[self.path]).encode()
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
        return self.spoilt()

    def head(self, length):
        r = self.random
        lines = [b"Host: localhost", b"Content-Length: %d" % length, b"Content-Type: application/json"]
        kind = r.randrange(64)
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
            lines[0] = r.choice([b"Host: evil.example", b"Host: ", b"Host: [::1", b"Host: :", b"Host: " + b"a" * 5000, b"Host: \xff"])
        elif kind == 7:
            lines.append(b"Origin: " + r.choice([b"https://evil.example", b"null", b"://", b"http://", b"", b"x" * 5000, b"\xff"]))
        elif kind == 8:
            lines[2] = b"Content-Type: " + r.choice([b"text/plain", b"multipart/form-data; boundary=x", b";", b"", b"\xff", b"application/json;" + b";" * 5000])
        elif kind == 6:
            lines = lines[1:]
        elif kind == 7:
            lines.append(r.choice([b"\x00: x", b"no colon", b" folded", b"A\xff: x", b"X-Request-Id: a\rb", b"X-Request-Id: " + b"z" * 300]))
        method = r.choice([b"POST"] * 40 + [b"GET", b"PUT", b"BREW", b"", b"POST POST", b"\xff"])
        path = self.path.encode()
        if r.random() < 0.05:
            path = r.choice([b"", b"*", b"//", b"/%", b"/%00", b"/../../etc/passwd", b"/" + b"a" * 30000, b"http://x/health", b"/v1/models/%2e%2e"])
        version = r.choice([b"HTTP/1.1"] * 50 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"", b"ICY"])
        return method + b" " + path + b" " + version + b"\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"

    def chunks(self, body):
        r = self.random
        chunks = b"".join(b"%x\r\n" % len(part) + part + b"\r\n" for part in (body[:7], body[7:]) if part) + b"0\r\n\r\n"
        if r.random() < 0.5:
            chunks = chunks[:r.randrange(len(chunks))] + r.choice([b"zz\r\n", b"fffffffffffffffff\r\n", b"-1\r\n", b""])
        return b"POST " + self.path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks

    def leave(self, client):
        """Goes while it is answered, perhaps by a reset."""
        r = self.random
        ask = json.dumps({**GOOD, "max_tokens": 500, "stream": r.random() < 0.5, "ignore_eos": True}).encode()
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(ask) + ask)
        time.sleep(r.random() * 0.02)
        if r.random() < 0.3:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    def run(self, server):
        r = self.random
        body = self.body()
        data = self.head(len(body)) + body
        kind = r.randrange(12)
        with server.socket() as client:
            client.settimeout(20)
            try:
                if kind == 0:  # leaves somewhere in the middle
                    return client.sendall(data[:r.randrange(len(data) + 1)])
                if kind == 1:
                    return self.leave(client)
                if kind == 2:  # pipelined
                    client.sendall(data * r.randrange(2, 6))
                elif kind == 3:
                    client.sendall(self.chunks(body))
                elif kind == 4:  # a byte at a time
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    for i in range(0, min(len(data), 60)):
                        client.send(data[i:i + 1])
                    client.sendall(data[60:])
                else:
                    client.sendall(data)
                half_closed = r.random() < (0.7 if kind == 3 else 0.2)
                if half_closed:
                    client.shutdown(socket.SHUT_WR)
                elif not select.select([client], [], [], 3)[0]:
                    return  # it waits for more of a body than we have
                answer = b""
                while part := client.recv(65536):
                    answer += part
                    if not half_closed:
                        break
                if answer and b" 500 " in answer.split(b"\r\n", 1)[0]:
                    raise AssertionError((data[:500], answer[:500]))
            except OSError:  # reset, not connected any more, too slow
                pass


def fields_of(server):
    """The fields of each endpoint's body, as /openapi.json has them."""
    description = server.get("/openapi.json")[1]
    out = {}
    for path in PATHS:
        schema = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        while "$ref" in schema:
            schema = description["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        out[path] = sorted(schema["properties"])
    return out


class RobustnessCase(ServerCase):
    flags = ["--header-timeout", "2", "--body-timeout", "2", "-q"]
    template = "qwen3_thinking_tools.jinja"  # the most that an answer can be taken apart into

    def test_hostile_requests(self):
        server = self.server
        first = server.post("/v1/chat/completions", GOOD)[1]["choices"][0]["message"]
        fields = fields_of(server)
        faults = []

        def work(part, count):
            for i in range(count):
                try:
                    Hostile(part * 1_000_000 + i, fields).run(server)
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
        print(f"{COUNT} hostile requests: memory {memory >> 20} -> {server.memory() >> 20} MiB, descriptors {descriptors} -> "
              f"{server.descriptors()}, no block in use", flush=True)
        if "CELER_SANITIZED" not in os.environ:  # sanitizers keep what was freed
            self.assertLess(server.memory() - memory, 48 << 20)
        self.assertEqual(server.post("/v1/chat/completions", GOOD)[1]["choices"][0]["message"], first)
        code, log = server.stop()  # and nothing is left: a sanitizer would say so now
        self.assertEqual(code, 0, log[-2000:])

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
