"""The small trained model behind the API: right answers, and the same bytes whatever way they came.

KERN_MODEL_PER_SKILL=N asks N questions of every skill, recall-8192 too: the long form, by hand.
"""
import concurrent.futures
import functools
import json
import os
import subprocess
import sys
import unittest

from cluster import BUILD, MODEL, ROOT, Cluster, Serve, free_ports
from run import main

sys.path.insert(0, str(ROOT / "k3/nano"))
import exam  # noqa: E402
from tokens import Tokenizer  # noqa: E402

PER_SKILL = int(os.environ.get("KERN_MODEL_PER_SKILL", "0"))
# Another seed than the whole exam's. A prompt of 2,048 tokens takes seconds of a core, one of 8,192 half a
# minute: the short form asks one of the first and none of the second.
SEED, SHORT = 1, "1,copy=2,tools=2,finish=2,recall-8192=0"
RIGHT = 0.8  # share of the questions; the whole exam says what the model knows
# Places for recurrent state in the pipeline, running or cached: so few that as many short prompts push
# out everything older.
SLOTS = 40
# Every prompt with thoughts begins with the same words, a page of 64 tokens: a crowd finds it as soon as a
# short prompt has left it. What a long text adds to it is that text's own.
SHARED = 64


@functools.cache
def questions():
    made = exam.questions(SEED, PER_SKILL or 2, Tokenizer(MODEL).count)
    return made if PER_SKILL else exam.limited(made, SHORT)


def ask(server, request):
    """(all bytes of an answer with the log-probability of every token, the reply)."""
    reply = server.json("/v1/chat/completions", {**request, "model": server.model, "logprobs": True, "top_logprobs": 2},
                        timeout=600)
    choice = reply["choices"][0]
    return json.dumps([exam.said(choice), choice["logprobs"]], sort_keys=True, ensure_ascii=False), reply


def ask_all(server, concurrency=1):
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda q: ask(server, q["request"]), questions()))


def cached(reply):
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def started(kind, *args, **options):
    server = kind(MODEL, *args, **options)
    server.model = server.json("/v1/models")["data"][0]["id"]
    return server


def next_turn(request, reply):
    """The request that goes on with a conversation: the answer as a client sends it back, and a word more."""
    said = reply["choices"][0]["message"]
    return {**request, "messages": [*request["messages"], {"role": "assistant", "content": said["content"] or ""},
                                    {"role": "user", "content": "Thank you."}]}


def push_out(server, count):
    """Prompts of one page and a little, each of which leaves a checkpoint."""
    prompts = [[11 + i % 200, 11 + i // 200] * 35 for i in range(count)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda p: server.json("/v1/completions", {"model": server.model, "prompt": p, "max_tokens": 1}),
                      prompts))


@functools.cache
def of_one_process():
    with started(Serve, flags=["--threads", os.cpu_count()]) as server:
        return ask_all(server, 4)


