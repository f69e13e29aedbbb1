#!/usr/bin/env python3
"""The files of deploy/ suit the server: deploy_files_test.py CELER. Flags, routes and metrics that they name exist; the
programs that read them (systemd-analyze, HAProxy, promtool) accept them, where they are installed."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

import fleet
from serving import ServerCase

try:
    import yaml
except ImportError as missing:
    print(f"skipped: {missing}; tools/setup.sh installs it")
    sys.exit(77)

DEPLOY = fleet.DEPLOY


def run(*command, **kwargs):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, **kwargs)


def documents(name):
    return [one for one in yaml.safe_load_all((DEPLOY / name).read_text()) if one]


class Files(ServerCase):
    def needs(self, name):
        path = fleet.program(name)
        if not path:
            self.skipTest(f"{name} is not installed")
        return path

    def known_flags(self, text):
        told = run(ServerCase.celer, "serve", "--help").stdout
        flags = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
        self.assertTrue(flags)
        self.assertEqual({flag for flag in flags if not re.search(rf"{flag}\b(?!-)", told)}, set())

    def metrics(self):
        self.server.post("/v1/completions", {"prompt": "Once", "max_tokens": 4})
        return set(re.findall(r"^celer:(\w+)", self.server.request("GET", "/metrics")[2].decode(), re.M))

    # ---- systemd ----

    def test_unit(self):
        """With the drop-ins, as systemd would merge them."""
        analyze = self.needs("systemd-analyze")
        unit = (DEPLOY / "systemd/celer@.service").read_text()
        keys, cuda = ((DEPLOY / "systemd" / name).read_text() for name in ("keys.conf", "cuda.conf"))
        for text in (unit, keys):
            self.known_flags("".join(line for line in text.splitlines() if line.startswith("ExecStart=/")))
        for case, drop_ins, most in (("plain", [], 2.0), ("keys", [keys], 2.0), ("all", [keys, cuda], 2.5)):
            folder = self.folder / case
            (folder / "celer@.service.d").mkdir(parents=True)
            path = folder / "celer@.service"
            path.write_text(fleet.edited(unit, {"/usr/bin/celer": str(ServerCase.celer)}))
            for i, text in enumerate(drop_ins):
                (folder / "celer@.service.d" / f"{i}.conf").write_text(text.replace("/usr/bin/celer", str(ServerCase.celer)))
            with self.subTest(case=case):
                done = run(analyze, "verify", "--man=no", path)
                said = [line for line in done.stderr.splitlines() if "celer" in line]
                self.assertEqual((done.returncode, said), (0, []), done.stderr)
                done = run(analyze, "security", "--offline=true", "--no-pager", f"--threshold={int(most * 10)}", path)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    # ---- balancers and monitoring, as their own programs read them ----

    def test_haproxy(self):
        done = run(self.needs("haproxy"), "-c", "-f", DEPLOY / "haproxy/haproxy.cfg")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("WARNING", done.stderr)

    def test_prometheus(self):
        done = run(self.needs("promtool"), "check", "config", DEPLOY / "prometheus/prometheus.yml")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_alerts_name_metrics_that_exist(self):
        rules = (DEPLOY / "prometheus/rules.yml").read_text()
        named = set(re.findall(r"celer:(\w+)", rules))
        self.assertGreater(len(named), 4)
        self.assertLessEqual(named, self.metrics())

    def test_dashboard(self):
        board = json.loads((DEPLOY / "grafana/celer.json").read_text())
        panels = board["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        cells = [(x, y) for panel in panels for at in [panel["gridPos"]]
                 for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
        self.assertEqual(len(set(cells)), len(cells), "panels lie over each other")
        self.assertLess(max(x for x, _ in cells), 24)
        queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
        named = {name for query in queries for name in re.findall(r"\$\{prefix\}(\w+)", query)}
        self.assertGreater(len(named), 20)
        # Of a machine that celer probe has not measured there is no limit.
        self.assertLessEqual(named - {"limit_ratio"}, self.metrics())

    # ---- Kubernetes ----

    def test_kubernetes(self):
        parts = {(one["kind"], one["metadata"]["name"]): one for name in ("celer.yaml", "router.yaml")
                 for one in documents(f"kubernetes/{name}")}
        celer, router = parts["StatefulSet", "celer"], parts["Deployment", "celer-router"]
        for one in (celer, router):
            spec = one["spec"]["template"]["spec"]
            self.assertEqual(one["spec"]["selector"]["matchLabels"], one["spec"]["template"]["metadata"]["labels"])
            self.assertEqual(parts["Service", one["metadata"]["name"]]["spec"]["selector"], one["spec"]["selector"]["matchLabels"])
            container = spec["containers"][0]
            self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, {volume["name"] for volume in spec["volumes"]})
            self.assertTrue(spec["securityContext"]["runAsNonRoot"])
            self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])
            self.assertFalse(container["securityContext"]["allowPrivilegeEscalation"])
        pod = celer["spec"]["template"]
        container = pod["spec"]["containers"][0]
        self.known_flags(" ".join(container["args"]))
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertEqual(self.server.request("GET", container[probe]["httpGet"]["path"])[0], 200, probe)
        self.assertEqual(self.server.request("GET", pod["metadata"]["annotations"]["prometheus.io/path"])[0], 200)
        drain = sum(float(re.search(r"\d+", flag)[0]) for flag in container["args"] if flag.startswith("--drain"))
        self.assertGreater(pod["spec"]["terminationGracePeriodSeconds"], drain)
        # The router knows every replica by its name.
        env = {one["name"]: one.get("value") for one in router["spec"]["template"]["spec"]["containers"][0]["env"]}
        names = re.findall(r"\$\{(CELER_\d)-", (DEPLOY / "haproxy/haproxy.cfg").read_text())
        self.assertEqual([env.get(name) for name in names],
                         [f"celer-{i}.celer.$(NAMESPACE).svc.cluster.local:8000" for i in range(celer["spec"]["replicas"])])

    def test_kubernetes_pool(self):
        parts = {one["kind"]: one for name in ("inference_pool", "autoscaling") for one in documents(f"kubernetes/{name}.yaml")}
        pod = parts["Deployment"]["spec"]["template"]
        container = pod["spec"]["containers"][0]
        labels, name = pod["metadata"]["labels"], parts["Deployment"]["metadata"]["name"]
        for selector in (parts["Deployment"]["spec"]["selector"], parts["PodDisruptionBudget"]["spec"]["selector"],
                         parts["InferencePool"]["spec"]["selector"]):
            self.assertLessEqual(selector["matchLabels"].items(), labels.items())
        self.assertEqual([port["number"] for port in parts["InferencePool"]["spec"]["targetPorts"]],
                         [port["containerPort"] for port in container["ports"]])
        backend = parts["HTTPRoute"]["spec"]["rules"][0]["backendRefs"][0]
        self.assertEqual((backend["kind"], backend["name"]), ("InferencePool", parts["InferencePool"]["metadata"]["name"]))
        self.assertEqual(parts["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"], name)
        self.known_flags(" ".join(container["args"]))
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertEqual(self.server.request("GET", container[probe]["httpGet"]["path"])[0], 200, probe)
        # What the autoscaler reads exists, under the name that the adapter's rule gives it.
        rule = yaml.safe_load(parts["ConfigMap"]["data"]["config.yaml"])["rules"][0]
        series = re.search(r'__name__=~"([^"]+)"', rule["seriesQuery"])[1]
        found = {rule["name"]["as"].replace("${1}", re.fullmatch(rule["name"]["matches"], f"celer:{metric}")[1])
                 for metric in self.metrics() if re.fullmatch(series, f"celer:{metric}")}
        self.assertEqual({one["pods"]["metric"]["name"] for one in parts["HorizontalPodAutoscaler"]["spec"]["metrics"]}, found)
        drain = sum(float(re.search(r"\d+", flag)[0]) for flag in container["args"] if flag.startswith("--drain"))
        self.assertGreater(pod["spec"]["terminationGracePeriodSeconds"], drain)

    def test_kserve(self):
        parts = {one["kind"]: one for one in documents("kubernetes/kserve.yaml")}
        container = parts["ServingRuntime"]["spec"]["containers"][0]
        self.assertEqual(container["name"], "kserve-container")
        self.known_flags(" ".join(container["args"]))
        self.assertIn(f"--port={container['ports'][0]['containerPort']}", container["args"])
        model = parts["InferenceService"]["spec"]["predictor"]["model"]
        self.assertEqual(model["runtime"], parts["ServingRuntime"]["metadata"]["name"])
        self.assertIn(model["modelFormat"]["name"], [one["name"] for one in parts["ServingRuntime"]["spec"]["supportedModelFormats"]])
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertEqual(self.server.request("GET", container[probe]["httpGet"]["path"])[0], 200, probe)

    def test_slurm(self):
        """As a job array of three tasks would run it, and with a task that is ended in the middle and queued again."""
        script = DEPLOY / "slurm/celer.sbatch"
        folder = self.folder / "slurm"
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/scontrol").write_text('#!/bin/sh\necho "$@" >> "$REQUEUED"\n')
        (folder / "bin/scontrol").chmod(0o755)
        rows = [{"custom_id": f"line-{i}", "method": "POST", "url": "/v1/completions",
                 "body": {"model": "x", "prompt": f"Line {i}", "max_tokens": 200 if i == 1 else 5, "ignore_eos": True}} for i in range(10)]
        (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        environment = {**os.environ, "CELER": str(ServerCase.celer), "CELER_CACHE": str(self.folder), "SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7",
                       "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_CPUS_PER_TASK": "1", "REQUEUED": str(folder / "requeued"),
                       "CELER_FLAGS": "--device cpu --window 1 --quiet --kv-memory 32MiB --context 2048",
                       "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        command = ["bash", script, "batch", self.model, folder / "in.jsonl", folder / "answers"]
        for task in ("1", "2", "3"):
            done = run(*command, env={**environment, "SLURM_ARRAY_TASK_ID": task})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = [json.loads(line) for path in sorted((folder / "answers").glob("part-*.jsonl")) for line in path.read_text().splitlines()]
        self.assertEqual(sorted(line["custom_id"] for line in lines), sorted(row["custom_id"] for row in rows))
        self.assertFalse((folder / "requeued").exists())
        self.assertEqual(run("bash", script, "dance", "model", env=environment).returncode, 2)
        # Slurm's signal before the end of a job's time.
        rows[1]["body"]["max_tokens"] = 1900
        (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        process = subprocess.Popen([str(part) for part in [*command[:-1], folder / "again"]],
                                   env={**environment, "SLURM_ARRAY_TASK_ID": "2"}, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 120
        while not (folder / "again/part-00002.in.jsonl").exists() or not (folder / "again/part-00002.in.jsonl").read_text().count("\n") == 3:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        process.terminate()
        said = process.communicate()[1]
        self.assertEqual(process.returncode, 0, said)
        self.assertEqual((folder / "requeued").read_text().split(), ["requeue", "7_2"])

    def test_kubernetes_schema(self):
        try:
            import kubernetes_validate
        except ImportError:
            self.skipTest("kubernetes-validate is not installed; tools/test_clients.sh does it")
        extensions = set()
        for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
            for one in documents(f"kubernetes/{path.name}"):
                try:
                    kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
                except kubernetes_validate.SchemaNotFoundError:  # of Kubernetes itself it has all
                    extensions.add(one["kind"])
        self.assertEqual(extensions, {"InferencePool", "HTTPRoute", "ServingRuntime", "InferenceService"})

    # ---- the image ----

    def test_dockerfile(self):
        text = (DEPLOY / "Dockerfile").read_text()
        for path in re.findall(r"tools/\w+\.sh", text):
            self.assertTrue((DEPLOY.parent / path).exists(), path)
        install = (DEPLOY.parent / "cmake/CelerInstall.cmake").read_text()
        for component in re.findall(r"--component (\w+)", text):
            self.assertIn(f"COMPONENT {component}", install)
        self.assertRegex(text, r"(?m)^USER 10001$")
        command = json.loads(re.search(r"^HEALTHCHECK .*? CMD (\[.*\])$", text, re.M)[1])
        self.assertEqual(command[:2], ["bash", "-c"])
        for port, code in ((self.server.port, 0), (fleet.free_port(), 1)):
            self.assertEqual(run("bash", "-c", fleet.edited(command[2], {"/8000 ": f"/{port} "})).returncode, code)
        loading = run("bash", "-c", "line='HTTP/1.1 503 Service Unavailable'; " + command[2].split("&& ")[-1])
        self.assertEqual(loading.returncode, 1)


if __name__ == "__main__":
    ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
