#!/usr/bin/env python3
"""KV events of celer serve over ZeroMQ, read as routers do: kv_events_test.py CELER. An index that is fed by the events alone
knows how much of a prompt the server will find in its cache; hashes are vLLM's (sha256_cbor) and equal on all replicas."""
import hashlib
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
from adapters import make_adapter
from serving import SLOW, Server, make_model

try:
    import cbor2
    import msgpack
    import zmq
except ImportError as missing:
    print(f"skipped: {missing}; tools/setup.sh installs it")
    sys.exit(77)

CELER = sys.argv.pop(1) if len(sys.argv) > 1 else "celer"
BLOCK = 16
ANY = "tcp://127.0.0.1:*"
STORED = ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx"]
FIELDS = {"BlockStored": STORED, "BlockRemoved": ["block_hashes", "medium", "group_idx"], "AllBlocksCleared": []}


def chain(tokens, seed="vllm-none-hash", keys=None, salt=None):
    """The hashes of a prompt's full blocks, as vLLM computes them with sha256_cbor, and as it publishes them."""
    digest = hashlib.sha256(cbor2.dumps(seed, canonical=True)).digest()
    hashes = []
    for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
        extra = tuple((keys or []) + ([salt] if salt and at == 0 else [])) or None
        digest = hashlib.sha256(cbor2.dumps((digest, tuple(tokens[at:at + BLOCK]), extra), canonical=True)).digest()
        hashes.append(int.from_bytes(digest[-8:], "big"))
    return hashes


class Subscriber:
    """Everything that a server publishes: what comes, and what it replays."""

    def __init__(self, server, topic="", rank=0):
        addresses = server.get("/server_info")[1]["kv_events"]["ranks"][rank]
        self.topic, self.context = topic.encode(), zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.subscribe(self.topic)
        self.live.connect(addresses["address"])
        self.replay_address = addresses["replay"]
        self.came = {}

    def poll(self):
        while self.live.poll(0):
            topic, number, batch = self.live.recv_multipart()
            assert topic == self.topic, topic
            number = int.from_bytes(number, "big")
            assert number not in self.came, f"message {number} came twice"
            assert not self.came or number > max(self.came), "out of order"
            self.came[number] = batch
        return self.came

    def replay(self, first=0):
        """[(topic or None, number, batch), ...] without the end marker."""
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.replay_address)
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        messages = []
        while socket.poll(SLOW * 20_000):
            empty, *topic, number, batch = socket.recv_multipart()
            assert empty == b"" and len(topic) <= 1
            if number == b"\xff" * 8:
                assert batch == b""
                socket.close(0)
                return messages
            messages.append((topic[0] if topic else None, int.from_bytes(number, "big"), batch))
        raise AssertionError("the replay did not end")

    def close(self):
        self.context.destroy(0)


class Index:
    """What a router keeps of one replica."""

    def __init__(self, layout, rank=0):
        self.layout, self.rank, self.hashes, self.next, self.seen = layout, rank, {}, 0, set()

    def event(self, packed):
        if self.layout == "array":
            kind, *values = packed
            assert len(values) == len(FIELDS[kind]), packed
            return kind, dict(zip(FIELDS[kind], values))
        kind = packed["type"]
        assert list(packed) == ["type"] + FIELDS[kind], packed
        return kind, packed

    def apply(self, batch):
        seconds, events, rank = msgpack.unpackb(batch)
        assert abs(time.time() - seconds) < 600 and rank == self.rank
        for packed in events:
            kind, event = self.event(packed)
            self.seen.add(kind)
            if kind == "AllBlocksCleared":
                self.hashes.clear()
            elif kind == "BlockRemoved":
                assert event["medium"] == "GPU" and event["group_idx"] == 0
                for one in event["block_hashes"]:
                    del self.hashes[one]
            else:
                assert event["block_size"] == BLOCK and event["medium"] == "GPU" and event["group_idx"] == 0
                assert len(event["token_ids"]) == BLOCK * len(event["block_hashes"]) == BLOCK * len(event["extra_keys"])
                parent = event["parent_block_hash"]
                assert parent is None or parent in self.hashes
                for i, one in enumerate(event["block_hashes"]):
                    assert one not in self.hashes
                    self.hashes[one] = (event["lora_name"], event["lora_id"], event["extra_keys"][i], event["token_ids"][BLOCK * i:][:BLOCK])

    def read(self, subscriber):
        """Up to what the server has published by now."""
        for topic, number, batch in subscriber.replay(self.next):
            assert topic == (subscriber.topic if self.layout == "map" else None), topic
            assert number == self.next, f"{number} instead of {self.next}"
            self.apply(batch)
            self.next += 1

    def match(self, hashes):
        return next((i for i, one in enumerate(hashes) if one not in self.hashes), len(hashes))


