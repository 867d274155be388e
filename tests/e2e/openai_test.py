"""openai-python drives the sixteen daemons: chat and completions, streamed and not."""
import json
import unittest

import openai

from cluster import Cluster
from run import main

CHAT = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "What is 2 + 2? 日本語 😀"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
                                         "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
cluster = client = None


def setUpModule():
    global cluster, client
    cluster = Cluster()
    client = openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", timeout=120, max_retries=0)


def tearDownModule():
    cluster.stop()


class OpenAI(unittest.TestCase):
    def test_the_model_is_listed_with_its_context(self):
        model = client.models.list().data[0]
        self.assertGreater(model.max_model_len, 256)

    def test_a_streamed_chat_concatenates_to_the_unstreamed_one(self):
        ask = {"model": "k3", "messages": CHAT, "max_tokens": 40, "temperature": 0}
        whole = client.chat.completions.create(**ask)
        parts = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
        joined = {key: "".join(getattr(p.choices[0].delta, key, None) or "" for p in parts if p.choices)
                  for key in ("content", "reasoning_content")}
        message = whole.choices[0].message
        self.assertEqual(joined["content"], message.content or "")
        self.assertEqual(joined["reasoning_content"], message.reasoning_content or "")
        self.assertEqual(parts[0].choices[0].delta.role, "assistant")
        self.assertEqual([p.choices[0].finish_reason for p in parts if p.choices][-1], whole.choices[0].finish_reason)
        self.assertEqual(parts[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertGreater(whole.usage.prompt_tokens, 10)
        self.assertEqual(whole.usage.completion_tokens, 40)
        self.assertEqual(whole.choices[0].finish_reason, "length")

    def test_a_streamed_completion_concatenates_to_the_unstreamed_one(self):
        for settings in ({"temperature": 0}, {"temperature": 0.8, "seed": 7, "top_p": 0.9}):
            ask = {"model": "k3", "prompt": "Once upon a time", "max_tokens": 32, **settings}
            whole = client.completions.create(**ask)
            text = "".join(p.choices[0].text for p in client.completions.create(**ask, stream=True))
            self.assertEqual(text, whole.choices[0].text)
            self.assertTrue(text)

    def test_a_seed_repeats_and_another_seed_differs(self):
        def answer(seed):
            return client.completions.create(model="k3", prompt="The", max_tokens=24, temperature=1.0,
                                             seed=seed).choices[0].text
        self.assertEqual(answer(1), answer(1))
        self.assertNotEqual(answer(1), answer(2))

    def test_thinking_can_be_turned_off(self):
        ask = {"model": "k3", "messages": CHAT, "max_tokens": 8, "temperature": 0}
        off = client.chat.completions.create(**ask, extra_body={"thinking": {"type": "disabled"}})
        self.assertFalse(getattr(off.choices[0].message, "reasoning_content", None))
        on = client.chat.completions.create(**ask)
        self.assertTrue(on.choices[0].message.reasoning_content)

    def test_tools_and_their_results_are_rendered(self):
        messages = [{"role": "user", "content": "Weather in Oslo?"},
                    {"role": "assistant", "content": "", "tool_calls": [
                        {"id": "c1", "type": "function",
                         "function": {"name": "get_weather", "arguments": json.dumps({"city": "Oslo"})}}]},
                    {"role": "tool", "tool_call_id": "c1", "content": "rain"}]
        answer = client.chat.completions.create(model="k3", messages=messages, tools=[TOOL], max_tokens=4, temperature=0)
        self.assertEqual(answer.usage.completion_tokens, 4)

    def test_several_prompts_and_choices_keep_their_places(self):
        answer = client.completions.create(model="k3", prompt=["alpha", "beta"], n=2, max_tokens=6, temperature=0)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
        self.assertEqual(answer.choices[0].text, answer.choices[1].text)
        single = client.completions.create(model="k3", prompt="beta", max_tokens=6, temperature=0)
        self.assertEqual(answer.choices[2].text, single.choices[0].text)

    def test_a_stop_string_ends_the_answer_before_itself(self):
        free = client.completions.create(model="k3", prompt="stop test", max_tokens=32, temperature=0).choices[0].text
        stop = free[len(free) // 2:len(free) // 2 + 3]
        cut = client.completions.create(model="k3", prompt="stop test", max_tokens=32, temperature=0, stop=[stop])
        self.assertEqual(cut.choices[0].text, free[:free.index(stop)])
        self.assertEqual(cut.choices[0].finish_reason, "stop")

    def test_logprobs_come_with_alternatives(self):
        answer = client.chat.completions.create(model="k3", messages=CHAT, max_tokens=3, temperature=0,
                                                logprobs=True, top_logprobs=3)
        tokens = answer.choices[0].logprobs.content
        self.assertEqual(len(tokens), 3)
        for token in tokens:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=5)
            self.assertLessEqual(token.logprob, 0)

    def test_a_prompt_beyond_the_context_is_refused_with_its_limit(self):
        limit = client.models.list().data[0].max_model_len
        with self.assertRaises(openai.BadRequestError) as caught:
            client.completions.create(model="k3", prompt=[5] * (limit + 1), max_tokens=1)
        self.assertIn(f"maximum context length is {limit} tokens", str(caught.exception))

    def test_an_unknown_model_and_a_bad_body_are_refused(self):
        with self.assertRaises(openai.NotFoundError):
            client.completions.create(model="no-such-model", prompt="x")
        with self.assertRaises(openai.BadRequestError):
            client.chat.completions.create(model="k3", messages=[{"content": "no role"}])

    def test_tokenize_and_detokenize_are_inverses(self):
        text = "Grüße, 世界 <|open|> x = 1"
        ids = cluster.json("/tokenize", {"prompt": text})["tokens"]
        self.assertEqual(cluster.json("/detokenize", {"tokens": ids})["prompt"], text)
        chat = cluster.json("/tokenize", {"messages": CHAT, "add_generation_prompt": True})
        self.assertEqual(chat["count"], len(chat["tokens"]))

    def test_a_second_identical_prompt_is_cached_and_answers_the_same(self):
        prompt = "word " * 300
        first = client.completions.create(model="k3", prompt=prompt, max_tokens=16, temperature=0)
        again = client.completions.create(model="k3", prompt=prompt, max_tokens=16, temperature=0)
        self.assertEqual(first.choices[0].text, again.choices[0].text)
        cached = again.usage.prompt_tokens_details.cached_tokens
        self.assertGreaterEqual(cached, 64)
        self.assertEqual(cached % 64, 0)


if __name__ == "__main__":
    main()
