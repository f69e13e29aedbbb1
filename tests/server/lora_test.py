#!/usr/bin/env python3
"""LoRA adapters in celer serve: lora_test.py CELER. Models of the openai package, loading and unloading, hostile files."""
import concurrent.futures
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

from adapters import make_adapter
from serving import Server, make_model

try:
    import openai
except ImportError as missing:
    print(f"skipped: {missing}; tools/setup.sh installs it")
    sys.exit(77)

CELER = sys.argv.pop(1) if len(sys.argv) > 1 else "celer"
PROMPT = "Once upon a time there was a very small model that learned to speak in several voices"


class LoraCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.model = make_model(CELER, cls.root)
        cls.paths = {name: make_adapter(cls.root / name, seed) for seed, name in enumerate("abcde")}
        make_adapter(cls.root / "twin", 0)  # what a is
        cls.server = Server(CELER, cls.model, "--served-model-name", "tiny", "--allow-runtime-lora",
                            *[flag for name in "ab" for flag in ("--lora", f"{name}={cls.paths[name]}")])
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.server.kill()
        cls.folder.cleanup()

    def say(self, model="tiny", prompt=PROMPT, **kwargs):
        answer = self.client.completions.create(model=model, prompt=prompt, max_tokens=12, temperature=0, **kwargs)
        self.assertEqual(answer.model, model)
        return answer.choices[0].text

    def post(self, path, body):
        status, _, data = self.server.request("POST", path, body)
        return status, data.decode()

    def load(self, name, path, **more):
        return self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path), **more})

    def unload(self, name):
        return self.post("/v1/unload_lora_adapter", {"lora_name": name})

    def gauge(self, name):
        return self.server.metric("celer:" + name)

    def test_adapters_are_models(self):
        listed = {model.id: model for model in self.client.models.list()}
        self.assertEqual(listed["a"].parent, "tiny")
        self.assertEqual(listed["a"].root, str(self.paths["a"]))
        self.assertIsNone(listed["tiny"].parent)
        self.assertEqual(self.client.models.retrieve("b").parent, "tiny")
        texts = [self.say(), self.say("a"), self.say("b")]
        self.assertEqual(len(set(texts)), 3, "each is another model")
        with self.assertRaises(openai.NotFoundError):
            self.say("c")
        streamed = self.client.completions.create(model="a", prompt=PROMPT, max_tokens=12, temperature=0, stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in streamed), texts[1])
        chat = self.client.chat.completions.create(model="b", messages=[{"role": "user", "content": "Hello"}], max_tokens=3)
        self.assertEqual(chat.model, "b")

    def test_eight_at_once_with_five_adapters_are_each_as_alone(self):
        for name in "cde":
            self.assertEqual(self.load(name, self.paths[name])[0], 200)
        models = ["a", "tiny", "b", "c", "a", "d", "tiny", "e"]
        prompts = [f"{i} {PROMPT}" for i in range(len(models))]
        alone = [self.say(model, prompt) for model, prompt in zip(models, prompts)]
        # Other prompts first, so that nothing of these is cached where the salt is another one.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for salt in ("one", "two", "three"):
                together = list(pool.map(lambda one: self.say(*one, extra_body={"cache_salt": salt}), zip(models, prompts)))
                self.assertEqual(together, alone)
        for name in "cde":
            self.assertEqual(self.unload(name)[0], 200)

    def test_a_prompt_is_shared_by_content_and_by_nothing_else(self):
        def cached(model):
            answer = self.client.completions.create(model=model, prompt="shared " * 60, max_tokens=1, temperature=0,
                                                    extra_body={"cache_salt": "content"})
            return answer.usage.prompt_tokens_details.cached_tokens if answer.usage.prompt_tokens_details else 0

        self.assertEqual(self.load("twin", self.root / "twin")[0], 200)
        self.assertEqual(cached("tiny"), 0)
        self.assertEqual(cached("a"), 0)
        self.assertEqual(cached("b"), 0)
        self.assertGreater(cached("twin"), 0)
        self.assertGreater(cached("tiny"), 0)
        self.assertEqual(self.say("twin"), self.say("a"))
        self.assertEqual(self.unload("twin")[0], 200)

    def test_scales_as_llama_cpp_has_them(self):
        _, _, data = self.server.request("GET", "/lora-adapters")
        listed = {one["name"]: one for one in json.loads(data)}
        self.assertEqual(listed["a"]["scale"], 0)
        one, other = listed["a"]["id"], listed["b"]["id"]
        plain, with_a = self.say(), self.say("a")
        self.assertEqual(self.say(extra_body={"lora": [{"id": one, "scale": 1.0}]}), with_a)
        self.assertEqual(self.say(extra_body={"lora": [{"name": "a", "scale": 1.0}]}), with_a)
        self.assertEqual(self.say(extra_body={"lora": [{"id": one, "scale": 0.0}]}), plain)
        self.assertEqual(self.say(extra_body={"lora": []}), plain)
        both = self.say(extra_body={"lora": [{"id": one, "scale": 1.0}, {"id": other, "scale": 1.0}]})
        self.assertNotIn(both, (plain, with_a))
        self.assertEqual(self.post("/lora-adapters", [{"id": one, "scale": 1.0}]), (200, '{"success":true}'))
        self.assertEqual(self.say(), with_a)
        self.assertEqual(self.say(extra_body={"lora": []}), plain)
        self.assertEqual(self.post("/lora-adapters", [])[0], 200)
        self.assertEqual(self.say(), plain)
        for wrong in ([{"id": 999, "scale": 1}], [{"scale": 1}], [{"id": one, "scale": "x"}], [{"id": one, "scale": 1e300}], [3],
                      [{"id": one, "name": "a"}], [{"id": one}, {"id": one}], [{"id": -1}], [{"id": 1.5}], [{"id": one, "task": 1}]):
            self.assertEqual(self.post("/lora-adapters", wrong)[0], 400, wrong)
            with self.assertRaises(openai.BadRequestError, msg=str(wrong)):
                self.say(extra_body={"lora": wrong})

    def test_errors_are_vllms(self):
        status, text = self.load("a", self.paths["a"])
        self.assertEqual(status, 400)
        self.assertIn("already been loaded", text)
        self.assertEqual(self.load("a", self.paths["a"], load_inplace=True), (200, "Success: LoRA adapter 'a' added successfully."))
        self.assertEqual(self.load("tiny", self.paths["a"])[0], 400)
        self.assertEqual(self.post("/v1/load_lora_adapter", {"lora_name": "x"})[0], 400)
        self.assertEqual(self.post("/v1/load_lora_adapter", {"lora_path": "x"})[0], 400)
        self.assertEqual(self.post("/v1/unload_lora_adapter", {})[0], 400)
        self.assertEqual(self.unload("nobody")[0], 404)
        self.assertEqual(self.load("x", self.root / "nowhere")[0], 404)
        self.assertEqual(self.load("new", self.paths["c"]), (200, "Success: LoRA adapter 'new' added successfully."))
        self.assertEqual(self.unload("new"), (200, "Success: LoRA adapter 'new' removed successfully."))
        with self.assertRaises(openai.NotFoundError):
            self.say("new")

    def test_what_is_no_adapter_is_refused_in_words(self):
        def folder(name, **kwargs):
            return make_adapter(self.root / name, 9, **kwargs)

        cut = folder("cut")
        weights = cut / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        lies = folder("lies")
        (lies / "adapter_model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
        other = folder("other", hidden=48)
        deep = folder("deep", layers=9)
        none = folder("none", config={"r": 0})
        ranks = folder("ranks", config={"r": 10_000})
        empty = self.root / "empty"
        empty.mkdir()
        noise = self.root / "noise.gguf"
        noise.write_bytes(b"GGUF" + bytes(range(200)))
        before = self.gauge("lora_adapter_bytes")
        for path in (cut, lies, other, deep, none, ranks, empty, noise, self.model, self.root / "a" / ".." / "nowhere", "/dev/null",
                     "/etc/passwd", "/proc/self/mem", "a\nb", self.root):
            status, text = self.load("hostile", path)
            self.assertIn(status, (400, 404, 500), f"{path}: {text}")
            self.assertGreater(len(json.loads(text)["error"]["message"]), 20, path)
        for name in ("x" * 1000, "a\nb"):
            self.assertEqual(self.load(name, self.paths["c"])[0], 400)
        self.assertEqual(self.load("dotted", self.root / "a" / ".." / "c")[0], 200, "a path may go up")
        self.assertEqual(self.unload("dotted")[0], 200)
        self.assertEqual(self.gauge("lora_adapter_bytes"), before)
        self.say()

    def test_a_thousand_times_under_load(self):
        before, memory = self.gauge("lora_adapter_bytes"), self.server.memory()
        stop, failed, with_it = threading.Event(), [], []

        def ask():
            while not stop.is_set():
                try:
                    self.client.completions.create(model="often", prompt="Go on", max_tokens=4)
                    with_it.append(1)
                except openai.NotFoundError:
                    pass
                except Exception as error:
                    failed.append(error)
                    return

        clients = [threading.Thread(target=ask) for _ in range(3)]
        for client in clients:
            client.start()
        for i in range(1000):
            self.assertEqual(self.load("often", self.paths["c" if i % 2 else "d"])[0], 200)
            self.assertEqual(self.unload("often")[0], 200)
            if i == 100:
                memory = self.server.memory()  # allocators have what they need
        stop.set()
        for client in clients:
            client.join()
        self.assertEqual(failed, [])
        self.assertGreater(len(with_it), 0)
        self.assertEqual(self.gauge("lora_adapter_bytes"), before)
        self.assertLess(self.server.memory() - memory, 32 << 20)

    def test_without_the_flag_nothing_can_be_changed(self):
        server = Server(CELER, self.model, "--lora", f"a={self.paths['a']}")
        try:
            for path, body in (("/v1/load_lora_adapter", {"lora_name": "b", "lora_path": str(self.paths["b"])}),
                               ("/v1/unload_lora_adapter", {"lora_name": "a"}), ("/lora-adapters", [])):
                status, _, data = server.request("POST", path, body)
                self.assertEqual(status, 404)
                self.assertIn("--allow-runtime-lora", data.decode())
            self.assertEqual(json.loads(server.request("GET", "/lora-adapters")[2])[0]["name"], "a")
        finally:
            server.stop()
            server.kill()

    def test_the_command_line(self):
        def run(*flags):
            done = subprocess.run([CELER, "run", self.model, "--raw", "-q", "-n", "12", "--temperature", "0", "--device", "cpu",
                                   *flags, PROMPT], capture_output=True, text=True, timeout=300)
            return done.returncode, done.stdout, done.stderr

        plain, a, b = run()[1], run("--lora", f"a={self.paths['a']}")[1], run("--lora", f"b={self.paths['b']}")[1]
        self.assertEqual(len({plain, a, b}), 3)
        self.assertEqual(run("--lora", f"{self.paths['a']}")[1], a)
        self.assertEqual(run("--lora", f"a={self.paths['a']}:0")[1], plain)
        self.assertNotIn(run("--lora", f"a={self.paths['a']}", "--lora", f"b={self.paths['b']}")[1], (plain, a, b))
        for wrong in ("a=", "=x", f"a={self.root}/nowhere"):
            code, _, said = run("--lora", wrong)
            self.assertNotEqual(code, 0)
            self.assertTrue(said.startswith("error: ") or "--lora" in said, said)

    def test_merging_several(self):
        golden = pathlib.Path(__file__).resolve().parents[1] / "golden"

        def merge(name, *adapters):
            flags = [word for adapter in adapters for word in ("--lora", f"{golden}/lora/{adapter}")]
            done = subprocess.run([CELER, "merge", f"{golden}/models/llama3", *flags, "-o", self.root / name],
                                  capture_output=True, text=True, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            return (self.root / name / "model.safetensors").read_bytes()

        whole = merge("whole", "plain")
        self.assertEqual(merge("halves", "plain:0.25", "plain:0.75"), whole)
        self.assertNotEqual(merge("half", "plain:0.5"), whole)
        self.assertNotEqual(merge("both", "plain", "head"), whole)


if __name__ == "__main__":
    unittest.main()
