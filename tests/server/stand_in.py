#!/usr/bin/env python3
"""Speaks the part of the server's API that the page uses, with scripted answers: stand_in.py [--port 8000].

The last message of a chat picks the answer: its first word is looked up in ANSWERS; every other message is repeated.
Words of an answer come one by one, as tokens do. Python's standard library only.
"""
import argparse
import collections
import http.server
import json
import pathlib
import random
import re
import socket
import threading
import time

PAGE = pathlib.Path(__file__).resolve().parents[2] / "src" / "server" / "page"
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}

MARKDOWN = '''Decoding reads **every weight once per token**, so at batch one the speed is bound by memory: see `celer limits`.

| format | bytes per weight | tok/s | of the limit |
|:--|--:|--:|--:|
| bf16 | 2 | 273 | 93 % |
| int8 | 1.06 | 522 | 89 % |
| int4 | 0.56 | 777 | 75 % |

1. Read the weights, one layer after the other:
   - the next layer's are *already loading*,
   - 32 KB in flight per SM.
2. Append to the paged KV cache.

```cpp
// Grid: one block per row; the second read of a row hits the cache.
template <typename T>
Result<float> RmsNorm(std::span<const T> row, float eps = 1e-5f) {
  float sum = 0;
  for (const T x : row) sum += float(x) * float(x);
  return 1.0f / std::sqrt(sum / row.size() + eps);  /* never zero */
}
```

```python
def limit(bytes_per_token: int, bandwidth: float = 4.39e12) -> float:
    """Tokens per second that memory allows."""
    return bandwidth / bytes_per_token
```

> A number without its limit is not a result.

More at <https://example.org/limits> or in [the paper](https://example.org/paper "Roofline").'''

HOSTILE = '''<script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2"> <b>bold?</b>
<svg onload="window.hacked = 3"><a xlink:href="javascript:window.hacked=4">x</a></svg>

[click me](javascript:window.hacked=5) [data](data:text/html,<script>window.hacked=6</script>) ![pic](https://example.org/x.png)
[ok](https://example.org/a?b=c&d="><script>window.hacked=7</script>) <javascript:window.hacked=8> [vb](vbscript:x) [rel](//example.org)

| <iframe srcdoc="<script>window.hacked=9</script>"></iframe> | `<b>code</b>` |
|---|---|
| <style>body { display: none }</style> | <form action="https://example.org"><button>go</button></form> |

```html"><script>window.hacked=10</script>
</code></pre><script>window.hacked=11</script>
```

&lt;script&gt;window.hacked=12&lt;/script&gt; <meta http-equiv="refresh" content="0;url=https://example.org">
<base href="https://example.org/">
''' + "\n\n".join(["> " * 300 + "deep", "- " * 300 + "deeper", "[" * 3000 + "*" * 2999 + "_" * 2999 + "`" * 2000, "*a _b " * 1000,
                   "the end of it"])

ANSWERS = {
    "markdown": MARKDOWN,
    "hostile": HOSTILE,
    "long": " ".join(f"{n}" + ("\n\n" if n % 25 == 0 else "") for n in range(1, 3001)),
    "broken": "This answer is cut off in the middle",
    "refused": "This answer ends with an error frame",
    "code": "```cpp\n" + "\n".join(f"int line_{n}() {{ return {n}; }}" for n in range(400)) + "\n```\n\ndone",
    "think": "The answer is 42.",
}
THOUGHTS = {"think": "The question is **old**. First I look at what is known, then I add the parts: 19 + 23."}


def policy():
    """The page's Content-Security-Policy, from the header that the server takes it from."""
    text = (PAGE / "page.h").read_text()
    literals = re.search(r"kPageSecurityPolicy =((?:\s*\"[^\"]*\")+)", text).group(1)
    return "".join(re.findall(r'"([^"]*)"', literals))


