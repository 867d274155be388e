#!/usr/bin/env python3
"""Drives a server through the openai package, as its users do.

usage: openai_client.py SCRIPTED_SERVER              against the scripted model, all checks
       openai_client.py --url http://HOST:PORT/v1    against a running daemon, checks that hold for any model
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

try:
    import openai
except ImportError:
    print("python3 has no openai")
    sys.exit(1 if os.environ.get("KERN_REQUIRE_PYTHON") == "1" else 77)

ARGUMENTS = None
TOOLS = [{"type": "function", "function": {
    "name": "echo", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}}]


def user(text):
    return [{"role": "user", "content": text}]


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = openai.OpenAI(base_url=ARGUMENTS.url, api_key=ARGUMENTS.key, max_retries=0, timeout=120)
        cls.model = cls.client.models.list().data[0].id

    def chat(self, text, **more):
        return self.client.chat.completions.create(model=self.model, messages=user(text), **{"max_tokens": 64, **more})

    def completion(self, prompt, **more):
        return self.client.completions.create(model=self.model, prompt=prompt, **{"max_tokens": 24, **more})


class AnyModel(Served):
    """What holds whatever the model says."""

    def test_a_streamed_chat_joins_to_the_whole_one(self):
        for thinking in ("enabled", "disabled"):
            more = {"temperature": 0, "extra_body": {"thinking": {"type": thinking}}}
            whole = self.chat("hello → ü", **more)
            content, reasoning, finish, usage = "", "", None, None
            for i, chunk in enumerate(self.chat("hello → ü", stream=True,
                                                stream_options={"include_usage": True}, **more)):
                if i == 0:
                    self.assertEqual(chunk.choices[0].delta.role, "assistant")
                if not chunk.choices:
                    usage = chunk.usage
                    continue
                content += chunk.choices[0].delta.content or ""
                reasoning += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
                finish = chunk.choices[0].finish_reason or finish
            message = whole.choices[0].message
            self.assertEqual(content, message.content or "")
            self.assertEqual(reasoning, getattr(message, "reasoning_content", None) or "")
            self.assertEqual(finish, whole.choices[0].finish_reason)
            self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
            self.assertEqual(usage.prompt_tokens, whole.usage.prompt_tokens)

    def test_a_streamed_completion_joins_to_the_whole_one_at_every_length(self):
        for most in (1, 2, 3, 9):
            whole = self.completion("one two", temperature=0, max_tokens=most)
            parts = [c.choices[0].text for c in self.completion("one two", temperature=0, max_tokens=most, stream=True)]
            self.assertEqual("".join(parts), whole.choices[0].text)
            self.assertLessEqual(whole.usage.completion_tokens, most)

    def test_the_same_seed_gives_the_same_answer(self):
        first, second = (self.completion("seed", seed=7, temperature=1.0, n=2) for _ in range(2))
        self.assertEqual([c.text for c in first.choices], [c.text for c in second.choices])

    def test_parallel_requests_do_not_cross(self):
        prompts = [f"prompt number {i}" for i in range(12)]
        alone = [self.completion(p, temperature=0).choices[0].text for p in prompts]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            together = list(pool.map(lambda p: self.completion(p, temperature=0).choices[0].text, prompts))
        self.assertEqual(alone, together)

    def test_a_list_of_prompts_answers_in_order(self):
        prompts = ["alpha", "beta", "gamma"]
        listed = self.completion(prompts, temperature=0)
        self.assertEqual([c.index for c in listed.choices], [0, 1, 2])
        for prompt, choice in zip(prompts, listed.choices):
            self.assertEqual(choice.text, self.completion(prompt, temperature=0).choices[0].text)

    def test_refusals_are_the_exceptions_of_the_package(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="nobody", prompt="x")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.completion("x", temperature=3)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.completion("word " * 2_000_000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertIn("maximum context length is", str(caught.exception))

    def test_tokenize_and_detokenize_undo_each_other(self):
        root = ARGUMENTS.url.removesuffix("/v1")

        def post(route, body):
            request = urllib.request.Request(root + route, json.dumps(body).encode(),
                                             {"Authorization": f"Bearer {ARGUMENTS.key}"})
            return json.load(urllib.request.urlopen(request, timeout=60))

        tokens = post("/tokenize", {"prompt": "hello → ü"})
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        self.assertEqual(post("/detokenize", {"tokens": tokens["tokens"]}), {"prompt": "hello → ü"})
        self.assertGreater(post("/tokenize", {"messages": user("hi")})["count"], 2)

    def test_a_stream_that_is_left_early_harms_nobody(self):
        for _ in range(3):
            stream = self.completion("leaving", stream=True, max_tokens=200)
            next(iter(stream))
            stream.close()
        self.assertTrue(self.completion("after", temperature=0).choices)


class ScriptedModel(Served):
    """What the scripted model is known to say."""

    def test_thought_answer_and_call_come_apart(self):
        message = self.chat("hello ü", tools=TOOLS, max_tokens=400).choices[0].message
        self.assertEqual(message.content, "hello ü")
        self.assertEqual(message.reasoning_content, "hm")
        self.assertEqual(message.tool_calls[0].function.name, "echo")
        self.assertEqual(json.loads(message.tool_calls[0].function.arguments), {"text": "hello ü"})
        self.assertEqual(self.client.chat.completions.create(
            model=self.model, messages=user("x"), tools=TOOLS).choices[0].finish_reason, "tool_calls")

    def test_the_packages_own_stream_reader_rebuilds_the_message(self):
        with self.client.chat.completions.stream(model=self.model, messages=user("hello"),
                                                 tools=TOOLS) as stream:
            final = stream.get_final_completion()
        call = final.choices[0].message.tool_calls[0]
        self.assertEqual(final.choices[0].message.content, "hello")
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("echo", {"text": "hello"}))

    def test_a_tool_result_can_be_sent_back(self):
        first = self.chat("hello", tools=TOOLS, max_tokens=400).choices[0].message
        messages = user("hello") + [first.model_dump(exclude_none=True), {
            "role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "done"}]
        again = self.client.chat.completions.create(model=self.model, messages=messages, tools=TOOLS)
        self.assertEqual(again.choices[0].message.content, "hello")

    def test_logprobs_and_stop_have_the_packages_types(self):
        chat = self.chat("hi", logprobs=True, top_logprobs=2)
        self.assertEqual(len(chat.choices[0].logprobs.content[0].top_logprobs), 2)
        answer = self.completion("hello world", logprobs=2, stop=["wor"])
        self.assertEqual(answer.choices[0].text, "hello ")
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.choices[0].logprobs.tokens[0], "hello")
        self.assertEqual(answer.usage.prompt_tokens_details.cached_tokens, 3)


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("server", nargs="?")
    parser.add_argument("--url")
    parser.add_argument("--key", default="none")
    ARGUMENTS = parser.parse_args()
    classes = [AnyModel]
    process = None
    if ARGUMENTS.url is None:
        process = subprocess.Popen([ARGUMENTS.server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ARGUMENTS.url = f"http://127.0.0.1:{int(process.stdout.readline().split()[1])}/v1"
        classes.append(ScriptedModel)
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(c) for c in classes)
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    if process is not None:
        process.stdin.close()
        if process.wait(timeout=10) != 0:
            sys.exit("the scripted server ended badly")
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