class Model(unittest.TestCase):
    def right(self, answers):
        """How many are right; most of them must be."""
        count = sum(exam.is_right(q["expected"], reply) for q, (_, reply) in zip(questions(), answers, strict=True))
        self.assertGreaterEqual(count, RIGHT * len(answers), [
            (q["expected"], exam.said(reply["choices"][0])) for q, (_, reply) in zip(questions(), answers)
            if not exam.is_right(q["expected"], reply)])
        return count

    def same(self, answers, wanted, how):
        for question, (got, _), (want, _) in zip(questions(), answers, wanted, strict=True):
            self.assertEqual(got, want, f"{how}: {question['skill']}, {question['key']}")

    def test_eight_stages_with_a_group_of_one_say_the_bytes_of_one_process(self):
        with started(Cluster, stages=8, ranks=1) as cluster:
            self.same(ask_all(cluster, 8), of_one_process(), "cut into stages")

    def test_sixteen_processes_say_the_same_bytes_cached_evicted_crowded_and_after_a_loss(self):
        slots = max(SLOTS, 2 * len(questions()))
        with started(Cluster, stage_flags=["--slots", slots, "--peer-timeout", 3],
                     rank_flags=["--peer-timeout", 3]) as cluster:
            first = ask_all(cluster)
            crowd = ask_all(cluster, 32)
            self.same(crowd, first, "cached, 32 at a time")
            found = [cached(reply) for _, reply in crowd]
            self.assertEqual(found.count(0), 0, "not everything was cached")
            recalled = [n for q, n in zip(questions(), found) if q["skill"].startswith("recall")]
            self.assertGreater(min(recalled), SHARED)
            talks = [next_turn(q["request"], reply) for q, (_, reply) in zip(questions(), first)
                     if q["skill"] in ("system", "turns")]
            turns = [ask(cluster, talk) for talk in talks]
            self.assertTrue(all(cached(reply) for _, reply in turns), "the sessions were cached")

            push_out(cluster, slots)
            self.assertEqual([ask(cluster, talk)[0] for talk in talks], [said for said, _ in turns])
            crowd = ask_all(cluster, 32)
            self.same(crowd, first, "pushed out and come back, 32 at a time")
            found = [cached(reply) for q, (_, reply) in zip(questions(), crowd) if q["skill"].startswith("recall")]
            self.assertLessEqual(max(found), SHARED, "not everything was pushed out")

            rank = cluster.groups[0][5]
            rank.kill()
            cluster.wait_healthy(status=503)
            cluster.restart(rank)
            cluster.wait_healthy()
            self.same(ask_all(cluster, 32), first, "after a rank was lost")
            self.assertEqual(cluster.metrics()["kern_groups"], 1)

        # Sums over eight ranks are rounded in another order than one process rounds them: no promise of
        # bytes, but the model knows as much.
        differ = sum(exam.said(a["choices"][0]) != exam.said(b["choices"][0])
                     for (_, a), (_, b) in zip(first, of_one_process()))
        print(f"{len(first)} questions: sixteen processes {self.right(first)} right, one process "
              f"{self.right(of_one_process())}, {differ} answers differ")

    def test_every_script_goes_through_the_api_and_comes_back(self):
        strings = ["0123456789", "你好，世界", "😀🎉", "Grüße, Ωmega, नमस्ते", "a\n\n b\t", "x = 1 <|open|>"]
        with started(Serve) as server:
            for string in strings:
                ids = server.json("/tokenize", {"prompt": string})["tokens"]
                self.assertEqual(server.json("/detokenize", {"tokens": ids})["prompt"], string)
            self.assertEqual(len(server.json("/tokenize", {"prompt": strings[0]})["tokens"]), 10)
            self.assertEqual(len(server.json("/tokenize", {"prompt": "世界"})["tokens"]), 6)
            for asked, wanted in (("😀", "😀"), ("你好！", "你好！我能帮你什么？"), ("谢谢。", "不客气。")):
                request = {"messages": [{"role": "user", "content": asked}], "temperature": 0, "max_tokens": 96}
                _, reply = ask(server, request)
                self.assertEqual(reply["choices"][0]["message"]["content"], wanted)
                status, text = server.request("POST", "/v1/chat/completions",
                                              {**request, "model": server.model, "stream": True})
                self.assertEqual(status, 200)
                events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
                self.assertEqual("".join(e["choices"][0]["delta"].get("content") or "" for e in events), wanted)

    @unittest.skipIf(BUILD != ROOT / "build", "the demo builds in build/")
    def test_the_demo_thinks_and_answers(self):
        port = free_ports(1)[0]
        done = subprocess.run([ROOT / "k3/demo", "--once", "--port", str(port), "What is 26 + 39?"], text=True,
                              capture_output=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"thought: 6 \+ 9 = 15, .*\n +answer: 65\n")


if __name__ == "__main__":
    main()
