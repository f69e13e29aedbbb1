#!/usr/bin/env python3
"""deploy/ray on a Ray cluster of two nodes on this machine: ray_test.py CELER. Skipped without ray[data,serve]; tools/test_fleet.sh
makes a venv that has it."""
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

import front
from front import FleetCase, fleet
from fleet import resume  # noqa: I001  front knows where it is

# Else Ray takes 127.0.0.1 for the machine's other address: here all of it stays on loopback.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray's own patience, of seconds, is for machines that do nothing else.
os.environ |= {f"RAY_SERVE_PROXY_{name}_CHECK_TIMEOUT_S": "120" for name in ("READY", "HEALTH")}
# A replica that does not tell its queue's length in time is passed over, and its conversations go elsewhere.
os.environ |= {f"RAY_SERVE_{name}QUEUE_LENGTH_RESPONSE_DEADLINE_S": "30" for name in ("", "MAX_")}
try:
    import ray
    import ray.data  # noqa: F401
    from ray import serve
    from ray.cluster_utils import Cluster
except ImportError as missing:
    print(f"skipped: {missing}; tools/test_fleet.sh installs it")
    sys.exit(77)

DEPLOY = front.ROOT / "deploy/ray"
sys.path.insert(0, str(DEPLOY))
CHAT = "/v1/chat/completions"


