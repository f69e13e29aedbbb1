#!/usr/bin/env python3
"""The files of deploy/ suit the server: deploy_files_test.py CELER. Flags, routes and metrics that they name exist; the
programs that read them (systemd-analyze, HAProxy, promtool) accept them, where they are installed."""
import json
import pathlib
import re
import subprocess
import sys
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

    def test_kubernetes_schema(self):
        try:
            import kubernetes_validate
        except ImportError:
            self.skipTest("kubernetes-validate is not installed; tools/test_clients.sh does it")
        for name in ("celer.yaml", "router.yaml"):
            for one in documents(f"kubernetes/{name}"):
                kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)

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