class StandIn(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port=0, speed=200.0, api_key=None):
        super().__init__(("127.0.0.1", port), Handler)
        self.speed = speed          # tokens per second of one stream
        self.api_key = api_key
        self.names = ["smollm2-135m-instruct"]
        self.card = {"object": "model", "created": 0, "owned_by": "celer", "max_model_len": 8192}
        self.failures = []          # statuses for the next requests for an answer, first one first
        self.bodies = []            # of the requests for an answer
        self.cancelled = 0          # streams whose client disconnected
        self.count = collections.Counter()
        self.seen = set()           # messages that are in the prefix cache
        self.lock = threading.Lock()
        self.connections = set()
        self.url = f"http://127.0.0.1:{self.server_port}/"

    def start(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self):
        """As a process that ends: the port and every connection close."""
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # its client was quicker

    def add(self, **counts):
        with self.lock:
            self.count.update(counts)

    def metrics(self):
        c, busy = self.count, min(1, self.count["running"])
        rows = {
            "num_requests_running": c["running"], "num_requests_waiting": max(0, c["running"] - 8),
            "kv_cache_usage_perc": min(1, 0.04 + c["live_tokens"] / 4000), "prefix_cache_queries_total": c["prompt"],
            "prefix_cache_hits_total": c["cached"], "generation_tokens_total": c["generated"], "prompt_tokens_total": c["prompt"],
            "time_to_first_token_seconds_sum": c["first_us"] / 1e6, "time_to_first_token_seconds_count": c["first"],
            "limit_ratio": busy * random.uniform(0.84, 0.92),
        }
        text = ["# HELP celer:num_requests_running Requests in the batch.", "# TYPE celer:num_requests_running gauge"]
        text += [f'celer:time_to_first_token_seconds_bucket{{model_name="stand-in",le="{le}"}} {c["first"]}' for le in ("0.1", "+Inf")]
        return "\n".join(text + [f'celer:{name}{{model_name="stand-in"}} {value}' for name, value in rows.items()]) + "\n"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self):
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, *_):
        pass

    def reply(self, status, body, content_type="application/json", **headers):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": content_type, "Content-Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(data)

    def error(self, status, message, **headers):
        self.reply(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": status}}, **headers)

    def allowed(self):
        if self.server.api_key is None or self.headers.get("Authorization") == f"Bearer {self.server.api_key}":
            return True
        self.error(401, "the API key is missing or wrong")
        return False

    def do_GET(self):
        path = self.path.split("?")[0]
        file = PAGE / (path[1:] or "index.html")
        if file.parent == PAGE and file.suffix in TYPES and file.is_file():
            return self.reply(200, file.read_text(), TYPES[file.suffix], Content_Security_Policy=policy(),
                              X_Content_Type_Options="nosniff", Cache_Control="no-cache")
        if not self.allowed():
            return None
        if path == "/v1/models":
            return self.reply(200, {"object": "list", "data": [{"id": name, **self.server.card} for name in self.server.names]})
        if path == "/model_info":
            return self.reply(200, {"architecture": "llama", "parameters": 134515008, "bytes_by_format": {"f32": 140_000, "q8_0": 143_000_000}})
        if path == "/server_info":
            return self.reply(200, {"device": "2 × Neoverse-V1", "default_sampling": {"temperature": 0.7, "top_p": 1}})
        if path == "/version":
            return self.reply(200, {"version": "0.1.0"})
        if path == "/metrics":
            return self.reply(200, self.server.metrics(), "text/plain; version=0.0.4")
        return self.error(404, f"there is no {path}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            return self.error(404, f"there is no {self.path}")
        if not self.allowed():
            return None
        self.server.bodies.append(body)
        if self.server.failures:
            status = self.server.failures.pop(0)
            return self.error(status, "not now", **({"Retry_After": 2} if status in (429, 503) else {}))
        if not 0 <= body.get("temperature", 1) <= 2:
            return self.error(400, "temperature must be from 0 to 2")
        self.server.add(running=1)
        try:
            self.stream(body)
        except (BrokenPipeError, ConnectionResetError):
            self.server.cancelled += 1
        finally:
            self.server.add(running=-1)
        return None

    def stream(self, body):
        server, messages, began = self.server, body["messages"], time.monotonic()
        asked = messages[-1]["content"]
        word = (re.findall(r"\w+", asked) or [""])[0].lower()
        text = ANSWERS.get(word, f"Answer {len(server.bodies)} to “{asked}”.")
        pieces = re.findall(r"\s*\S+|\s+$", text)[: body.get("max_tokens")]
        prompt = [(m["content"], len(m["content"].split()) + 4) for m in messages]
        cached = sum(size for content, size in prompt if content in server.seen)
        server.seen.update(content for content, _ in prompt)
        total = sum(size for _, size in prompt)
        server.add(prompt=total, cached=cached)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def send(frame):
            data = f"data: {frame if isinstance(frame, str) else json.dumps(frame)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        def chunk(delta, finish=None):
            return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": body.get("model"),
                    "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        send(chunk({"role": "assistant", "content": ""}))
        self.wfile.write(b"8\r\n: ping\n\n\r\n")
        time.sleep(0.03 + 0.0005 * (total - cached))
        server.add(first=1, first_us=int((time.monotonic() - began) * 1e6))
        sent = 0
        thoughts = re.findall(r"\s*\S+", THOUGHTS.get(word, ""))
        parts = [("reasoning_content", piece) for piece in thoughts] + [("content", piece) for piece in pieces]
        start = time.monotonic()
        try:
            for key, piece in parts:
                if word in ("broken", "refused") and sent == 5:
                    break
                send(chunk({key: piece}))
                sent += 1
                server.add(generated=1, live_tokens=1)
                time.sleep(max(0, start + sent / server.speed - time.monotonic()))
        finally:
            server.add(live_tokens=-sent)
        if word == "broken":
            # As a process that is killed: no last chunk, no error frame.
            time.sleep(0.2)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if word == "refused":
            send({"error": {"message": "the device failed", "type": "server_error", "param": None, "code": 500}})
        else:
            send(chunk({}, "length" if len(pieces) == body.get("max_tokens") else "stop"))
            send({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": body.get("model"), "choices": [],
                  "usage": {"prompt_tokens": total, "completion_tokens": sent, "total_tokens": total + sent,
                            "prompt_tokens_details": {"cached_tokens": cached}}})
        send("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--speed", type=float, default=60, help="tokens per second of one stream")
    parser.add_argument("--api-key")
    args = parser.parse_args()
    server = StandIn(args.port, args.speed, args.api_key)
    print(f"{server.url} answers; words that pick an answer: {', '.join(ANSWERS)}")
    server.serve_forever()


if __name__ == "__main__":
    main()
