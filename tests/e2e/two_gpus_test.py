"""A group of ranks on GPUs of their own against one process on one GPU: collectives over peer memory, and NCCL's.

Not in CTest: KERN_E2E_RANK_DEVICES names a GPU for each rank ("gpu:0,gpu:1"), and libnccl.so.2 must be
found. Ranks sum in an order of their own, so answers are the same only up to near ties.
"""
import os
import unittest

from bytes_test import prompt
from cluster import Cluster, Serve
from gpu_test import TIE
from run import main

DEVICES = [word for word in os.environ.get("KERN_E2E_RANK_DEVICES", "").split(",") if word]
LENGTHS, STEPS = [1, 63, 64, 65, 130, 300], 16


def text(cluster, tokens, count=STEPS):
    body = {"model": "k3", "prompt": tokens, "max_tokens": count, "temperature": 0, "ignore_eos": True}
    return cluster.json("/v1/completions", body, timeout=60)["choices"][0]["text"]


def margins(cluster, tokens):
    """By how much the best token of each step leads, in nats."""
    body = {"model": "k3", "prompt": tokens, "max_tokens": STEPS, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    tops = cluster.json("/v1/completions", body, timeout=60)["choices"][0]["logprobs"]["top_logprobs"]
    return [sorted(top.values())[-1] - sorted(top.values())[0] if len(top) > 1 else 99 for top in tops]


@unittest.skipUnless(len(DEVICES) > 1, "KERN_E2E_RANK_DEVICES names fewer than two GPUs")
class TwoGpus(unittest.TestCase):
    def check(self, config, plain):
        with Serve(config) as one:
            lead = {n: margins(one, prompt(n, n)) for n in LENGTHS}
        with Serve(config, plain=plain) as one:
            want = {n: [text(one, prompt(n, n), count) for count in range(1, STEPS + 1)] for n in LENGTHS}
        with Cluster(config, stages=1, ranks=len(DEVICES), plain=plain, rank_devices=DEVICES) as cluster:
            got = {n: [text(cluster, prompt(n, n), count) for count in range(1, STEPS + 1)] for n in LENGTHS}
            again = {n: text(cluster, prompt(n, n)) for n in LENGTHS}
            # Ranks that chose different tokens would have ended the group and its epoch.
            metrics = cluster.metrics()
            self.assertEqual((metrics["kern_epochs_total"], metrics["kern_groups"]), (1, 1))
        for n in LENGTHS:
            self.assertEqual(again[n], got[n][-1], f"{n} tokens, again")
            same = next((i for i in range(STEPS) if got[n][i] != want[n][i]), STEPS)
            print(f"{config}, {n} tokens: {same} of {STEPS} steps as one process goes")
            if same < STEPS:
                self.assertLess(lead[n][same], TIE, f"{n} tokens: another token at {same} and no near tie")

    def test_ranks_answer_as_one_process_does_over_peer_memory(self):
        self.check("k3-mini", plain=False)

    def test_ranks_answer_as_one_process_does_over_nccl(self):
        self.check("k3-mini", plain=True)

    def test_ranks_of_the_smallest_model_answer_as_one_process_does_over_nccl(self):
        self.check("k3-nano", plain=True)


if __name__ == "__main__":
    main()
