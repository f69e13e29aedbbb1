#!/usr/bin/env python3
"""Every query of the Grafana dashboard and every alert, evaluated by a real Prometheus that scrapes running servers:
dashboard_test.py CELER. Needs Debian's prometheus; skipped where it is not installed."""
import json
import math
import pathlib
import sys
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

import fleet
from serving import ServerCase


class Dashboard(ServerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.servers = {"celer:": cls.server, "vllm:": cls.start("--metrics-prefix", "vllm:")}
        ports = [server.port for server in cls.servers.values()]
        (cls.folder / "prometheus.yml").write_text(fleet.edited((fleet.DEPLOY / "prometheus/prometheus.yml").read_text(), {
            "127.0.0.1:8001": f"127.0.0.1:{ports[0]}", "127.0.0.1:8002": f"127.0.0.1:{ports[1]}", "scrape_interval: 5s": "scrape_interval: 1s",
            "evaluation_interval: 15s": "evaluation_interval: 1s"}))
        (cls.folder / "rules.yml").write_text((fleet.DEPLOY / "prometheus/rules.yml").read_text())
        port = fleet.free_port()
        cls.prometheus = fleet.Proxy([fleet.program("prometheus"), f"--config.file={cls.folder}/prometheus.yml",
                                      f"--storage.tsdb.path={cls.folder}/data", f"--web.listen-address=127.0.0.1:{port}"],
                                     port, cls.folder / "prometheus.log")
        cls.addClassCleanup(cls.prometheus.stop)
        cls.wait_until_ready()
        # Rates need something to happen between two scrapes.
        cls.over = threading.Event()
        cls.work = [threading.Thread(target=cls.keep_busy, args=(server,)) for server in cls.servers.values()]
        for thread in cls.work:
            thread.start()
            cls.addClassCleanup(thread.join)
        cls.addClassCleanup(cls.over.set)

    @classmethod
    def wait_until_ready(cls):
        """It listens before it answers."""
        end = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(cls.prometheus.url + "/-/ready", timeout=60).close()
                return
            except urllib.error.HTTPError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    @classmethod
    def keep_busy(cls, server):
        while not cls.over.is_set():
            server.post("/v1/completions", {"prompt": "A text that is long enough to fill a block or two of the cache.", "max_tokens": 8})
            cls.over.wait(0.05)

    def ask(self, path, **query):
        url = f"{self.prometheus.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            self.fail(f"{query}: {error.read().decode()}")

    def until(self, what, told):
        end = time.monotonic() + 120
        while not what():
            self.assertLess(time.monotonic(), end, told)
            time.sleep(0.5)

    def value(self, expr):
        """The first finite value of a query, or None."""
        found = [float(one["value"][1]) for one in self.ask("query", query=expr)["result"]]
        return next((value for value in found if math.isfinite(value)), None)

    def test_queries(self):
        board = json.loads((fleet.DEPLOY / "grafana/celer.json").read_text())
        for prefix, server in self.servers.items():
            fill = {"${prefix}": prefix, "$instance": f"127.0.0.1:{server.port}", "$__rate_interval": "1m"}
            limits = b"limit_ratio{" in server.request("GET", "/metrics")[2]
            for panel in board["panels"]:
                for target in panel.get("targets", []):
                    expr = target["expr"]
                    for variable, text in fill.items():
                        expr = expr.replace(variable, text)
                    with self.subTest(panel=panel["title"], query=expr):
                        self.assertNotIn("$", expr)
                        if "limit_ratio" in expr and not limits:
                            self.ask("query", query=expr)  # the machine was not measured: no error, no value
                            continue
                        self.until(lambda asked=expr: self.value(asked) is not None, f"{expr} has no value")
        hit_rate = self.value('sum(rate(celer:prefix_cache_hits_total[1m])) / sum(rate(celer:prefix_cache_queries_total[1m]))')
        self.assertTrue(0 < hit_rate <= 1, hit_rate)

    def test_variables(self):
        for prefix, server in self.servers.items():
            self.until(lambda name=prefix: self.ask("label/instance/values", **{"match[]": name + "num_requests_running"}), "no instance")
            data = self.ask("label/instance/values", **{"match[]": prefix + "num_requests_running"})
            self.assertEqual(data, [f"127.0.0.1:{server.port}"])

    def test_alerts(self):
        def rules():
            return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]
        self.until(lambda: rules() and all(rule["health"] != "unknown" for rule in rules()), "the rules were not evaluated")
        self.assertEqual([(rule["name"], rule.get("lastError")) for rule in rules() if rule["health"] != "ok"], [])
        self.assertEqual([rule["name"] for rule in rules() if rule["state"] == "firing"], [])


if __name__ == "__main__":
    ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    if not fleet.program("prometheus"):
        print("skipped: prometheus is not installed (apt-get install prometheus)")
        sys.exit(77)
    unittest.main()
