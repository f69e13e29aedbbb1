#!/usr/bin/env python3
"""The clients that people use, against celer serve: clients_test.py CELER. The real openai and anthropic packages."""
import asyncio
import json
import sys

import unittest

from serving import ServerCase

try:
    import anthropic
    import openai
except ImportError as missing:
    print(f"skipped: {missing}; tools/setup.sh installs it")
    sys.exit(77)

ASK = [{"role": "user", "content": "Why is the sky blue?"}]


class ClientsCase(ServerCase):
    flags = ["--served-model-name", "tiny"]

    def setUp(self):
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)

    def chat(self, **kwargs):
        return self.client.chat.completions.create(**{"model": "tiny", "messages": ASK, "max_tokens": 12, "temperature": 0,
                                                      **kwargs})

    def complete(self, **kwargs):
        return self.client.completions.create(**{"model": "tiny", "prompt": "Once upon a time", "max_tokens": 8,
                                                 "temperature": 0, **kwargs})

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").id, "tiny")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_a_stream_is_the_whole_answer_in_pieces(self):
        whole = self.chat()
        self.assertEqual(whole.object, "chat.completion")
        self.assertEqual(whole.choices[0].finish_reason, "length")
        self.assertEqual(whole.usage.completion_tokens, 12)
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[0].choices[0].delta.content, "")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks[:-1]), whole.choices[0].message.content)
        self.assertEqual([c.choices[0].finish_reason for c in chunks[:-1]], [None] * (len(chunks) - 2) + ["length"])
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(chunks[-1].usage.prompt_tokens, whole.usage.prompt_tokens)
        self.assertEqual(len({c.id for c in chunks}), 1)
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))

    def test_frames_are_those_of_openai(self):
        body = {"messages": ASK, "max_tokens": 3, "temperature": 0, "stream": True}
        status, headers, data = self.server.request("POST", "/v1/chat/completions", body)
        self.assertEqual(status, 200)
        self.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
        frames = data.decode().split("\n\n")
        self.assertEqual(frames[-1], "")
        self.assertEqual(frames[-2], "data: [DONE]")
        for frame in frames[:-2]:
            self.assertTrue(frame.startswith("data: {"), frame)
            self.assertNotIn("usage", json.loads(frame[6:]))

    def test_many_at_once(self):
        alone = self.chat().choices[0].message.content

        async def ask():
            async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0) as client:
                async def one(stream):
                    answer = await client.chat.completions.create(model="tiny", messages=ASK, max_tokens=12, temperature=0,
                                                                  stream=stream)
                    if not stream:
                        return answer.choices[0].message.content
                    return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
                return await asyncio.gather(*[one(i % 2 == 0) for i in range(24)])

        self.assertEqual(asyncio.run(ask()), [alone] * 24)

    def test_logprobs(self):
        entries = self.chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
        self.assertEqual(len(entries), 12)
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.token, entry.top_logprobs[0].token)  # temperature 0 takes the likeliest
            self.assertAlmostEqual(entry.logprob, entry.top_logprobs[0].logprob, places=5)
            self.assertLess(entry.logprob, 0)
        streamed = [entry for chunk in self.chat(logprobs=True, top_logprobs=3, stream=True)
                    for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])]
        self.assertEqual([e.logprob for e in streamed], [e.logprob for e in entries])

    def test_completions_in_batches(self):
        one = self.complete().choices[0].text
        two = self.complete(prompt="The quick brown fox").choices[0].text
        both = self.complete(prompt=["Once upon a time", "The quick brown fox"])
        self.assertEqual([c.text for c in both.choices], [one, two])
        self.assertEqual([c.index for c in both.choices], [0, 1])
        ids = self.server.post("/tokenize", {"prompt": "Once upon a time"})[1]["tokens"]
        self.assertEqual(self.complete(prompt=ids).choices[0].text, one)
        self.assertEqual([c.text for c in self.complete(prompt=[ids, ids]).choices], [one, one])
        streamed = {0: "", 1: ""}
        for chunk in self.complete(prompt=["Once upon a time", "The quick brown fox"], stream=True):
            streamed[chunk.choices[0].index] += chunk.choices[0].text
        self.assertEqual([streamed[0], streamed[1]], [one, two])

    def test_echo_as_lm_eval_asks_for_it(self):
        prompt = "Once upon a time there was"
        answer = self.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=1)
        choice = answer.choices[0]
        self.assertTrue(choice.text.startswith(prompt))
        tokens = self.server.post("/tokenize", {"prompt": prompt})[1]["count"]
        self.assertEqual(len(choice.logprobs.tokens), tokens + 1)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertTrue(all(value < 0 for value in choice.logprobs.token_logprobs[1:]))
        self.assertEqual(len(choice.logprobs.top_logprobs), tokens + 1)
        self.assertEqual(choice.logprobs.text_offset[0], 0)
        # The prompt alone, as for a score.
        scored = self.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=0).choices[0]
        self.assertEqual(scored.text, prompt)
        self.assertEqual(scored.logprobs.token_logprobs, choice.logprobs.token_logprobs[:-1])

    def test_several_answers(self):
        answers = self.chat(n=3, temperature=1, seed=7, max_tokens=10).choices
        self.assertEqual([a.index for a in answers], [0, 1, 2])
        self.assertEqual(len({a.message.content for a in answers}), 3)
        again = self.chat(n=3, temperature=1, seed=7, max_tokens=10).choices
        self.assertEqual([a.message.content for a in again], [a.message.content for a in answers])
        streamed = ["", "", ""]
        for chunk in self.chat(n=3, temperature=1, seed=7, max_tokens=10, stream=True):
            streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        self.assertEqual(streamed, [a.message.content for a in answers])
        best = self.complete(best_of=4, n=1, temperature=1, seed=3)
        self.assertEqual(len(best.choices), 1)
        beams = self.complete(n=2, extra_body={"use_beam_search": True})
        self.assertEqual(len(beams.choices), 2)

    def test_what_ends_an_answer(self):
        ids = self.complete(extra_body={"return_token_ids": True}).choices[0]
        text, tokens = ids.text, ids.token_ids
        stop = text[3:5]
        stopped = self.complete(stop=[stop]).choices[0]
        self.assertEqual(stopped.finish_reason, "stop")
        self.assertEqual(stopped.text, text[:text.index(stop)])
        self.assertEqual(stopped.stop_reason, stop)
        kept = self.complete(stop=[stop], extra_body={"include_stop_str_in_output": True}).choices[0]
        self.assertEqual(kept.text, text[:text.index(stop)] + stop)
        # What SGLang's and vLLM's routers write into every request changes nothing; what is not done is refused.
        routed = {"no_stop_trim": False, "return_hidden_states": False}
        self.assertEqual(self.complete(stop=[stop], extra_body=routed).choices[0].text, stopped.text)
        self.assertEqual(self.complete(stop=[stop], extra_body={"no_stop_trim": True}).choices[0].text, kept.text)
        self.assertEqual(self.chat(extra_body={**routed, "stream_reasoning": True, "include_reasoning": True}).choices[0].message.content,
                         self.chat().choices[0].message.content)
        for refused in ({"return_hidden_states": True}, {"stream_reasoning": False}, {"include_reasoning": False}):
            with self.subTest(refused=refused), self.assertRaises(openai.BadRequestError):
                self.chat(extra_body=refused)
        by_token = self.complete(extra_body={"stop_token_ids": [tokens[2]], "return_token_ids": True}).choices[0]
        self.assertEqual(by_token.stop_reason, tokens[2])
        self.assertEqual(by_token.token_ids, tokens[:tokens.index(tokens[2]) + 1])

    def test_what_is_chosen(self):
        forced = self.complete(logit_bias={"65": 100}).choices[0]
        piece = self.server.post("/detokenize", {"tokens": [65]})[1]["prompt"]
        self.assertEqual(forced.text, piece * 8)
        allowed = self.complete(extra_body={"allowed_token_ids": [66, 67], "return_token_ids": True}).choices[0]
        self.assertLessEqual(set(allowed.token_ids), {66, 67})
        word = allowed.text[2:4]
        without = self.complete(max_tokens=40, extra_body={"allowed_token_ids": [66, 67], "bad_words": [word]}).choices[0].text
        self.assertEqual(len(without), 40)
        self.assertNotIn(word, without)
        same = [self.complete(temperature=1, seed=5).choices[0].text for _ in range(2)]
        self.assertEqual(same[0], same[1])
        self.assertEqual(len({self.complete(temperature=1).choices[0].text for _ in range(4)}), 4)

    def test_a_prefix_is_computed_once(self):
        long = "A sentence that is long enough to fill some blocks of the cache. " * 4
        self.complete(prompt=long + "one")
        usage = self.complete(prompt=long + "two").usage
        self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens // 2)
        salted = self.complete(prompt=long + "two", extra_body={"cache_salt": "another tenant"}).usage
        self.assertEqual(salted.prompt_tokens_details.cached_tokens, 0)

    def test_responses(self):
        first = self.client.responses.create(model="tiny", input="Hello", max_output_tokens=6, temperature=0)
        self.assertEqual(first.status, "incomplete")
        self.assertEqual(first.usage.output_tokens, 6)
        events = list(self.client.responses.create(model="tiny", input="Hello", max_output_tokens=6, temperature=0, stream=True))
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual(events[-1].type, "response.incomplete")
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), first.output_text)
        second = self.client.responses.create(model="tiny", input="And then?", previous_response_id=first.id,
                                              max_output_tokens=6, temperature=0)
        spelled_out = self.chat(messages=[{"role": "user", "content": "Hello"}, {"role": "assistant", "content": first.output_text},
                                          {"role": "user", "content": "And then?"}], max_tokens=6)
        self.assertEqual(second.output_text, spelled_out.choices[0].message.content)
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, first.output_text)
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(model="tiny", input="x", previous_response_id=first.id)

    def test_anthropic(self):
        client = anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=0)
        ask = {"model": "tiny", "max_tokens": 6, "system": "Be brief.", "messages": ASK, "extra_body": {"temperature": 0}}
        whole = client.messages.create(**ask)
        self.assertEqual(whole.stop_reason, "max_tokens")
        self.assertEqual(whole.usage.output_tokens, 6)
        with client.messages.stream(**ask) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.usage.output_tokens, 6)
        openai_text = self.chat(messages=[{"role": "system", "content": "Be brief."}, *ASK], max_tokens=6)
        self.assertEqual(whole.content[0].text, openai_text.choices[0].message.content)
        with self.assertRaises(anthropic.BadRequestError) as refused:
            client.messages.create(**{**ask, "max_tokens": 0})
        self.assertEqual(refused.exception.body["type"], "error")
        with self.assertRaises(anthropic.NotFoundError) as refused:
            client.messages.create(**{**ask, "model": "other"})
        self.assertEqual(refused.exception.body["error"]["type"], "not_found_error")
        self.assertEqual([(model.id, model.display_name, model.type) for model in client.models.list()], [("tiny", "tiny", "model")])
        self.assertEqual(client.models.retrieve("tiny").type, "model")
        with self.assertRaises(anthropic.NotFoundError) as refused:
            client.models.retrieve("other")
        self.assertEqual(refused.exception.body["type"], "error")

    def test_anthropic_counts_tokens(self):
        client = anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=0)
        ask = {"model": "tiny", "system": "Be brief.", "messages": ASK}
        usage = client.messages.create(**ask, max_tokens=1, extra_body={"cache_salt": "counts"}).usage
        self.assertEqual(client.messages.count_tokens(**ask).input_tokens, usage.input_tokens + usage.cache_read_input_tokens)
        with self.assertRaises(anthropic.BadRequestError):
            client.messages.count_tokens(**ask, extra_body={"max_tokens": 1})

    def test_a_turn_of_the_assistant_is_continued(self):
        """The prompt ends with what the assistant said already, without the end of its turn."""
        said = [*ASK, {"role": "assistant", "content": "Because light"}]
        started = self.server.post("/tokenize", {"messages": ASK})[1]["tokens"]
        prompt = self.server.post("/detokenize", {"tokens": started, "skip_special_tokens": False})[1]["prompt"] + "Because light"
        self.assertEqual(self.server.post("/detokenize", {"tokens": self.server.post("/tokenize", {
            "messages": said, "continue_final_message": True})[1]["tokens"], "skip_special_tokens": False})[1]["prompt"], prompt)
        expected = self.complete(prompt=prompt, max_tokens=12, extra_body={"add_special_tokens": False}).choices[0].text
        client = anthropic.Anthropic(base_url=self.server.url, api_key="none", max_retries=0)
        ask = {"model": "tiny", "max_tokens": 12, "messages": said, "extra_body": {"temperature": 0}}
        self.assertEqual(client.messages.create(**ask).content[0].text, expected)
        with client.messages.stream(**ask) as stream:
            self.assertEqual("".join(stream.text_stream), expected)
        chat = self.chat(messages=said, extra_body={"continue_final_message": True, "add_generation_prompt": False})
        self.assertEqual(chat.choices[0].message.content, expected)
        self.assertEqual(client.messages.count_tokens(model="tiny", messages=said).input_tokens,
                         client.messages.create(**ask).usage.input_tokens + client.messages.create(**ask).usage.cache_read_input_tokens)

    def test_errors_of_the_client(self):
        for error, kwargs in ((openai.BadRequestError, {"temperature": -1}), (openai.NotFoundError, {"model": "other"}),
                              (openai.BadRequestError, {"extra_body": {"no_such_thing": 1}}),
                              (openai.BadRequestError, {"max_tokens": 10**6})):
            with self.subTest(kwargs=kwargs), self.assertRaises(error) as raised:
                self.chat(**kwargs)
            self.assertIsNotNone(raised.exception.body["message"])
            self.assertIsInstance(raised.exception.code, (str, type(None)))
        with self.assertRaises(openai.BadRequestError) as raised:
            self.chat(store=True)
        self.assertEqual((raised.exception.param, raised.exception.code), ("store", "unsupported_parameter"))

    def test_the_newer_limit_counts(self):
        for order in (("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")):
            limits = {"max_tokens": 3, "max_completion_tokens": 5}
            body = {"messages": ASK, "temperature": 0, "ignore_eos": True, **{name: limits[name] for name in order}}
            self.assertEqual(self.server.post("/v1/chat/completions", body)[1]["usage"]["completion_tokens"], 5)

    def test_a_token_that_ends_the_answer_is_not_told(self):
        whole = self.chat(logprobs=True, extra_body={"return_token_ids": True}).choices[0]
        last = whole.token_ids[5]
        end = {"stop_token_ids": [last], "return_token_ids": True}
        first = whole.token_ids.index(last)
        for kwargs in ({}, {"include_stop_str_in_output": True}):
            cut = self.chat(logprobs=True, extra_body={**end, **kwargs}).choices[0]
            told = first + 1 if kwargs else first
            self.assertEqual(cut.finish_reason, "stop")
            self.assertEqual([e.token for e in cut.logprobs.content], [e.token for e in whole.logprobs.content[:told]])
            self.assertEqual(cut.token_ids, whole.token_ids[:first + 1])
            streamed = [e.token for chunk in self.chat(logprobs=True, stream=True, extra_body={**end, **kwargs})
                        for e in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])]
            self.assertEqual(streamed, [e.token for e in cut.logprobs.content])
        text = self.complete(logprobs=1, extra_body={"return_token_ids": True}).choices[0]
        last = text.token_ids[4]
        cut = self.complete(logprobs=1, extra_body={"stop_token_ids": [last]}).choices[0]
        self.assertEqual(cut.logprobs.tokens, text.logprobs.tokens[:text.token_ids.index(last)])

    def test_ids_of_requests(self):
        answer = self.client.chat.completions.with_raw_response.create(model="tiny", messages=ASK, max_tokens=1,
                                                                       extra_headers={"X-Request-Id": "mine-1"})
        self.assertEqual(answer.headers["x-request-id"], "mine-1")
        self.server.until(r"id=mine-1 .*status=200 .*prompt_tokens=\d+")


if __name__ == "__main__":
    ServerCase.celer = sys.argv.pop(1)
    unittest.main()
