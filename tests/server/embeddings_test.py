#!/usr/bin/env python3
"""/v1/embeddings of celer serve: embeddings_test.py CELER. The real openai client, and numbers that are those of transformers."""
import base64
import json
import os
import pathlib
import re
import shutil
import struct
import sys
import tempfile
import unittest

from serving import Server, ServerCase

try:
    import numpy as np
    import openai
    from safetensors.numpy import load_file
except ImportError as missing:
    print(f"skipped: {missing}; tools/setup.sh installs it")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
TEXTS = ["The food was delicious and the waiter friendly.", "One two three", "x"]
WIDTH = 64  # of the model that ServerCase makes


def length(values):
    return float(np.linalg.norm(np.asarray(values, dtype=np.float64)))


class ClientCase(ServerCase):
    flags = ["--served-model-name", "tiny"]

    def setUp(self):
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)

    def embed(self, text, **kwargs):
        return self.client.embeddings.create(model="tiny", input=text, **kwargs)

    def raw(self, body):
        status, headers, data = self.server.request("POST", "/v1/embeddings", body)
        return status, headers, json.loads(data)

    def refused(self, body, param, says):
        status, _, answer = self.raw(body)
        self.assertEqual(status, 400, answer)
        self.assertEqual(answer["error"]["param"], param)
        self.assertIn(says, answer["error"]["message"])

    def test_one_text(self):
        answer = self.embed(TEXTS[0])
        self.assertEqual((answer.object, answer.model), ("list", "tiny"))
        self.assertEqual([(e.object, e.index) for e in answer.data], [("embedding", 0)])
        values = answer.data[0].embedding  # the client asks for base64 by itself
        self.assertEqual(len(values), WIDTH)
        self.assertAlmostEqual(length(values), 1, places=5)
        count = self.server.post("/tokenize", {"prompt": TEXTS[0]})[1]["count"]
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.total_tokens), (count, count))
        plain = self.embed(TEXTS[0], encoding_format="float").data[0].embedding
        self.assertEqual(np.asarray(plain, np.float32).tolist(), np.asarray(values, np.float32).tolist())
        self.assertNotEqual(self.embed(TEXTS[1]).data[0].embedding, values)

    def test_several_texts_and_ids(self):
        one_by_one = [self.embed(text).data[0].embedding for text in TEXTS]
        together = self.embed(TEXTS)
        self.assertEqual([e.index for e in together.data], [0, 1, 2])
        self.assertEqual([e.embedding for e in together.data], one_by_one)
        ids = [self.server.post("/tokenize", {"prompt": text})[1]["tokens"] for text in TEXTS]
        self.assertEqual(together.usage.prompt_tokens, sum(map(len, ids)))
        self.assertEqual(self.embed(ids[0]).data[0].embedding, one_by_one[0])
        self.assertEqual([e.embedding for e in self.embed(ids).data], one_by_one)

    def test_base64_is_little_endian_f32(self):
        coded = self.raw({"input": TEXTS[0], "encoding_format": "base64"})[2]["data"][0]["embedding"]
        plain = self.raw({"input": TEXTS[0]})[2]["data"][0]["embedding"]
        data = base64.b64decode(coded, validate=True)
        self.assertEqual([struct.unpack("<f", struct.pack("<f", v))[0] for v in plain], list(struct.unpack(f"<{WIDTH}f", data)))

    def test_dimensions(self):
        whole = np.asarray(self.embed(TEXTS[0]).data[0].embedding)
        for count in (1, 7, WIDTH):
            cut = self.embed(TEXTS[0], dimensions=count).data[0].embedding
            self.assertEqual(len(cut), count)
            self.assertAlmostEqual(length(cut), 1, places=5)
            np.testing.assert_allclose(cut, whole[:count] / np.linalg.norm(whole[:count]), atol=1e-6)
        self.refused({"input": "x", "dimensions": WIDTH + 1}, "dimensions", f"have {WIDTH} numbers")

    def test_what_is_refused(self):
        self.refused({}, "input", "input is missing")
        self.refused({"input": []}, "input", "expected a string")
        self.refused({"input": 5}, "input", "expected a string")
        self.refused({"input": [[]]}, "input", "no tokens")
        self.refused({"input": ["x", 5]}, "input", "is 5")
        self.refused({"input": [600]}, "input", "names token 600, but the model has 600")
        self.refused({"input": "x", "encoding_format": "int8"}, "encoding_format", "expected float or base64")
        self.refused({"input": "x", "temperature": 1}, "temperature", "not supported by /v1/embeddings")
        self.refused({"input": "x", "stream": True}, "stream", "not supported by /v1/embeddings")
        self.refused({"input": ["x"] * 2049}, "input", "at most 2048")
        self.refused({"input": [5] * 2049}, "input", "has 2049 tokens, and the context holds 2048")
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="other", input="x")

    def test_a_text_that_fills_the_context(self):
        self.assertEqual(self.embed([5] * 2048).usage.prompt_tokens, 2048)
        cut = self.embed([6] + [5] * 2048, extra_body={"truncate_prompt_tokens": -1})
        self.assertEqual(cut.data[0].embedding, self.embed([5] * 2048).data[0].embedding)

    def test_says_that_the_model_is_not_made_for_it(self):
        headers = self.raw({"input": "x"})[1]
        self.assertIn("not made for embeddings", headers["X-Celer-Warning"])
        self.raw({"input": "x"})
        self.assertEqual(self.server.get("/server_info")[1]["embeddings"],
                         {"pooling": "mean", "pooling_from": "default", "dimensions": WIDTH, "meant": False})
        self.server.until("tiny is not made for embeddings")
        self.assertEqual(len(re.findall("not made for embeddings", self.server.log())), 1)

    def test_beside_answers(self):
        """Embeddings and texts run in the same steps, and change nothing about each other."""
        import concurrent.futures
        alone = self.embed(TEXTS[0]).data[0].embedding
        ask = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0}
        text = self.server.post("/v1/completions", ask)[1]["choices"][0]["text"]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            texts = [pool.submit(self.server.post, "/v1/completions", ask) for _ in range(6)]
            vectors = [pool.submit(self.embed, TEXTS[0]) for _ in range(6)]
            self.assertEqual([t.result()[1]["choices"][0]["text"] for t in texts], [text] * 6)
            self.assertEqual([v.result().data[0].embedding for v in vectors], [alone] * 6)
        self.server.idle()


