"""Sessions beyond the pool's capacity: they leave for host memory, come back, and answer the same bytes."""
import concurrent.futures
import os
import unittest

from bytes_test import Serve, ask, prompt
from cluster import Cluster
from run import main

SESSIONS, TOKENS = 12, 300  # of which 256 lie behind a checkpoint; the pool holds six such
POOL = ["--capacity", 2048]
TIER = [*POOL, "--host-gib", "0.25"]
GPU = os.environ.get("KERN_E2E_DEVICE", "host") != "host"


def turns(cluster, number):
    """Every session's answer to its prompt of that turn, and how much of it was cached."""
    return [ask(cluster, prompt(s, TOKENS) + prompt(1000 * number + s, 70 * number)) for s in range(SESSIONS)]


def moved(cluster):
    metrics = cluster.metrics()
    return {name.split('"')[1]: metrics[name] for name in metrics if name.startswith("kern_prefixes_total")}


class Park(unittest.TestCase):
    def check(self, make):
        with make(POOL) as plain:
            want = [turns(plain, 0), turns(plain, 1)]
            self.assertEqual(moved(plain)["parked"], 0)
            self.assertTrue(all(cached == 0 for _, cached in want[1]), "the pool held more than it should")
        with make(TIER) as cluster:
            first, second = turns(cluster, 0), turns(cluster, 1)
            happened = moved(cluster)
            metrics = cluster.metrics()
            self.assertGreaterEqual(happened["parked"], SESSIONS // 2)
            self.assertGreaterEqual(happened["woken"], SESSIONS // 2)
            self.assertGreater(metrics['kern_host_moved_bytes_total{way="wake"}'], 0)
            self.assertGreater(metrics['kern_host_bytes{state="used"}'], 0)
            for s in range(SESSIONS):
                self.assertEqual(first[s][0], want[0][s][0], f"session {s}")
                self.assertEqual(second[s][0], want[1][s][0], f"session {s} again, {second[s][1]} cached")
                self.assertEqual(second[s][1], 256, f"session {s}")
            # the same, all at once
            with concurrent.futures.ThreadPoolExecutor(SESSIONS) as pool:
                jobs = [pool.submit(ask, cluster, prompt(s, TOKENS) + prompt(1000 + s, 70)) for s in range(SESSIONS)]
                for s, job in enumerate(jobs):
                    self.assertEqual(job.result()[0], want[1][s][0], f"session {s} among others")
            print(f"{happened}, {metrics['kern_host_cache_hits']:.0f} tokens woken")

    def test_sessions_beyond_the_pool_come_back_in_one_process(self):
        self.check(lambda flags: Serve("k3-mini" if GPU else "k3-nano", flags))

    @unittest.skipIf(GPU, "sixteen processes on one GPU")
    def test_sessions_beyond_the_pool_come_back_on_eight_stages(self):
        self.check(lambda flags: Cluster(stages=8, ranks=1, stage_flags=flags))

    @unittest.skipIf(GPU, "the same rules on any device")
    def test_a_stage_that_was_lost_takes_its_parked_prefixes_with_it(self):
        with Cluster(stages=2, ranks=1, stage_flags=TIER) as cluster:
            want = turns(cluster, 0)
            self.assertGreater(moved(cluster)["parked"], 0)
            cluster.stages[1].kill()
            cluster.stages[1].wait()
            cluster.wait_healthy(status=503)
            self.assertEqual(cluster.metrics()['kern_host_bytes{state="used"}'], 0)
            cluster.stages[1].start()
            cluster.wait_healthy()
            for s in range(SESSIONS):
                answer, cached = ask(cluster, prompt(s, TOKENS))
                self.assertEqual((answer, cached), (want[s][0], 0), f"session {s}")
            answer, cached = ask(cluster, prompt(0, TOKENS))
            self.assertEqual((answer, cached), (want[0][0], 256))

    @unittest.skipIf(GPU, "the same rules on any device")
    def test_only_prefixes_long_enough_are_parked(self):
        with Serve("k3-nano", [*TIER, "--host-turn", 257]) as one:
            turns(one, 0)
            self.assertEqual(moved(one)["parked"], 0)
            self.assertGreater(moved(one)["dropped"], 0)

    @unittest.skipIf(GPU, "the same rules on any device")
    def test_memory_that_is_not_there_is_refused_in_a_sentence(self):
        with self.assertRaisesRegex(AssertionError, r"a host tier of 1000000\.00 GiB: this machine has [0-9.]+ GiB available"):
            Serve("k3-nano", ["--host-gib", "1000000"])


if __name__ == "__main__":
    main()
