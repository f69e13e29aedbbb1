#!/usr/bin/env python3
"""Clients that are too large for every test run, against celer serve: more_clients_test.py CELER.
LangChain's and LlamaIndex's models, llm, lm-eval's local-completions, and schemathesis on /openapi.json.
tools/test_clients.sh makes venvs with them; what is missing is skipped by name."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

from serving import ServerCase

BIN = pathlib.Path(sys.executable).parent
PACKAGES = {"langchain_openai": "langchain-openai", "llama_index": "llama-index-llms-openai-like", "llm": "llm", "lm_eval": "lm-eval", "schemathesis": "schemathesis"}
MISSING = {module for module in PACKAGES if not importlib.util.find_spec(module)}


def needs(module):
    return unittest.skipIf(module in MISSING, f"{PACKAGES[module]} is not installed; tools/test_clients.sh does it")


def run(*command, env=None, seconds=600, **kwargs):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=seconds,
                          env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", **(env or {})}, **kwargs)


class MoreClients(ServerCase):
    flags = ["--served-model-name", "tiny"]


@needs("langchain_openai")
class LangChain(MoreClients):
    template = "hermes_tools.jinja"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from langchain_openai import ChatOpenAI
        cls.chat = ChatOpenAI(base_url=cls.server.url + "/v1", api_key="none", model="tiny", temperature=0, max_tokens=24, max_retries=0,
                              stream_usage=True)

    def test_whole_streamed_and_batched(self):
        whole = self.chat.invoke([("system", "Be brief."), ("human", "Why is the sky blue?")])
        self.assertEqual(whole.usage_metadata["output_tokens"], 24)
        self.assertEqual(whole.response_metadata["finish_reason"], "length")
        streamed = list(self.chat.stream([("system", "Be brief."), ("human", "Why is the sky blue?")]))
        self.assertGreater(len(streamed), 2)
        self.assertEqual("".join(chunk.content for chunk in streamed), whole.content)
        self.assertEqual(sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in streamed), 24)
        batch = self.chat.batch(["Why is the sky blue?", "What is rain?", "Why is the sky blue?"])
        self.assertEqual(batch[0].content, batch[2].content)
        self.assertNotEqual(batch[0].content, batch[1].content)

    def test_async(self):
        import asyncio

        async def ask():
            whole = await self.chat.ainvoke("What is rain?")
            return whole.content, "".join([chunk.content async for chunk in self.chat.astream("What is rain?")])
        whole, streamed = asyncio.run(ask())
        self.assertEqual(whole, streamed)

    def test_structured_output(self):
        schema = {"title": "Weather", "description": "What it is like outside.", "type": "object", "required": ["sky", "degrees"], "additionalProperties": False,
                  "properties": {"sky": {"enum": ["blue", "grey"]}, "degrees": {"type": "integer", "minimum": -9, "maximum": 9}}}
        for method in ("json_schema", "function_calling"):
            with self.subTest(method=method):
                answer = self.chat.with_structured_output(schema, method=method).invoke("The weather?", max_tokens=200)
                self.assertIn(answer["sky"], ("blue", "grey"))
                self.assertIsInstance(answer["degrees"], int)

    def test_tools(self):
        from typing import Literal
        from langchain_core.tools import tool

        @tool
        def weather(city: Literal["Rome", "Oslo"]) -> str:
            """The weather of a city."""
            return city
        bound = self.chat.bind_tools([weather], tool_choice="required")
        call = bound.invoke("Rain in Rome?", max_tokens=400).tool_calls[0]
        self.assertEqual(call["name"], "weather")
        self.assertIn(call["args"]["city"], ("Rome", "Oslo"))
        streamed = None
        for chunk in bound.stream("Rain in Rome?", max_tokens=400):
            streamed = chunk if streamed is None else streamed + chunk
        self.assertEqual(streamed.tool_calls[0]["args"], call["args"])


@needs("llama_index")
class LlamaIndex(MoreClients):
    template = "hermes_tools.jinja"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from llama_index.core.llms import ChatMessage
        from llama_index.embeddings.openai_like import OpenAILikeEmbedding
        from llama_index.llms.openai_like import OpenAILike
        at = {"api_base": cls.server.url + "/v1", "api_key": "none"}
        cls.llm = OpenAILike(model="tiny", is_chat_model=True, is_function_calling_model=True, context_window=2048, temperature=0, max_tokens=24,
                             max_retries=0, **at)
        cls.text = OpenAILike(model="tiny", is_chat_model=False, context_window=2048, temperature=0, max_tokens=24, max_retries=0, **at)
        cls.embedding = OpenAILikeEmbedding(model_name="tiny", max_retries=0, **at)
        cls.messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Why is the sky blue?")]

    def test_chat_and_text_whole_and_streamed(self):
        whole = self.llm.chat(self.messages)
        self.assertEqual(whole.raw.usage.completion_tokens, 24)
        streamed = list(self.llm.stream_chat(self.messages))
        self.assertGreater(len(streamed), 2)
        self.assertEqual(streamed[-1].message.content, whole.message.content)
        self.assertEqual("".join(part.delta or "" for part in streamed), whole.message.content)
        text = self.text.complete("Why is the sky blue?").text
        self.assertTrue(text)
        self.assertEqual("".join(part.delta or "" for part in self.text.stream_complete("Why is the sky blue?")), text)

    def test_async(self):
        import asyncio

        async def ask():
            whole = await self.llm.achat(self.messages)
            return whole.message.content, "".join([part.delta or "" async for part in await self.llm.astream_chat(self.messages)])
        whole, streamed = asyncio.run(ask())
        self.assertEqual(whole, streamed)
        self.assertTrue(whole)

    def test_tools(self):
        from typing import Literal
        from llama_index.core.tools import FunctionTool

        def weather(city: Literal["Rome", "Oslo"]) -> str:
            """The weather of a city."""
            return city
        answer = self.llm.chat_with_tools([FunctionTool.from_defaults(weather)], "Rain in Rome?", tool_required=True, max_tokens=400)
        (call,) = self.llm.get_tool_calls_from_response(answer)
        self.assertEqual(call.tool_name, "weather")
        self.assertIn(call.tool_kwargs["city"], ("Rome", "Oslo"))

    def test_index(self):
        """Documents are embedded, the nearest ones found, and a question is answered out of them."""
        import numpy as np
        from llama_index.core import Document, VectorStoreIndex
        texts = ["Rain is water that falls out of clouds.", "Iron is a metal that rusts.", "Honey is made by bees."]
        vectors = np.array(self.embedding.get_text_embedding_batch(texts))
        np.testing.assert_allclose(vectors[1], self.embedding.get_text_embedding(texts[1]), atol=1e-3)
        index = VectorStoreIndex.from_documents([Document(text=text) for text in texts], embed_model=self.embedding)
        (found,) = index.as_retriever(similarity_top_k=1).retrieve(texts[2])
        self.assertEqual(found.text, texts[2])
        answer = index.as_query_engine(llm=self.llm, similarity_top_k=2).query("Who makes honey?")
        self.assertTrue(str(answer))
        self.assertEqual(len(answer.source_nodes), 2)


@needs("llm")
class Llm(MoreClients):
    def llm(self, *args):
        done = run(BIN / "llm", *args, env={"LLM_USER_PATH": str(self.folder / "llm")})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.rstrip("\n")

    def test_prompt_and_conversation(self):
        (self.folder / "llm").mkdir()
        (self.folder / "llm" / "extra-openai-models.yaml").write_text(
            f"- model_id: tiny\n  model_name: tiny\n  api_base: {self.server.url}/v1\n  supports_schema: true\n"
            f"- model_id: tiny-text\n  model_name: tiny\n  api_base: {self.server.url}/v1\n  completion: true\n")
        options = ["-o", "temperature", "0", "-o", "max_tokens", "12"]
        streamed = self.llm("-m", "tiny", *options, "Why is the sky blue?")
        self.assertTrue(streamed)
        self.assertEqual(self.llm("-m", "tiny", *options, "--no-stream", "Why is the sky blue?"), streamed)
        # -c goes on with the conversation that llm keeps; the same by hand gives the same.
        more = self.llm("-c", *options, "And at night?")
        self.assertEqual(json.loads(self.llm("logs", "-n", "1", "--json"))[0]["response"], more)
        self.assertTrue(self.llm("-m", "tiny-text", *options, "Once upon a time"))
        shaped = self.llm("-m", "tiny", "-o", "temperature", "0", "-o", "max_tokens", "300", "--schema",
                          json.dumps({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
                                      "required": ["n"], "additionalProperties": False}), "A number?")
        self.assertIsInstance(json.loads(shaped)["n"], int)


@needs("lm_eval")
class LmEval(MoreClients):
    TASKS = {
        "choose": {"output_type": "multiple_choice", "doc_to_text": "Question: {{question}}\nAnswer:", "doc_to_target": "{{answer}}",
                   "doc_to_choice": "{{choices}}", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]},
        "roll": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}}",
                 "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]},
        "write": {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{choices[answer]}}",
                  "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 8}, "metric_list": [{"metric": "exact_match"}]},
    }

    def evaluate(self, out, batch=1, **args):
        model_args = {"model": "tiny", "base_url": self.server.url + "/v1/completions", "max_length": 1024, **args}
        done = run(BIN / "lm_eval", "run", "--model", "local-completions", "--model_args", ",".join(f"{k}={v}" for k, v in model_args.items()),
                   "--batch_size", batch, "--tasks", ",".join(self.TASKS), "--include_path", self.folder / "tasks", "--output_path", self.folder / out,
                   env={"OPENAI_API_KEY": "none", "HF_HOME": str(self.folder / "hf")})
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return json.loads(next((self.folder / out).rglob("results*.json")).read_text())["results"]

    def test_local_task(self):
        (self.folder / "tasks").mkdir()
        docs = [{"question": f"What is {i} and {i}?", "choices": [str(2 * i), str(2 * i + 1), "nothing"], "answer": 0} for i in range(20)]
        (self.folder / "docs.jsonl").write_text("".join(json.dumps(doc) + "\n" for doc in docs))
        for name, task in self.TASKS.items():
            (self.folder / "tasks" / f"{name}.yaml").write_text(json.dumps({
                "task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(self.folder / "docs.jsonl")}},
                "test_split": "test", **task}))
        one = self.evaluate("one")
        self.assertTrue(0 <= one["choose"]["acc,none"] <= 1)
        self.assertGreater(one["roll"]["word_perplexity,none"], 1)
        # In batches and many at once the figures are the same.
        many = self.evaluate("many", batch=4, num_concurrent=4)
        for task in self.TASKS:
            for metric, value in one[task].items():
                if isinstance(value, float):
                    self.assertAlmostEqual(many[task][metric], value, places=4, msg=f"{task} {metric}")
        # The score of one choice, by hand.
        context, choice = "Question: What is 1 and 1?\nAnswer:", " 2"
        scored = self.server.post("/v1/completions", {"prompt": context + choice, "echo": True, "logprobs": 1, "max_tokens": 0})[1]
        self.assertEqual("".join(scored["choices"][0]["logprobs"]["tokens"]), context + choice)


@needs("schemathesis")
class Schemathesis(MoreClients):
    flags = ["--served-model-name", "tiny", "--max-seconds", "5"]

    def test_no_request_breaks_it(self):
        """Valid and invalid data for every route. Checks: no 5xx, only statuses, content types and bodies that the
        description names, invalid data refused."""
        (self.folder / "schemathesis.toml").write_text("")
        checks = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
                  "unsupported_method", "negative_data_rejection"]
        done = run(BIN / "schemathesis", "--config-file", self.folder / "schemathesis.toml", "run", self.server.url + "/openapi.json",
                   "--checks", ",".join(checks), "--mode", "all", "--phases", "examples,coverage,fuzzing", "--max-examples", EXAMPLES, "--seed", "1",
                   "--request-timeout", "60", "--continue-on-failure", "--generation-database", "none", "--suppress-health-check", "all", seconds=3600, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stdout[-12000:] + done.stderr[-2000:])
        print(done.stdout[-1500:])
        self.server.idle()
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "Once", "max_tokens": 4})[0], 200)


EXAMPLES = os.environ.get("CELER_SCHEMATHESIS_EXAMPLES", "50")

if __name__ == "__main__":
    ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    if len(MISSING) == len(PACKAGES):
        print(f"skipped: none of {', '.join(PACKAGES.values())} is installed; tools/test_clients.sh does it")
        sys.exit(77)
    unittest.main()