class KvEvents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.model = make_model(CELER, cls.root)
        cls.adapter = make_adapter(cls.root / "sql", 1)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def serve(self, *flags, topic="", kv="384KiB", context=256):
        server = Server(CELER, self.model, "--kv-events", ANY, "--kv-events-replay", ANY, *flags, kv=kv, context=context)
        self.addCleanup(server.kill)
        subscriber = Subscriber(server, topic)
        self.addCleanup(subscriber.close)
        return server, subscriber

    def cached(self, server, prompt, rank=None, **fields):
        """Tokens of the prompt that were in the cache."""
        status, answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0, **fields},
                                     headers={} if rank is None else {"X-Data-Parallel-Rank": str(rank)})
        self.assertEqual(status, 200, answer)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def settle(self, server):
        """Until the publisher has nothing left to do: its figures stand still."""
        server.idle()
        before = None
        while before != (now := server.metric("celer:kv_event_messages_total")):
            before = now
            time.sleep(0.02)

    def check_index(self, layout, *flags, topic=""):
        server, subscriber = self.serve("--kv-events-layout", layout, "--lora", f"sql={self.adapter}", *flags, topic=topic)
        index = Index(layout)
        draw = random.Random(7)
        content = None
        hits = 0
        for turn in range(120):
            prompt = [draw.randrange(3) + 10 for _ in range(draw.randrange(1, 8))]
            prompt = [token for token in prompt for _ in range(BLOCK)] + [5] * draw.randrange(1, BLOCK)
            lora, salt = draw.random() < 0.3, "pepper" if draw.random() < 0.2 else None
            fields = {**({"model": "sql"} if lora else {}), **({"cache_salt": salt} if salt else {})}
            self.settle(server)
            index.read(subscriber)
            if lora and content is None:
                found = 0
            else:
                found = index.match(chain(prompt, keys=["sql", content] if lora else None, salt=salt))
            self.assertEqual(self.cached(server, prompt, **fields), BLOCK * found, f"turn {turn}")
            hits += found
            if lora and content is None:
                self.settle(server)
                index.read(subscriber)
                named = [keys for name, _, keys, _ in index.hashes.values() if name == "sql"]
                self.assertTrue(named and all(number == 1 for name, number, _, _ in index.hashes.values() if name == "sql"))
                content = named[0][1]
        self.assertGreater(hits, 20)
        self.assertEqual(index.seen, {"BlockStored", "BlockRemoved", "AllBlocksCleared"})
        self.assertEqual(server.metric("celer:kv_event_messages_total"), index.next)
        self.assertGreater(server.metric("celer:kv_event_blocks_removed_total"), 0)
        self.assertEqual(server.metric("celer:kv_event_changes_dropped_total"), 0)
        # What came by itself is what is replayed.
        replayed = {number: batch for _, number, batch in subscriber.replay()}
        end = time.monotonic() + SLOW * 30
        while max(live := subscriber.poll(), default=-1) < max(replayed) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(live, {number: replayed[number] for number in live})
        self.assertEqual(max(live), max(replayed))
        self.assertEqual(set(live), set(range(min(live), max(live) + 1)), "a gap")
        self.assertEqual(subscriber.replay(index.next + 5), [])

    def test_an_index_of_maps(self):
        self.check_index("map", "--kv-events-topic", "kv@tiny", topic="kv@tiny")

    def test_an_index_of_arrays(self):
        self.check_index("array")

    def test_replicas_agree_and_a_seed_separates(self):
        prompt = list(range(100, 164)) + [1]
        indices = []
        for flags in ([], [], ["--kv-hash-seed", "other"]):
            server, subscriber = self.serve(*flags, kv="1MiB")
            self.assertEqual(self.cached(server, prompt), 0)
            self.settle(server)
            indices.append(Index("map"))
            indices[-1].read(subscriber)
            info = server.get("/server_info")[1]["kv_events"]
            self.assertEqual((info["block_size"], info["replay"]), (BLOCK, subscriber.replay_address))
            self.assertEqual(server.stop()[0], 0)
        self.assertEqual(list(indices[0].hashes), chain(prompt))
        self.assertEqual(indices[0].hashes, indices[1].hashes)
        self.assertEqual(list(indices[2].hashes), chain(prompt, seed="other"))

    def test_a_subscriber_that_never_reads_delays_nobody(self):
        server, subscriber = self.serve()
        deaf = subscriber.context.socket(zmq.SUB)
        deaf.setsockopt(zmq.RCVHWM, 1)
        deaf.subscribe(b"")
        deaf.connect(server.until(r"KV events on (\S+?),")[1])
        junk = subscriber.context.socket(zmq.DEALER)
        junk.connect(subscriber.replay_address)
        for frames in ([b""], [b"", b"short"], [b"x" * 10_000], [b"", b"", b"", b"", b""], [b"", (0).to_bytes(8, "big"), b"more"]):
            junk.send_multipart(frames)

        def ask(seed):
            draw = random.Random(seed)
            for _ in range(15):
                self.cached(server, [draw.randrange(500) for _ in range(100)])
        threads = [threading.Thread(target=ask, args=[seed]) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SLOW * 120)
            self.assertFalse(thread.is_alive())
        self.settle(server)
        index = Index("map")
        index.read(subscriber)  # the junk did not end the replay
        self.assertGreater(index.next, 10)
        self.assertEqual(server.stop()[0], 0)

    def test_each_engine_publishes_its_own(self):
        server, first = self.serve("--data-parallel-size", "2", kv="1MiB")
        second = Subscriber(server, rank=1)
        self.addCleanup(second.close)
        self.assertNotEqual(first.replay_address, second.replay_address)
        common, own = list(range(100, 164)) + [1], list(range(200, 248)) + [1]
        for rank in (0, 1):
            self.cached(server, common, rank)
        self.cached(server, own, 1)
        self.settle(server)
        indices = [Index("map"), Index("map", rank=1)]
        for index, subscriber in zip(indices, (first, second)):
            index.read(subscriber)
        self.assertEqual(list(indices[0].hashes), chain(common))
        self.assertEqual(set(indices[1].hashes), set(chain(common)) | set(chain(own)))
        self.assertEqual(self.cached(server, own), 48, "the engine that has it is asked")

    def test_replays_that_nobody_reads_hold_little(self):
        server, subscriber = self.serve(kv="1MiB", context=1024)
        draw = random.Random(3)
        for _ in range(150):
            self.cached(server, [draw.randrange(500) for _ in range(800)])
        self.settle(server)
        index = Index("map")
        index.read(subscriber)
        self.assertGreater(index.next, 150)
        before, deaf = server.memory(), []
        for _ in range(40):
            socket = subscriber.context.socket(zmq.DEALER)
            socket.setsockopt(zmq.RCVHWM, 1)
            socket.setsockopt(zmq.RCVBUF, 4096)
            socket.connect(subscriber.replay_address)
            deaf.append(socket)
        for _ in range(60):
            for socket in deaf:
                socket.send_multipart([b"", (0).to_bytes(8, "big")])
        server.until(r"a replay ended \d+ messages early")
        end, last = time.monotonic() + SLOW * 60, -1
        while last != (now := server.memory()) and time.monotonic() < end:
            last = now
            time.sleep(0.3)
        self.assertLess(now - before, 192 << 20)
        for socket in deaf:
            socket.close(0)
        # What they held is free again, and others get all they ask for.
        while len(subscriber.replay()) < index.next:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.1)
        self.assertEqual(server.stop()[0], 0)

    def test_what_cannot_be(self):
        def refused(*flags):
            done = subprocess.run([CELER, "serve", self.model, "--port", "0", "--device", "cpu", *flags], capture_output=True, text=True, timeout=SLOW * 60)
            self.assertNotEqual(done.returncode, 0)
            return done.stderr
        self.assertIn("expected tcp://HOST:PORT", refused("--kv-events", "nowhere"))
        self.assertIn("--kv-events", refused("--kv-events-replay", ANY))
        for port in ("99999", "-1", "http", ""):
            self.assertIn("expected 0 to 65535", refused("--kv-events", f"bind:tcp://127.0.0.1:{port}"))
        self.assertIn("expected an address", refused("--kv-events", ""))
        with tempfile.TemporaryDirectory() as folder:
            mine = pathlib.Path(folder) / "mine"
            mine.write_text("mine")
            self.assertIn("is no socket", refused("--kv-events", f"ipc://{mine}"))
            self.assertEqual(mine.read_text(), "mine")
            server = Server(CELER, self.model, "--kv-events", f"ipc://{folder}/socket")
            self.addCleanup(server.kill)
            self.assertTrue((pathlib.Path(folder) / "socket").is_socket())
            server.stop()
            self.assertFalse((pathlib.Path(folder) / "socket").exists())
        self.assertIn("prefix cache", refused("--kv-events", ANY, "--no-prefix-cache"))
        self.assertIn("leave 2 between them", refused("--kv-events", "tcp://127.0.0.1:5557", "--kv-events-replay", "tcp://127.0.0.1:5558",
                                                     "--data-parallel-size", "2"))
        self.assertIn("would have port 65536", refused("--kv-events", "bind:tcp://127.0.0.1:65535", "--data-parallel-size", "2"))
        server, _ = self.serve()
        taken = server.until(r"KV events on tcp://(\S+?),")[1]
        self.assertIn("in use", refused("--kv-events", f"bind:tcp://{taken}"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
