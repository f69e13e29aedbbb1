#!/usr/bin/env python3
"""Structured output and tools through celer serve: structured_test.py CELER. The model has random weights, so nothing is owed
to its good will."""
import json
import re
import sys
import unittest

from serving import ServerCase

try:
    import jsonschema
    import openai
except ImportError as missing:
    print(f"skipped: {missing}; tools/setup.sh installs it")
    sys.exit(77)

ASK = [{"role": "user", "content": "Weather?"}]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
          "required": ["name", "age", "tags"], "additionalProperties": False}
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
           "required": ["city", "days"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "A forecast", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}]


class StructuredCase(ServerCase):
    flags = ["--served-model-name", "tiny"]
    template = "qwen2_5_tools.jinja"

    def setUp(self):
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)

    def chat(self, **kwargs):
        return self.client.chat.completions.create(**{"model": "tiny", "messages": ASK, "max_tokens": 400, "temperature": 1, **kwargs})

    def test_schemas(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
        for seed in range(8):
            answer = self.chat(response_format=form, seed=seed).choices[0]
            self.assertEqual(answer.finish_reason, "stop")
            jsonschema.validate(json.loads(answer.message.content), PERSON)
        streamed = "".join(c.choices[0].delta.content or "" for c in self.chat(response_format=form, seed=0, stream=True))
        self.assertEqual(streamed, self.chat(response_format=form, seed=0).choices[0].message.content)
        for choice in self.chat(response_format=form, n=4, seed=9).choices:  # each answer has its own state
            jsonschema.validate(json.loads(choice.message.content), PERSON)

    def test_other_forms(self):
        for seed in range(3):
            text = self.chat(extra_body={"structured_outputs": {"regex": r"[A-F]{3}-\d{2}"}}, seed=seed).choices[0].message.content
            self.assertRegex(text, r"\A[A-F]{3}-\d{2}\Z")
            text = self.chat(extra_body={"structured_outputs": {"choice": ["yes", "no", "never"]}}, seed=seed).choices[0].message.content
            self.assertIn(text, ("yes", "no", "never"))
            text = self.chat(extra_body={"structured_outputs": {"grammar": 'root ::= "a" ("b" | "c")+ "d"'}}, seed=seed,
                             max_tokens=1000).choices[0].message.content
            self.assertRegex(text, r"\Aa[bc]+d?\Z")
        answer = self.chat(response_format={"type": "json_object"}, seed=1, max_tokens=600).choices[0]
        if answer.finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.message.content), dict)
        answer = self.client.responses.create(model="tiny", input="x", text={"format": {"type": "json_schema", "name": "p", "schema": PERSON}})
        jsonschema.validate(json.loads(answer.output_text), PERSON)
        text = self.client.completions.create(model="tiny", prompt="x", max_tokens=400,
                                              extra_body={"guided_choice": ["left", "right"]}).choices[0].text
        self.assertIn(text, ("left", "right"))

    def test_refusals(self):
        for body, says in (({"structured_outputs": {"regex": "("}}, ""), ({"structured_outputs": {"grammar": "root ::= nothing"}}, "nothing"),
                           ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "potato"}}}}, "#/type"),
                           ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"unevaluatedProperties": False,
                                                                                                              "type": "object"}}}},
                            "unevaluatedProperties"),
                           ({"structured_outputs": {"regex": "(a{1000}){1000}"}}, "")):
            status, answer = self.server.post("/v1/chat/completions", {"messages": ASK, "max_tokens": 5, **body})
            with self.subTest(body=body):
                self.assertEqual(status, 400, answer)
                self.assertIn(says, answer["error"]["message"])
                self.assertTrue(answer["error"]["param"].startswith(next(iter(body))), answer)

    def test_required_calls(self):
        for choice, names in (("required", {"weather", "stop"}), ({"type": "function", "function": {"name": "weather"}}, {"weather"})):
            for seed in range(4):
                whole = self.chat(tools=TOOLS, tool_choice=choice, seed=seed, parallel_tool_calls=False).choices[0]
                self.assertEqual(whole.finish_reason, "tool_calls")
                (call,) = whole.message.tool_calls
                self.assertIn(call.function.name, names)
                if call.function.name == "weather":
                    jsonschema.validate(json.loads(call.function.arguments), WEATHER)
                calls, finish = [], None
                for chunk in self.chat(tools=TOOLS, tool_choice=choice, seed=seed, parallel_tool_calls=False, stream=True):
                    calls += chunk.choices[0].delta.tool_calls or []
                    finish = chunk.choices[0].finish_reason or finish
                self.assertEqual(finish, "tool_calls")
                self.assertEqual([(c.function.name, c.function.arguments) for c in calls], [(call.function.name, call.function.arguments)])

    def test_calls_of_the_other_forms(self):
        answer = self.client.responses.create(model="tiny", input="x", tool_choice="required", parallel_tool_calls=False,
                                              tools=[{"type": "function", **tool["function"]} for tool in TOOLS])
        self.assertEqual([item.type for item in answer.output], ["function_call"])
        json.loads(answer.output[0].arguments)
        status, message = self.server.post("/v1/messages", {
            "max_tokens": 400, "messages": ASK, "tool_choice": {"type": "tool", "name": "weather"},
            "tools": [{"name": "weather", "input_schema": WEATHER}]})
        self.assertEqual(status, 200, message)
        self.assertEqual(message["stop_reason"], "tool_use")
        jsonschema.validate(message["content"][0]["input"], WEATHER)

    def test_a_required_call_that_is_cut(self):
        """A call as far as it goes, never its text."""
        named = {"type": "function", "function": {"name": "weather"}}
        seen = set()
        for limit in (1, 8, 20, 30, 36, 40, 45, 50):
            for choice in ("required", named):
                ask = {"tools": TOOLS, "tool_choice": choice, "seed": 3, "max_tokens": limit}
                whole = self.chat(**ask).choices[0]
                if whole.finish_reason == "tool_calls":
                    continue
                calls = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or []]
                self.assertEqual((whole.finish_reason, whole.message.content or ""), ("length", ""))
                if choice == named:
                    self.assertEqual([name for name, _ in calls], ["weather"])
                seen |= {arguments for _, arguments in calls}
                streamed, text, finish = [], "", None
                for chunk in self.chat(**ask, stream=True):
                    streamed += [(c.function.name, c.function.arguments) for c in chunk.choices[0].delta.tool_calls or []]
                    text += chunk.choices[0].delta.content or ""
                    finish = chunk.choices[0].finish_reason or finish
                self.assertEqual((streamed, text, finish), (calls, "", "length"))
        self.assertTrue(any(arguments.startswith("{") and not arguments.endswith("}") for arguments in seen), seen)
        tools = [{"name": "weather", "input_schema": WEATHER}]
        for limit in (1, 20, 45, 50):
            status, message = self.server.post("/v1/messages", {"max_tokens": limit, "messages": ASK, "tools": tools, "seed": 3,
                                                                "tool_choice": {"type": "any"}})
            self.assertEqual(status, 200, message)
            self.assertEqual([(block["type"], block["name"]) for block in message["content"]], [("tool_use", "weather")])
            self.assertIsInstance(message["content"][0]["input"], dict)
            self.assertEqual(message["stop_reason"], "max_tokens")
        answer = self.client.responses.create(model="tiny", input="x", tool_choice="required", max_output_tokens=45,
                                              tools=[{"type": "function", **TOOLS[0]["function"]}])
        self.assertEqual((answer.status, [(item.type, item.status) for item in answer.output]), ("incomplete", [("function_call", "incomplete")]))

    def test_one_call_at_a_time(self):
        tools = [{"name": "weather", "input_schema": WEATHER}, {"name": "stop", "input_schema": {"type": "object", "properties": {}}}]
        ask = {"max_tokens": 300, "messages": ASK, "tools": tools}
        counts = {False: [], True: []}
        for seed in range(6):
            for off in counts:
                choice = {"type": "any", "disable_parallel_tool_use": off}
                status, message = self.server.post("/v1/messages", {**ask, "seed": seed, "tool_choice": choice})
                self.assertEqual(status, 200, message)
                counts[off].append(sum(block["type"] == "tool_use" for block in message["content"]))
        self.assertEqual(counts[True], [1] * 6)
        self.assertGreater(max(counts[False]), 1)  # else nothing was tried

    def test_allowed_tools(self):
        for seed in range(4):
            choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "stop"}}]}}
            whole = self.chat(tools=TOOLS, tool_choice=choice, seed=seed, parallel_tool_calls=False).choices[0]
            self.assertEqual([call.function.name for call in whole.message.tool_calls], ["stop"])
            answer = self.client.responses.create(
                model="tiny", input="x", parallel_tool_calls=False, tools=[{"type": "function", **tool["function"]} for tool in TOOLS],
                tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]})
            self.assertEqual([item.name for item in answer.output], ["weather"])
        choice["allowed_tools"]["tools"][0]["function"]["name"] = "other"
        with self.assertRaises(openai.BadRequestError) as refused:
            self.chat(tools=TOOLS, tool_choice=choice)
        self.assertEqual(refused.exception.param, "tool_choice")

    def test_a_conversation_with_calls(self):
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 2}'}}
        messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
        self.assertEqual(self.chat(messages=messages, tools=TOOLS, max_tokens=3).usage.completion_tokens, 3)
        tokens = self.server.post("/tokenize", {"messages": messages, "tools": TOOLS})[1]["tokens"]
        text = self.server.post("/detokenize", {"tokens": tokens, "skip_special_tokens": False})[1]["prompt"]
        self.assertIn('<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>', text)
        self.assertTrue(re.search(r"<tool_response>\s*rain\s*</tool_response>", text), text)


