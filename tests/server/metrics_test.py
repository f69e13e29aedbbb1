#!/usr/bin/env python3
"""The figures of /metrics: metrics_test.py CELER. Each name of vLLM's is there, and known work gives known figures."""
import os
import re
import subprocess
import sys
import time
import unittest

from serving import SHAPE, ServerCase

GAUGES = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info", "gpu_cache_usage_perc",
          "gpu_prefix_cache_hit_rate", "tokens_per_second", "bytes_per_second", "flops_per_second", "limit_ratio", "healthy"]
COUNTERS = ["prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens", "prompt_tokens_cached", "generation_tokens",
            "request_success", "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
            "gpu_prefix_cache_hits", "gpu_prefix_cache_queries", "work_bytes", "work_flops", "busy_seconds", "limit_seconds"]
HISTOGRAMS = ["request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total", "time_to_first_token_seconds",
              "inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds",
              "request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds",
              "request_decode_time_seconds"]
PROMPT, ANSWER = 50, 20
size = {name.lstrip("-"): int(value) for name, value in zip(SHAPE[::2], SHAPE[1::2])}


class MetricsCase(ServerCase):
    flags = ["--metrics-prefix", "vllm:", "--no-prefix-cache"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Measured once, into the same cache folder; a server that starts then knows it.
        subprocess.run([cls.celer, "probe", "--quick", "--device", "cpu", "--threads", "1"], check=True, capture_output=True,
                       timeout=300, env={**os.environ, "CELER_CACHE": str(cls.folder)})
        (cache,) = cls.folder.glob("machine-*.json")  # a server wants more exact figures; these will do here
        cache.write_text(re.sub(r'("quick":\s*)true', r"\1false", cache.read_text()))
        cls.measured = cls.start("--metrics-prefix", "vllm:", "--no-prefix-cache")

    def read(self, server):
        text = server.request("GET", "/metrics")[2].decode()
        types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
        values = {}
        for name, labels, value in re.findall(r"^([\w:]+)(\{[^}]*\})? (\S+)$", text, re.M):
            le = re.search(r'le="([^"]*)"', labels)
            values[name + (f"[{le[1]}]" if le else "")] = values.get(name + (f"[{le[1]}]" if le else ""), 0) + float(value)
        return types, values, text

    def complete(self, server, prompt=PROMPT, tokens=ANSWER):
        ask = {"prompt": [7] * prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        status, answer = server.post("/v1/completions", ask)
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, tokens))

    def test_every_name_is_there(self):
        self.complete(self.measured)
        types, values, text = self.read(self.measured)
        for names, kind, ending in ((GAUGES, "gauge", ""), (COUNTERS, "counter", "_total"), (HISTOGRAMS, "histogram", "")):
            for name in names:
                if name == "limit_ratio" and "vllm:limit_ratio" not in types:
                    continue  # it comes with the first tick after work
                self.assertEqual(types.get(f"vllm:{name}{ending}"), kind, name)
        self.assertIn('enable_prefix_caching="False"', text)
        for name in HISTOGRAMS:
            self.assertEqual(values[f"vllm:{name}_bucket[+Inf]"], values[f"vllm:{name}_count"], name)

    def test_known_work_gives_known_figures(self):
        server = self.start("--metrics-prefix", "vllm:", "--no-prefix-cache")
        self.complete(server)
        server.idle()
        _, values, _ = self.read(server)
        info = server.get("/server_info")[1]
        steps, tokens = ANSWER, PROMPT + ANSWER - 1  # the last token is never computed
        get = lambda name: values["vllm:" + name]
        self.assertEqual(get("engine_steps_total"), steps)
        self.assertEqual(get("prompt_tokens_total"), PROMPT)
        self.assertEqual(get("generation_tokens_total"), ANSWER)
        self.assertEqual(get("prefix_cache_queries_total"), 0)
        self.assertEqual((get("iteration_tokens_total_count"), get("iteration_tokens_total_sum")), (steps, tokens))
        self.assertEqual((get("iteration_tokens_total_bucket[1]"), get("iteration_tokens_total_bucket[32]")), (steps - 1, steps - 1))
        self.assertEqual(get("iteration_tokens_total_bucket[64]"), steps)

        # Arithmetic: two per weight and token, of the head only where a token is chosen; and attention's.
        layer = (size["hidden"] * size["head-dim"] * (2 * size["heads"] + 2 * size["kv-heads"])
                 + 3 * size["hidden"] * size["intermediate"])
        pairs = PROMPT * (PROMPT + 1) / 2 + sum(PROMPT + i for i in range(1, ANSWER))
        flops = (2 * tokens * layer * size["layers"] + 2 * steps * size["hidden"] * size["vocab"]
                 + 4 * size["heads"] * size["head-dim"] * pairs * size["layers"])
        self.assertAlmostEqual(get("work_flops_total") / flops, 1, places=9)
        # Bytes: the weights in each step, and the keys and values that it sees. A row of the embedding per token is the rest.
        keys = PROMPT + sum(PROMPT + i for i in range(1, ANSWER))
        read = steps * info["weight_bytes"] + keys * info["kv_bytes_per_token"]
        self.assertGreaterEqual(get("work_bytes_total"), read)
        self.assertLess(get("work_bytes_total") - read, tokens * size["hidden"] * 4 + 1)

        # The limit: all of it read at this machine's bandwidth is the least; the rest is arithmetic.
        least = get("work_bytes_total") / info["machine"]["read_bytes_per_s"]
        self.assertGreaterEqual(get("limit_seconds_total"), least * (1 - 1e-9))
        self.assertGreater(get("busy_seconds_total"), 0)

    def test_gauges_are_of_the_time_with_work(self):
        server = self.start("--metrics-prefix", "vllm:", "--no-prefix-cache")
        self.complete(server, tokens=200)
        server.idle()
        for _ in range(600):  # they are made anew once a second
            values = self.read(server)[1]
            if "vllm:limit_ratio" in values:
                break
            time.sleep(0.1)
        bandwidth = server.get("/server_info")[1]["machine"]["read_bytes_per_s"]
        self.assertGreater(values["vllm:flops_per_second"], 0)
        self.assertGreater(values["vllm:tokens_per_second"], 0)
        self.assertGreaterEqual(values["vllm:limit_ratio"] * (1 + 1e-6), values["vllm:bytes_per_second"] / bandwidth)

    def test_times_of_a_request_add_up(self):
        server = self.start("--metrics-prefix", "vllm:", "--no-prefix-cache")
        self.complete(server)
        server.post("/v1/embeddings", {"input": [1, 2, 3]})
        server.idle()
        _, values, _ = self.read(server)
        sums = {name: values[f"vllm:{name}_sum"] for name in HISTOGRAMS}
        counts = {name: values[f"vllm:{name}_count"] for name in HISTOGRAMS}
        for name in ("request_queue_time_seconds", "request_prefill_time_seconds", "request_inference_time_seconds",
                     "e2e_request_latency_seconds"):
            self.assertEqual(counts[name], 2, name)
            self.assertGreater(sums[name], 0, name)
        self.assertEqual(counts["time_to_first_token_seconds"], 1)  # an embedding has none
        self.assertEqual(counts["inter_token_latency_seconds"], ANSWER - 1)
        self.assertAlmostEqual(sums["request_prefill_time_seconds"] + sums["request_decode_time_seconds"],
                               sums["request_inference_time_seconds"], places=6)
        self.assertLessEqual(sums["request_queue_time_seconds"] + sums["request_inference_time_seconds"],
                             sums["e2e_request_latency_seconds"] + 1e-6)
        self.assertEqual(values["vllm:request_success_total"], 2)


if __name__ == "__main__":
    ServerCase.celer = sys.argv.pop(1)
    unittest.main()
