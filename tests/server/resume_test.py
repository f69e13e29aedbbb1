#!/usr/bin/env python3
"""Interrupted answers that go on where they ended: resume_test.py CELER. The rest of a stream must be the same, chunk for
chunk, on another server with another batch, chunk size and cache, wherever it was cut."""
import json
import pathlib
import sys
import unittest

from fleet import resume
from serving import ServerCase

TALK = [{"role": "user", "content": "Tell me about the sea, please."}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
          "required": ["name", "age"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}}}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def chunks(server, path, body):
    status, _, data = server.request("POST", path, {"stream": True, **body})
    if status != 200:
        raise AssertionError(f"status {status}: {data[:500]}")
    lines = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", lines[-1]
    return [json.loads(line) for line in lines[:-1]]


def plain(chunk):
    """Without what differs between two answers to the same question: names, times, what was cached, what a chunk was told of seeds."""
    chunk = {name: value for name, value in chunk.items() if name not in ("id", "created", "resume")}
    if chunk.get("usage"):
        chunk["usage"] = {**chunk["usage"], "prompt_tokens_details": None}
    for choice in chunk["choices"]:
        for call in choice.get("delta", {}).get("tool_calls") or []:
            call.pop("id")
    return chunk


def is_start(chunk):
    return "resume" in chunk or any("role" in choice.get("delta", {}) for choice in chunk["choices"])