def servers_of(parent=None):
    """The ids of the celer processes that the tests' replicas started."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (command := (entry / "cmdline").read_bytes().split(b"\0"))[0] == str(front.ServerCase.celer).encode() \
                    and b"--kv-memory=48MiB" in command:
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


class RayCase(FleetCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        begin = time.monotonic()
        cls.cluster = Cluster(initialize_head=True, head_node_args={"node_ip_address": "127.0.0.1", "num_cpus": 4, "object_store_memory": 200 << 20, "include_dashboard": False})
        cls.addClassCleanup(cls.cluster.shutdown)
        cls.cluster.add_node(node_ip_address="127.0.0.1", num_cpus=4, object_store_memory=200 << 20)
        cls.cluster.wait_for_nodes()
        ray.init(address=cls.cluster.address, runtime_env={"working_dir": str(DEPLOY)}, log_to_driver=False)
        cls.addClassCleanup(ray.shutdown)
        print(f"a head and a node after {time.monotonic() - begin:.1f} s")
        cls.settings = {"model": str(cls.model), "celer": str(front.ServerCase.celer),
                        "flags": f"--device cpu --threads 1 --kv-memory=48MiB --context 2048 --served-model-name tiny --chat-template "
                                 f"{front.ROOT / 'tests/chat_templates/chatml.jinja'}"}


class Serving(RayCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # An answer is still under way when its server is killed.
        cls.settings["model"] = str(front.slower_model(cls.folder, 2, 384))
        from celer_serve import Settings, build
        port = fleet.free_port()
        for attempt in range(5):
            try:
                serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
                break
            except Exception:  # noqa: BLE001  the proxy starts in a process of its own, which Ray waits 60 s for
                if attempt == 4:
                    raise
        cls.addClassCleanup(serve.shutdown)
        begin = time.monotonic()
        serve.run(build(Settings(**cls.settings, min_replicas=2, max_replicas=3, per_node=2, target=20, drain_seconds=20)))
        cls.url = f"http://127.0.0.1:{port}"
        cls.start_seconds = time.monotonic() - begin
        print(f"2 replicas ready after {cls.start_seconds:.1f} s")

    def nodes(self):
        status = serve.status().applications["default"].deployments["CelerReplica"]
        return status.replica_states.get("RUNNING", 0)

    def until_running(self, count):
        end = time.monotonic() + 120 + 6 * self.start_seconds
        while self.nodes() < count or len(servers_of()) < count:
            self.assertLess(time.monotonic(), end, f"{self.nodes()} replicas run")
            time.sleep(0.5)

    def test_1_requests(self):
        talks = fleet.families(4, 10)
        homes, begin = {}, time.monotonic()
        answers = []
        for turn in range(3):
            for talk in talks:
                answer = talk.ask(self.url, how=fleet.whole_chat if turn else fleet.stream_chat, model="tiny")
                answers.append(answer)
        self.clean(answers)
        print(f"{len(answers)} requests in {time.monotonic() - begin:.1f} s, {fleet.hits(answers)} of {sum(a.prompt_tokens for a in answers)} "
              f"prompt tokens found")
        # A conversation stays where it is known.
        for talk in talks[:12]:
            for _ in range(3):
                body = json.dumps({"model": "tiny", "messages": talk.messages, "max_tokens": 1}).encode()
                _, headers, _ = front.post(self.url, CHAT, body)
                homes.setdefault(talk.name, set()).add(headers["X-Celer-Replica"])
        self.assertTrue(all(len(home) == 1 for home in homes.values()), homes)
        self.assertEqual(len(set.union(*homes.values())), 2, "both replicas have some")

    def test_2_errors_and_other_routes(self):
        self.assertEqual(front.post(self.url, CHAT, b'{"messages": 5}')[0], 400)
        self.assertEqual(front.post(self.url, "/v1/nothing", b"{}")[0], 404)
        self.assertEqual(front.get(self.url, "/v1/models")[0], 200)

    def test_3_a_killed_server_loses_nothing(self):
        """The client goes on with the other replica, and Ray replaces the one whose server died."""
        self.until_running(2)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 1500, "ignore_eos": True, "seed": 3}
        whole = "".join(c["choices"][0]["delta"].get("content", "") for c in resume.stream(self.url, CHAT, body) if c["choices"])
        home = front.post(self.url, CHAT, json.dumps({**body, "max_tokens": 1}).encode())[1]["X-Celer-Replica"]
        before = servers_of()
        text, killed = "", []
        for chunk in resume.stream(self.url, CHAT, body, attempts=100):
            for choice in chunk["choices"]:
                text += choice["delta"].get("content", "")
            if not killed and text:
                killed = [pid for pid in before if self.busy(pid)]  # which of them has it is Ray's secret
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
        self.assertEqual(len(killed), 1, "the answer was whole before its server could be killed")
        self.assertEqual(text, whole)
        self.until_running(2)
        self.assertNotEqual(servers_of(), before)
        self.assertTrue(home)

    def busy(self, pid):
        """Whether this server has a request in flight."""
        for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and (port := int(fields[1].split(":")[1], 16)) and self.owns(pid, fields[9]):
                return front.get(f"http://127.0.0.1:{port}", "/load")[2]["running"] > 0
        return False

    @staticmethod
    def owns(pid, inode):
        return any(os.readlink(entry) == f"socket:[{inode}]" for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink())

    def test_4_more_replicas_under_load(self):
        begin, three = time.monotonic(), threading.Event()
        with concurrent.futures.ThreadPoolExecutor(61) as pool:
            # Ray waits for 30 s of load before it adds one, which then has to start.
            ends = begin + 90 + 6 * self.start_seconds

            def client(i):
                answers = []
                while time.monotonic() < ends and not three.is_set():
                    answers.append(fleet.stream_chat(self.url, [{"role": "user", "content": f"{i} {len(answers)}"}], f"s{i}", max_tokens=200,
                                                     model="tiny", ignore_eos=True))
                return answers

            def watch():
                while time.monotonic() < ends and self.nodes() < 3:
                    time.sleep(1)
                three.set()
            pool.submit(watch)
            answers = [answer for some in pool.map(client, range(60)) for answer in some]
        self.clean(answers)
        self.assertEqual(self.nodes(), 3)
        print(f"the third replica runs after {time.monotonic() - begin:.1f} s with 60 requests in flight")


class Batch(RayCase):
    def test_a_killed_worker_loses_no_line(self):
        count = 300
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        rows = [{"custom_id": f"line-{i}", "method": "POST", "url": "/v1/completions",
                 "body": {"model": "tiny", "prompt": f"Line {i}", "max_tokens": 40, "temperature": 0, "ignore_eos": True}} for i in range(count)]
        rows[7]["body"]["max_tokens"] = "many"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        command = [sys.executable, DEPLOY / "batch.py", source, target, "--model", self.settings["model"], "--celer", self.settings["celer"],
                   "--flags", self.settings["flags"], "--workers", "2", "--batch", "20", "--at-once", "4", "--address", self.cluster.address]
        begin = time.monotonic()
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        kills = []
        while process.poll() is None:
            time.sleep(0.2)
            found = servers_of()
            done = target.read_text().count("\n") if target.exists() else 0
            if len(found) == 2 and len(kills) == 0 and done >= 20:  # the server of a worker
                os.kill(found[0], signal.SIGKILL)
                kills.append("server")
            elif len(found) == 2 and len(kills) == 1 and done >= 100:  # the worker itself
                parent = int(pathlib.Path(f"/proc/{found[1]}/stat").read_text().rsplit(")", 1)[1].split()[1])
                os.kill(parent, signal.SIGKILL)
                kills.append("worker")
        said = process.stdout.read()
        self.assertEqual(process.returncode, 0, said[-3000:])
        self.assertEqual(kills, ["server", "worker"])
        answers = [json.loads(line) for line in target.read_text().splitlines()]
        self.assertEqual(sorted(row["custom_id"] for row in answers), sorted(row["custom_id"] for row in rows))
        bad = [row["custom_id"] for row in answers if row["response"]["status_code"] != 200]
        self.assertEqual(bad, ["line-7"])
        texts = {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in answers if row["custom_id"] not in bad}
        alone = self.start()
        for i in (0, 99, 299):
            self.assertEqual(texts[f"line-{i}"], alone.post("/v1/completions", rows[i]["body"])[1]["choices"][0]["text"])
        print(f"{count} lines by 2 workers, one server and one worker killed, in {time.monotonic() - begin:.1f} s; no line lost")
        # Started again with half of the output: only the rest is answered.
        target.write_text("".join(json.dumps(row) + "\n" for row in answers[:200]) + '{"custom_id": "li')
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("100 lines answered, 0 of them with an error; 200 were answered before", done.stdout)
        self.assertEqual(len({json.loads(line)["custom_id"] for line in target.read_text().splitlines()}), count)


if __name__ == "__main__":
    front.ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