class ModelCase(unittest.TestCase):
    """Folders as sentence-transformers writes them, with the weights of a golden model."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_embed_"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def model(self, name, modules=None, pooling=None):
        folder = self.folder / name
        shutil.copytree(GOLDEN / "models" / name, folder)
        vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        letters = {chr(0x21 + i): i for i in range(vocab)}
        (folder / "tokenizer.json").write_text(json.dumps({
            "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False,
            "trim_offsets": True, "use_regex": True}, "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": False,
            "trim_offsets": True, "use_regex": True}, "model": {"type": "BPE", "vocab": letters, "merges": []}}))
        if modules:
            (folder / "modules.json").write_text(json.dumps([
                {"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
                for i, kind in enumerate(modules)]))
        if pooling:
            (folder / "1_Pooling").mkdir()
            (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        return folder

    def serve(self, folder, *flags):
        os.environ["CELER_FORCE"] = "matmul:portable"  # products in float, as the reference has them
        try:
            server = Server(ServerCase.celer, folder, *flags, template=None, context=128)
        finally:
            del os.environ["CELER_FORCE"]
        self.addCleanup(server.kill)
        return server

    def check(self, server, name, pool):
        prompt = json.loads((GOLDEN / "models" / name / "golden.json").read_text())["prompt"]
        rows = load_file(GOLDEN / "hidden.safetensors")[name].astype(np.float64)
        expected = rows.mean(0) if pool == "mean" else rows[-1]
        status, answer = server.post("/v1/embeddings", {"input": prompt})
        self.assertEqual(status, 200, answer)
        # The KV in f16 is the one thing that the reference does not round.
        np.testing.assert_allclose(answer["data"][0]["embedding"], expected / np.linalg.norm(expected), atol=2e-3)

    def test_the_mean_by_default(self):
        server = self.serve(self.model("llama3"))
        self.check(server, "llama3", "mean")
        self.assertFalse(server.get("/server_info")[1]["embeddings"]["meant"])

    def test_as_the_folder_says(self):
        flags = {"word_embedding_dimension": 20, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False,
                 "pooling_mode_lasttoken": True, "include_prompt": True}
        server = self.serve(self.model("qwen3", ["Transformer", "Pooling", "Normalize"], flags))
        self.check(server, "qwen3", "last")
        self.assertEqual(server.get("/server_info")[1]["embeddings"],
                         {"pooling": "last", "pooling_from": "1_Pooling/config.json", "dimensions": 20, "meant": True})
        headers = server.request("POST", "/v1/embeddings", {"input": [1, 2]})[1]
        self.assertNotIn("X-Celer-Warning", headers)

    def test_what_cannot_be_done_is_said(self):
        folder = self.model("qwen2", ["Transformer", "Pooling"], {"pooling_mode_cls_token": True})
        status, answer = self.serve(folder).post("/v1/embeddings", {"input": [1, 2]})
        self.assertEqual(status, 400)
        self.assertIn("1_Pooling/config.json asks for 'cls_token' pooling", answer["error"]["message"])
        server = self.serve(folder, "--pooling", "last")  # the user knows better
        self.check(server, "qwen2", "last")
        self.assertEqual(server.get("/server_info")[1]["embeddings"]["pooling_from"], "--pooling")

    def test_modules_that_are_not_known(self):
        folder = self.model("smollm2", ["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True})
        server = self.serve(folder)
        status, answer = server.post("/v1/embeddings", {"input": [1, 2]})
        self.assertEqual(status, 400)
        self.assertIn("'Dense' module", answer["error"]["message"])
        self.assertEqual(server.post("/v1/completions", {"prompt": [1, 2], "max_tokens": 1})[0], 200)

    def test_a_folder_that_lies(self):
        """A pooling path that leads out of the folder, and files that are not what they should be, end the start with a sentence."""
        import subprocess
        for modules, says in (([{"type": "x.Pooling", "path": "../.."}], "modules.json"), ({"a": 1}, "modules.json"),
                              ([{"type": "x.Pooling", "path": "nothing"}], "nothing/config.json"), ([{"type": 5, "path": []}], None)):
            with self.subTest(modules=modules):
                folder = self.model("tinyllama")
                (folder / "modules.json").write_text(json.dumps(modules))
                if says is None:
                    self.assertEqual(self.serve(folder).post("/v1/embeddings", {"input": [1]})[0], 400)
                else:
                    result = subprocess.run([ServerCase.celer, "serve", folder, "--port", "0", "--device", "cpu", "--threads", "1"],
                                            text=True, capture_output=True, timeout=60)
                    self.assertNotEqual(result.returncode, 0)
                    self.assertIn(says, result.stderr)
                shutil.rmtree(folder)


if __name__ == "__main__":
    ServerCase.celer = sys.argv.pop(1)
    unittest.main()
