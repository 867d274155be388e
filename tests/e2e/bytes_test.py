"""Same bytes: what a request gets does not depend on the cut, the chunking, the batch or the cache."""
import concurrent.futures
import pathlib
import random
import struct
import tempfile
import unittest

from cluster import Cluster, Serve, artifacts, tool
from run import main


def prompt(seed, length):
    rng = random.Random(seed)
    return [rng.randrange(5, 600) for _ in range(length)]


def ask(cluster, tokens, max_tokens=12, **more):
    """The answer as exact text: every token with its log-probability and alternatives."""
    body = {"model": "k3", "prompt": tokens, "max_tokens": max_tokens, "temperature": 0, "logprobs": 3,
            "ignore_eos": True, **more}
    answer = cluster.json("/v1/completions", body)
    choice = answer["choices"][0]
    return repr((choice["text"], choice["logprobs"])), answer["usage"]["prompt_tokens_details"]["cached_tokens"]


LENGTHS = [1, 2, 63, 64, 65, 127, 128, 129, 200, 333]


class Bytes(unittest.TestCase):
    def test_eight_stages_with_a_group_of_one_answer_as_one_process_does(self):
        with Serve() as one:
            want = {n: ask(one, prompt(n, n))[0] for n in LENGTHS}
        with Cluster(stages=8, ranks=1) as cluster:
            for n in LENGTHS:
                self.assertEqual(ask(cluster, prompt(n, n))[0], want[n], f"{n} tokens")

    def test_any_chunk_on_the_grid_gives_the_same_answer(self):
        answers = []
        for chunk in (64, 128, 0):
            with Serve(flags=["--chunk", chunk]) as one:
                answers.append([ask(one, prompt(n, n))[0] for n in LENGTHS])
        self.assertEqual(answers[0], answers[1])
        self.assertEqual(answers[0], answers[2])

    def test_cold_alone_warm_and_packed_with_fifteen_others_are_equal(self):
        with Cluster(stages=8, ranks=8) as cluster:
            cold = {n: ask(cluster, prompt(n, n)) for n in LENGTHS}
            for n in LENGTHS:
                warm, cached = ask(cluster, prompt(n, n))
                self.assertEqual(warm, cold[n][0], f"{n} tokens, {cached} from the cache")
                # One checkpoint a prompt, at the last grid point before its last token.
                self.assertEqual(cached, (n - 1) // 64 * 64, f"{n} tokens")
            jobs = [prompt(n, n) for n in LENGTHS] + [prompt(1000 + i, 20 + 13 * i) for i in range(6)]
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                packed = list(pool.map(lambda tokens: ask(cluster, tokens)[0], jobs))
            for n, got in zip(LENGTHS, packed):
                self.assertEqual(got, cold[n][0], f"{n} tokens among others")

    def test_a_prefix_that_was_evicted_and_came_back_answers_the_same(self):
        with Cluster(stages=2, ranks=1, stage_flags=["--capacity", 2048]) as cluster:
            first, _ = ask(cluster, prompt(7, 300))
            for other in range(12):
                ask(cluster, prompt(100 + other, 300), 1)
            again, cached = ask(cluster, prompt(7, 300))
            self.assertEqual(cached, 0, "it was evicted")
            self.assertEqual(again, first)
            hit, cached = ask(cluster, prompt(7, 300))
            self.assertEqual(cached, 256)
            self.assertEqual(hit, first)

    def test_a_shared_prefix_is_reused_for_another_question(self):
        with Cluster(stages=2, ranks=1) as cluster:
            head = prompt(9, 256)
            want, cached = ask(cluster, head + prompt(10, 40))
            self.assertEqual(cached, 0)
            other, cached = ask(cluster, head + prompt(11, 40))
            self.assertEqual(cached, 256)
            again, _ = ask(cluster, head + prompt(10, 40))
            self.assertEqual(again, want)
            self.assertNotEqual(other, want)

    def test_a_seeded_answer_is_the_same_alone_and_in_a_crowd(self):
        with Cluster(stages=2, ranks=2) as cluster:
            settings = {"temperature": 0.9, "seed": 11, "top_p": 0.95}
            alone = ask(cluster, prompt(3, 90), 20, **settings)[0]
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                crowd = [pool.submit(ask, cluster, prompt(50 + i, 30 + 9 * i), 20, temperature=1, seed=i) for i in range(12)]
                mine = pool.submit(ask, cluster, prompt(3, 90), 20, **settings)
                self.assertEqual(mine.result()[0], alone)
                for other in crowd:
                    other.result()

    def test_the_command_line_gives_the_logits_of_prompt_and_steps(self):
        checkpoint, folder = artifacts(stages=8, ranks=1)
        with tempfile.TemporaryDirectory() as tmp:
            tokens = pathlib.Path(tmp) / "tokens.txt"
            tokens.write_text(" ".join(map(str, prompt(5, 70))))
            rows = {}
            for via in ("prefill", "decode"):
                out = pathlib.Path(tmp) / f"{via}.npy"
                tool("kern", "run", folder / "one.json", "--weights", checkpoint, "--tokens", tokens,
                     "--logits", out, "--via", via)
                raw = out.read_bytes()
                size = struct.unpack("<H", raw[8:10])[0]
                rows[via] = raw[10 + size:]
            row = len(rows["prefill"])
            self.assertEqual(len(rows["decode"]), 70 * row)


if __name__ == "__main__":
    main()
