#!/usr/bin/env python3
"""One model on several ranks: parallel_test.py CELER. Threads, and processes on loopback, started by hand and as mpirun and torchrun do;
what is said when they do not fit together, and when one of them dies."""
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

CELER = None
SHAPE = ["--layers", "2", "--hidden", "256", "--intermediate", "512", "--vocab", "600", "--heads", "4", "--kv-heads", "2",
         "--head-dim", "64"]
LAUNCHERS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
             "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Parallel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_parallel_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.env = {k: v for k, v in os.environ.items() if k not in LAUNCHERS} | {"CELER_CACHE": str(cls.folder / "cache"), "CELER_THREADS": "1"}
        cls.models = {}
        for weights in ("f32", "q8_0", "q4_k"):
            cls.models[weights] = cls.folder / f"{weights}.gguf"
            subprocess.run([CELER, "synth", "llama-3.1-8b", "--weights", weights, "-o", cls.models[weights], *SHAPE], check=True,
                           capture_output=True, timeout=60)
        cls.plain = {}

    def command(self, weights, *flags, tokens=24):
        output = [] if "--stream" in flags else ["--json"]
        return [CELER, "run", self.models[weights], "a b c a b c a b", "--device", "cpu", "-n", str(tokens), "--raw", "--ignore-end",
                "--temperature", "0", *output, *(flag for flag in flags if flag != "--stream")]

    def start(self, *flags, weights="f32", env=None, **kwargs):
        process = subprocess.Popen(self.command(weights, *flags, **kwargs), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=self.env | (env or {}), stdin=subprocess.DEVNULL)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def tokens(self, process):
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, err)
        return json.loads(out)["tokens"]

    def expected(self, weights):
        if weights not in self.plain:
            self.plain[weights] = self.tokens(self.start(weights=weights))
        return self.plain[weights]

    def test_threads(self):
        for flags in (["--tensor-parallel-size", "2"], ["-tp", "2"], ["-tp=4"]):
            self.assertEqual(self.tokens(self.start(*flags)), self.expected("f32"), flags)
        # Activations are rounded to 8 bits: the texts may part, but have the length that was asked for.
        self.assertEqual(len(self.tokens(self.start("-tp", "2", weights="q8_0"))), 24)

    def test_stages_as_threads(self):
        for flags in (["--pipeline-parallel-size", "2"], ["-pp", "2"], ["-pp=2", "--micro-batch", "1"], ["-pp", "2", "-tp", "2"], ["--pipeline-parallel", "2"]):
            self.assertEqual(self.tokens(self.start(*flags)), self.expected("f32"), flags)
        for weights in ("q8_0", "q4_k"):  # no sum changes its order
            self.assertEqual(self.tokens(self.start("-pp", "2", weights=weights)), self.expected(weights), weights)

    def group(self, environments, *flags, **kwargs):
        """The tokens of rank 0; the others say nothing and end well."""
        processes = [self.start(*flags, env=env, **kwargs) for env in environments]
        tokens = self.tokens(processes[0])
        for process in processes[1:]:
            out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out), (0, ""), err)
        return tokens

    def test_processes_of_launchers(self):
        port = str(free_port())
        mpi = [{"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_PORT": port} for r in range(2)]
        self.assertEqual(self.group(mpi, "-tp", "2"), self.expected("f32"))
        port = str(free_port())
        torch = [{"RANK": str(r), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} for r in range(4)]
        self.assertEqual(self.group(torch, "-tp", "4"), self.expected("f32"))

    def test_stages_of_launchers(self):
        port = str(free_port())
        mpi = [{"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_PORT": port} for r in range(2)]
        self.assertEqual(self.group(mpi, "-pp", "2", weights="q4_k"), self.expected("q4_k"))
        port = str(free_port())
        torch = [{"RANK": str(r), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} for r in range(4)]
        self.assertEqual(self.group(torch, "-tp", "2", "-pp", "2", "--micro-batch", "2"), self.expected("f32"))

    def test_stages_by_hand(self):
        hosts = f"127.0.0.1:{free_port()},127.0.0.1"
        processes = [self.start("--hosts", hosts, "--rank", str(r), "-pp", "2", "--micro-batch", "1") for r in (1, 0)]
        self.assertEqual(self.tokens(processes[1]), self.expected("f32"))
        self.assertEqual(processes[0].wait(timeout=60), 0)

    def test_processes_by_hand(self):
        hosts = f"127.0.0.1:{free_port()},127.0.0.1"
        processes = [self.start("--hosts", hosts, "--rank", str(r)) for r in (1, 0)]
        self.assertEqual(self.tokens(processes[1]), self.expected("f32"))
        self.assertEqual(processes[0].wait(timeout=60), 0)

    def refused(self, *flags, says, env=None, weights="f32"):
        process = self.start(*flags, env=env, weights=weights)
        _, err = process.communicate(timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertEqual(err.count("error:"), 1, err)
        self.assertIn(says, " ".join(err.split()))

    def test_what_is_refused(self):
        self.refused("-tp", "3", says="--tensor-parallel-size 3: 4 attention heads do not divide; sizes that work: 1, 2, 4")
        self.refused("-tp", "4", weights="q4_k", says="sizes that work: 1")
        self.refused("-tp", "2", "--rank", "1", says="--hosts and --rank belong together")
        self.refused("--hosts", "a,b", says="--hosts and --rank belong together")
        self.refused("--hosts", "a,b", "--rank", "2", says="expected 0 to 1")
        self.refused("--hosts", "a:x,b", "--rank", "0", says="expected a whole number from 1 to 65535")
        self.refused("-tp", "4", "--hosts", "a,b", "--rank", "0", says="--hosts names 2 processes")
        self.refused("-tp", "2", env={"RANK": "0", "WORLD_SIZE": "3"}, says="torchrun has started 3 processes")
        self.refused("-pp", "3", says="--pipeline-parallel-size 3: the model has 2 layers")
        self.refused("-pp", "2", "-tp", "3", says="sizes that work: 1, 2, 4")
        self.refused("-pp", "2", "--split", "1,1,1", says="--split has 3 parts, and --pipeline-parallel-size is 2")
        self.refused("-pp", "2", "--gpu-layers", "1", says="--pipeline-parallel-size 2 says where layers are")
        self.refused("-pp", "2", "--hosts", "a,b,c", "--rank", "0", says="--hosts names 3 processes, --pipeline-parallel-size 2 times --tensor-parallel-size 1 are 2")
        self.refused("-pp", "2", "-tp", "2", env={"RANK": "0", "WORLD_SIZE": "2"}, says="torchrun has started 2 processes")

    def test_ranks_with_other_options(self):
        hosts = f"127.0.0.1:{free_port()},127.0.0.1"
        processes = [self.start("--hosts", hosts, "--rank", str(r), "--kv", kv) for r, kv in ((0, "f32"), (1, "f16"))]
        for process in processes:
            _, err = process.communicate(timeout=60)
            self.assertNotEqual(process.returncode, 0)
            self.assertIn("is not for the same model and options", " ".join(err.split()))

    def test_a_rank_that_is_killed(self):
        for victim, flags in ((0, []), (1, []), (0, ["-pp", "2"]), (1, ["-pp", "2"])):
            hosts = f"127.0.0.1:{free_port()},127.0.0.1"
            processes = [self.start("--hosts", hosts, "--rank", str(r), "--context", "100000", "--stream", *flags, tokens=90000) for r in range(2)]
            self.assertTrue(select.select([processes[0].stdout], [], [], 60)[0])  # it answers
            processes[victim].send_signal(signal.SIGKILL)
            begin = time.monotonic()
            _, err = processes[1 - victim].communicate(timeout=60)
            self.assertLess(time.monotonic() - begin, 5)
            self.assertNotEqual(processes[1 - victim].returncode, 0, err)
            self.assertEqual(err.count("error:"), 1, err)
            self.assertIn(f"rank {victim}", err)

    def stands_still(self, ranks, victim, *flags):
        hosts = f"127.0.0.1:{free_port()}" + ",127.0.0.1" * (ranks - 1)
        processes = [self.start("--hosts", hosts, "--rank", str(r), "--context", "100000", "--watchdog", "2", "--stream", *flags, tokens=90000)
                     for r in range(ranks)]
        self.assertTrue(select.select([processes[0].stdout], [], [], 60)[0])
        processes[victim].send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        _, err = processes[0].communicate(timeout=60)
        self.assertLess(time.monotonic() - begin, 2 + 5)
        self.assertNotEqual(processes[0].returncode, 0, err)
        self.assertEqual(err.count("error:"), 1, err)
        self.assertIn(f"rank {victim}", err)
        processes[victim].send_signal(signal.SIGCONT)
        for process in processes[1:]:
            self.assertNotEqual(process.wait(timeout=30), 0)

    def test_a_rank_that_stands_still(self):
        self.stands_still(2, 1)

    def test_a_stage_that_stands_still(self):
        self.stands_still(2, 1, "-pp", "2")
        # The first layers are on ranks 2 and 3: rank 1 waits for the one that stands still, rank 0 for the other one.
        self.stands_still(4, 3, "-pp", "2")

    def test_mpirun(self):
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun here (Debian: openmpi-bin)")
        start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2", "-x", f"MASTER_PORT={free_port()}"]
        for flags in (["-tp", "2"], ["-pp", "2"]):
            done = subprocess.run(start + self.command("f32", *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env,
                                  stdin=subprocess.DEVNULL, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["tokens"], self.expected("f32"))

    def test_two_hosts(self):
        """Two network namespaces stand for them."""
        name = f"celer{os.getpid()}"
        sides = [(f"{name}{side}", f"v{os.getpid()}{side}", f"10.77.{os.getpid() % 250}.{i + 1}") for i, side in enumerate("ab")]

        def ip(*args, check=True):
            return subprocess.run(["ip", *args], check=check, capture_output=True, text=True)

        try:
            for space, _, _ in sides:
                ip("netns", "add", space)
                self.addCleanup(ip, "netns", "del", space, check=False)
            ip("link", "add", sides[0][1], "type", "veth", "peer", "name", sides[1][1])
            for space, link, address in sides:
                ip("link", "set", link, "netns", space)
                ip("-n", space, "address", "add", f"{address}/24", "dev", link)
                ip("-n", space, "link", "set", link, "up")
                ip("-n", space, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no network namespaces here: {getattr(error, 'stderr', error)}")
        hosts = f"{sides[0][2]}:29600,{sides[1][2]}"
        for flags in ([], ["-pp", "2"]):
            processes = []
            for rank, (space, _, _) in enumerate(sides):
                processes.append(subprocess.Popen(["ip", "netns", "exec", space, *self.command("f32", "--hosts", hosts, "--rank", str(rank), *flags)],
                                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.env, stdin=subprocess.DEVNULL))
                self.addCleanup(self.end, processes[-1])
            self.assertEqual(self.tokens(processes[0]), self.expected("f32"))
            self.assertEqual(processes[1].wait(timeout=60), 0)

    def test_data_parallel(self):
        process = subprocess.run([CELER, "serve", self.models["f32"], "--device", "cpu", "--port", "0", "-tp", "2", "--data-parallel-size", "2"],
                                 capture_output=True, text=True, env=self.env, timeout=60)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("--data-parallel-size 2 does not go with --tensor-parallel-size 2", " ".join(process.stderr.split()))

    def test_a_server_comes_back(self):
        port, hosts = free_port(), f"127.0.0.1:{free_port()},127.0.0.1"

        def start(rank):
            process = subprocess.Popen([CELER, "serve", self.models["f32"], "--device", "cpu", "--port", str(port), "--hosts", hosts, "--rank", str(rank),
                                        "--on-fault", "reload", "--context", "60000"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.env, stdin=subprocess.DEVNULL)
            self.addCleanup(self.end, process)
            return process

        def status(path="/health", body=None, timeout=30):
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=json.dumps(body).encode() if body else None,
                                             headers={"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=timeout) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()
            except OSError as error:
                return 0, str(error)

        def until(wanted, seconds=60):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if status()[0] == wanted:
                    return
                time.sleep(0.05)
            self.fail(f"/health did not say {wanted}, but {status()}")

        ranks = [start(0), start(1)]
        until(200)
        short = {"prompt": "a b c", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        self.assertEqual(status("/v1/completions", short)[0], 200)
        answers = []
        long = dict(short, max_tokens=50000)
        threads = [threading.Thread(target=lambda: answers.append(status("/v1/completions", long, timeout=120)[0])) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(1)
        ranks[1].kill()
        begin = time.monotonic()
        for thread in threads:
            thread.join(timeout=60)
        self.assertLess(time.monotonic() - begin, 5)
        self.assertEqual(len(answers), 4)
        self.assertTrue(all(code >= 500 for code in answers), answers)
        until(503, seconds=5)
        ranks.append(start(1))
        until(200)
        self.assertEqual(status("/v1/completions", short)[0], 200)


if __name__ == "__main__":
    CELER = sys.argv.pop(1)
    unittest.main()