class SyntaxesCase(ServerCase):
    """A required call in the syntax of each template, whole, streamed and cut."""
    flags = ["--served-model-name", "tiny"]
    templates = ["gpt_oss", "glm4.6", "qwen3_coder", "seed_oss_36b", "mistral_small_3.2", "mistral_nemo_instruct_2407", "granite_3.3", "granite_4.0"]

    def test_required_calls(self):
        for name in self.templates:
            server = self.start(*self.flags, template=f"published/{name}.jinja", context=8192)
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            ask = {"model": "tiny", "messages": ASK, "temperature": 1, "tools": TOOLS[:1], "tool_choice": "required", "seed": 1,
                   "parallel_tool_calls": False}
            with self.subTest(template=name):
                whole = client.chat.completions.create(max_tokens=400, **ask).choices[0]
                self.assertEqual(whole.finish_reason, "tool_calls", whole)
                (call,) = whole.message.tool_calls
                self.assertEqual(call.function.name, "weather")
                jsonschema.validate(json.loads(call.function.arguments), WEATHER)
                self.assertFalse(whole.message.content)
                streamed = []
                for chunk in client.chat.completions.create(max_tokens=400, stream=True, **ask):
                    streamed += [(c.function.name, c.function.arguments) for c in chunk.choices[0].delta.tool_calls or []]
                self.assertEqual(streamed, [("weather", call.function.arguments)])
                cut = client.chat.completions.create(max_tokens=12, **ask).choices[0]
                self.assertEqual((cut.finish_reason, cut.message.content or "", cut.message.tool_calls[0].function.name),
                                 ("length", "", "weather"))
            server.kill()


if __name__ == "__main__":
    ServerCase.celer = sys.argv.pop(1)
    unittest.main()