class Resuming(ServerCase):
    flags = ["--served-model-name", "tiny"]
    template = "qwen2_5_tools.jinja"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.other = cls.start(*cls.flags, "--chunk", "5")

    def cut_everywhere(self, path, body, step=1):
        body = {"model": "tiny", "stream_options": {"include_usage": True}, **body}
        whole = chunks(self.server, path, {**body, "resume": {}})
        told = next(chunk["resume"] for chunk in whole if "resume" in chunk)
        self.assertEqual(sum("resume" in chunk for chunk in whole), 1)
        if "seed" in body:
            self.assertEqual(told["seed"], body["seed"])
        whole = [plain(chunk) for chunk in whole if not is_start(chunk)]
        tokens, count = [], 0
        for at, chunk in enumerate(whole):
            ids = [token for choice in chunk["choices"] for token in choice.get("token_ids", [])]
            if not ids:
                continue
            tokens += ids
            count += 1
            if count % step and at + 2 < len(whole):
                continue
            rest = chunks(self.other, path, {**body, "resume": {**told, "token_ids": tokens}})
            rest = [plain(chunk) for chunk in rest if not is_start(chunk)]
            wanted = whole[at + 1:]
            if chunk["choices"][0]["finish_reason"]:  # the end is reported again, without the token
                wanted = [json.loads(json.dumps(chunk)), *wanted]
                choice = wanted[0]["choices"][0]
                choice.pop("token_ids")
                choice["logprobs"] = None
                if "text" in choice:
                    choice["text"] = ""
            self.assertEqual(rest, wanted, f"behind {len(tokens)} tokens")
        self.assertEqual(len(tokens), whole[-1]["usage"]["completion_tokens"])
        return whole, tokens

    def test_text(self):
        for sampling in ({"temperature": 0}, {"temperature": 1.2, "top_p": 0.9, "seed": 3},
                         {"temperature": 0.9, "min_p": 0.01, "frequency_penalty": 0.8, "repetition_penalty": 1.3, "seed": 2 ** 63 + 7}):
            whole, tokens = self.cut_everywhere(TEXT, {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True, **sampling})
            self.assertEqual(len(tokens), 40)
            # Sampled pieces end within a character now and then, so that text comes late.
            if sampling["temperature"]:
                self.assertIn("", [chunk["choices"][0]["text"] for chunk in whole if chunk["choices"]])

    def test_chat(self):
        self.cut_everywhere(CHAT, {"messages": TALK, "max_tokens": 30, "seed": 5})

    def test_logprobs(self):
        self.cut_everywhere(CHAT, {"messages": TALK, "max_tokens": 12, "seed": 5, "logprobs": True, "top_logprobs": 2})
        self.cut_everywhere(TEXT, {"prompt": "Once", "max_tokens": 12, "seed": 5, "logprobs": 2})

    def test_stop_string(self):
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks(
            self.server, TEXT, {"prompt": "A", "max_tokens": 60, "seed": 9, "ignore_eos": True}))
        stop = next(text[i:i + 3] for i in range(15, len(text)) if "\ufffd" not in text[i:i + 3] and text.find(text[i:i + 3]) == i)
        for more in ({}, {"include_stop_str_in_output": True}):
            whole, _ = self.cut_everywhere(TEXT, {"prompt": "A", "max_tokens": 60, "seed": 9, "ignore_eos": True, "stop": [stop], **more})
            self.assertEqual(whole[-2]["choices"][0]["stop_reason"], stop)

    def test_stop_token(self):
        _, tokens = self.cut_everywhere(TEXT, {"prompt": "A", "max_tokens": 20, "seed": 9, "ignore_eos": True}, step=19)
        whole, _ = self.cut_everywhere(TEXT, {"prompt": "A", "max_tokens": 20, "seed": 9, "stop_token_ids": [tokens[9]], "ignore_eos": True})
        self.assertEqual(whole[-2]["choices"][0]["finish_reason"], "stop")

    def test_schema(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        whole, _ = self.cut_everywhere(CHAT, {"messages": TALK, "max_tokens": 300, "seed": 4, "temperature": 1, "response_format": form}, step=3)
        self.assertEqual(set(json.loads("".join(c["choices"][0]["delta"].get("content", "") for c in whole if c["choices"]))), {"name", "age"})

    def test_tool_calls(self):
        whole, _ = self.cut_everywhere(CHAT, {"messages": TALK, "max_tokens": 300, "seed": 4, "tools": TOOLS, "tool_choice": "required"}, step=2)
        self.assertEqual(whole[-2]["choices"][0]["finish_reason"], "tool_calls")

    def test_not_streamed(self):
        body = {"model": "tiny", "messages": TALK, "max_tokens": 20, "ignore_eos": True}
        whole = self.server.post(CHAT, {**body, "resume": {}})[1]
        tokens, said = whole["choices"][0]["token_ids"], whole["resume"]
        self.assertEqual(len(tokens), 20)
        # It rides in the metadata through routers that know no such field.
        rest = self.other.post(CHAT, {**body, "metadata": {"celer_resume": json.dumps({**said, "token_ids": tokens[:7]})}})[1]
        self.assertEqual(rest["choices"][0]["token_ids"], tokens[7:])
        self.assertTrue(whole["choices"][0]["message"]["content"].endswith(rest["choices"][0]["message"]["content"]))
        self.assertEqual(rest["usage"]["completion_tokens"], 20)

    def test_the_client_goes_on(self):
        body = {"model": "tiny", "messages": TALK, "max_tokens": 25, "ignore_eos": True, "stream_options": {"include_usage": True}}
        whole = list(resume.stream(self.server.url, CHAT, {**body, "seed": 8}))
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in whole if chunk["choices"])
        self.assertEqual(len({chunk["id"] for chunk in whole}), 1)
        victim = self.start(*self.flags)
        said, servers = [], [victim.url, self.other.url]
        for chunk in resume.stream(servers, CHAT, {**body, "seed": 8}, through_metadata=True):
            said.append(chunk)
            if len(said) == 5:
                victim.kill()
        self.assertEqual("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in said if chunk["choices"]), text)
        self.assertEqual([plain(chunk) for chunk in said], [plain(chunk) for chunk in whole])
        self.assertEqual(len({chunk["id"] for chunk in said}), 1)
        with self.assertRaisesRegex(resume.ResumeError, "3 attempts in a row failed"):
            list(resume.stream(victim.url, CHAT, body, attempts=3))
        with self.assertRaisesRegex(resume.ResumeError, "max_tokens"):
            list(resume.stream(self.server.url, CHAT, {**body, "max_tokens": "many"}))

    def test_hostile_input(self):
        text = {"model": "tiny", "prompt": "Once", "max_tokens": 16}
        chat = {"model": "tiny", "messages": TALK, "max_tokens": 16}
        said = self.server.post(TEXT, {**text, "resume": {}})[1]["resume"]
        form = {"structured_outputs": {"regex": "[ab]{4,9}"}, "temperature": 0}
        for path, body, words in (
                (TEXT, {**text, "resume": {"token_ids": [1, 600], "seed": 1}}, r"token_ids\[1\] is 600, but the model has 600 tokens"),
                (TEXT, {**text, "resume": {"token_ids": [-1], "seed": 1}}, "resume.token_ids is -1"),
                (TEXT, {**text, "resume": {"token_ids": [0.5], "seed": 1}}, "resume.token_ids is 0.5"),
                (TEXT, {**text, "resume": {"token_ids": [1e30], "seed": 1}}, "resume.token_ids"),
                (TEXT, {**text, "resume": {"token_ids": "1 2", "seed": 1}}, "resume.token_ids is '1 2'"),
                (TEXT, {**text, "resume": {"token_ids": [5] * 17, "seed": 1}}, "17 tokens, but the answer may have 16"),
                (TEXT, {**text, "max_tokens": 100_000, "resume": {"token_ids": [5] * 100_000, "seed": 1}}, "context"),
                (TEXT, {**text, "resume": {"token_ids": [5] * 100_000, "seed": 1}}, "100000 tokens, but the answer may have 16"),
                (CHAT, {**chat, "max_tokens": None, "resume": {"token_ids": [5] * 100_000, "seed": 1}}, "100000 tokens, but the answer may"),
                (TEXT, {**text, "seed": 4, "resume": {"token_ids": [5], "seed": 5}}, "seed is 4, .* resume.seed, 5"),
                (TEXT, {**text, "resume": {"token_ids": [5]}}, "resume.seed is missing"),
                (TEXT, {**text, "resume": {"seed": "x"}}, "resume.seed is 'x'"),
                (TEXT, {**text, "resume": {"seed": 2 ** 70}}, "resume.seed is"),
                (TEXT, {**text, "resume": {"fingerprint": 5}}, "resume.fingerprint is 5"),
                (TEXT, {**text, "prompt": "Twice", "resume": {**said, "token_ids": [5]}}, "resume.fingerprint is"),
                (TEXT, {**text, "temperature": 0.5, "resume": {**said, "token_ids": [5]}}, "resume.fingerprint is"),
                (TEXT, {**text, "resume": {"ids": [5]}}, "'resume.ids' is not supported"),
                (TEXT, {**text, "resume": [5]}, "resume is an array"),
                (TEXT, {**text, "n": 2, "resume": {}}, "n above 1"),
                (TEXT, {**text, "best_of": 2, "resume": {}}, "best_of above 1"),
                (TEXT, {**text, "beam_width": 2, "resume": {}}, "beam search"),
                (TEXT, {**text, "echo": True, "resume": {}}, "echo"),
                (TEXT, {**text, "prompt": ["a", "b"], "resume": {}}, "several prompts"),
                (TEXT, {**text, **form, "resume": {"token_ids": [5, 6, 7]}}, "the form of the answer"),
                (TEXT, {**text, "stop_token_ids": [7], "resume": {"token_ids": [5, 7, 9], "seed": 1}}, r"token_ids\[1\] ends the answer, but 1 more"),
                (CHAT, {**chat, "metadata": {"celer_resume": "{"}}, "metadata.celer_resume"),
                (CHAT, {**chat, "metadata": {"celer_resume": "[" * 5000}}, "metadata.celer_resume"),
                (CHAT, {**chat, "metadata": {"celer_resume": "{}"}, "resume": {}}, "both"),
                ("/v1/responses", {"model": "tiny", "input": "hi", "resume": {}}, "resume"),
        ):
            status, answer = self.server.post(path, body)
            with self.subTest(words=words):
                self.assertEqual(status, 400, answer)
                message = answer["error"]["message"]
                self.assertRegex(message, words)
                self.assertLess(len(message), 300)
        self.server.idle()
        # Tokens that this model never chose are continued like any others.
        status, answer = self.server.post(TEXT, {**text, "ignore_eos": True, "resume": {"token_ids": [5, 5, 5], "seed": 1}})
        self.assertEqual((status, len(answer["choices"][0]["token_ids"])), (200, 13))


if __name__ == "__main__":
    ServerCase.celer = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
