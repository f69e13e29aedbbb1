#!/usr/bin/env python3
"""Disaggregated prefill: each prompt is computed by one server, and its answer comes from another one, which fetches the keys and
values from the first. As vLLM's toy proxy server; needs nothing but Python.

  celer serve MODEL --host 10.0.0.1 --port 8000 --kv-transfer 10.0.0.1:5600
  celer serve MODEL --host 10.0.0.2 --port 8000 --kv-transfer 10.0.0.2:5600 --kv-transfer-peers 10.0.0.1:5600
  proxy.py --port 8100 --prefill http://10.0.0.1:8000 --decode http://10.0.0.2:8000
"""
import argparse
import http.client
import http.server
import itertools
import json
import sys
import urllib.parse
import uuid

PATHS = {"/v1/completions", "/v1/chat/completions"}
# What of a request only concerns its answer.
ANSWER = {"stream_options", "min_tokens", "n", "best_of", "use_beam_search", "beam_width", "resume", "echo", "logprobs", "top_logprobs"}
HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"}


def prefill_body(body):
    """The same prompt, for its keys and values alone."""
    short = {name: value for name, value in body.items() if name not in ANSWER}
    short.update(stream=False, max_tokens=1, kv_transfer_params={
        "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None, "remote_host": None,
        "remote_port": None})
    if "max_completion_tokens" in short:
        short["max_completion_tokens"] = 1
    return short


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def connect(self, url):
        place = urllib.parse.urlsplit(url)
        return http.client.HTTPConnection(place.hostname, place.port, timeout=self.server.timeout_seconds)

    def headers_for(self, request_id):
        kept = {name: self.headers[name] for name in ("Authorization", "Content-Type") if name in self.headers}
        return {**kept, "X-Request-Id": request_id}

    def prefill(self, body, request_id):
        """kv_transfer_params for the other server; None: it computes the prompt itself."""
        url = next(self.server.prefill)
        connection = self.connect(url)
        try:
            connection.request("POST", self.path, json.dumps(prefill_body(body)), self.headers_for(request_id))
            response = connection.getresponse()
            answer = json.loads(response.read())
            if response.status == 200:
                return answer.get("kv_transfer_params")
            print(f"{request_id}: {url} said {response.status}: {answer}", file=sys.stderr)
        except (OSError, http.client.HTTPException, ValueError) as error:
            print(f"{request_id}: {url}: {error}", file=sys.stderr)
        finally:
            connection.close()
        return None

    def pass_on(self, method, data, request_id):
        connection = self.connect(next(self.server.decode))
        try:
            connection.request(method, self.path, data, self.headers_for(request_id))
            response = connection.getresponse()
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while part := response.read1(65536):
                self.wfile.write(part)
                self.wfile.flush()
        except (OSError, http.client.HTTPException) as error:
            print(f"{request_id}: {error}", file=sys.stderr)
        finally:
            connection.close()
            self.close_connection = True

    def do_GET(self):
        self.pass_on("GET", None, uuid.uuid4().hex)

    def do_POST(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request_id = self.headers.get("X-Request-Id") or uuid.uuid4().hex
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        if self.path in PATHS and isinstance(body, dict) and len(data) >= self.server.least:
            if params := self.prefill(body, request_id):
                data = json.dumps({**body, "kv_transfer_params": params})
        self.pass_on("POST", data, request_id)

    def log_message(self, *args):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--prefill", nargs="+", required=True, metavar="URL", help="servers that compute prompts, in turn")
    parser.add_argument("--decode", nargs="+", required=True, metavar="URL", help="servers that answer, in turn")
    parser.add_argument("--least", type=int, default=0, help="bytes of a request; those of shorter ones are computed where they are answered")
    parser.add_argument("--timeout", type=float, default=600, help="seconds without a byte")
    args = parser.parse_args()
    server = http.server.ThreadingHTTPServer((args.host, args.port), Proxy)
    server.daemon_threads = True
    server.prefill, server.decode = itertools.cycle(args.prefill), itertools.cycle(args.decode)
    server.least, server.timeout_seconds = args.least, args.timeout
    print(f"listening on http://{args.host}:{server.server_address[1]}", file=sys.stderr, flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
