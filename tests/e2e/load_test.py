"""Load with clients that go away: what was taken is given back, and nothing grows."""
import concurrent.futures
import json
import random
import socket
import time
import unittest

from cluster import Cluster
from run import main

REQUESTS, CONCURRENCY, DROPPED = 200, 32, 0.3


def ask(port, body, drop_after):
    """Streams a completion; closes the socket after `drop_after` seconds when that is not None."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=180) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
                     b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        if drop_after is not None:
            time.sleep(drop_after)
            return None
        answer = b""
        while part := sock.recv(65536):
            answer += part
    return answer.decode()


class Load(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()

    def tearDown(self):
        self.cluster.stop()

    def storm(self, seed):
        rng = random.Random(seed)
        jobs = []
        for _ in range(REQUESTS):
            body = {"model": "k3", "prompt": [rng.randrange(5, 400) for _ in range(rng.choice([3, 20, 70, 200, 300]))],
                    "max_tokens": rng.choice([1, 4, 12, 24]), "temperature": 0, "stream": True}
            jobs.append((body, rng.uniform(0, 1.0) if rng.random() < DROPPED else None))
        with concurrent.futures.ThreadPoolExecutor(CONCURRENCY) as pool:
            return list(zip(jobs, pool.map(lambda job: ask(self.cluster.port, *job), jobs)))

    def in_use(self):
        return {name: value for name, value in self.cluster.metrics().items()
                if name.startswith(("kern_pages{", "kern_slots{")) and 'state="leased"' in name}

    def test_dropped_clients_give_everything_back_and_nothing_grows(self):
        idle = self.in_use()
        self.assertTrue(idle and all(value == 0 for value in idle.values()), idle)
        self.storm(1)
        before = {p.name: p.rss_kib() for p in self.cluster.processes}
        started = time.monotonic()
        answers = self.storm(2)
        seconds = time.monotonic() - started
        end = time.monotonic() + 1.0
        while any(self.in_use().values()) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertTrue(all(value == 0 for value in self.in_use().values()), self.in_use())
        whole = [text for (_, drop), text in answers if drop is None]
        self.assertGreater(len(whole), REQUESTS // 2)
        for text in whole:
            self.assertIn("200 OK", text.splitlines()[0])
            self.assertIn("data: [DONE]", text)
            self.assertNotIn('"error"', text)
        for p in self.cluster.processes:
            self.assertTrue(p.alive(), p.name)
            self.assertLess(p.rss_kib() - before[p.name], 8 * 1024, f"{p.name} grew")
        print(f"{REQUESTS} requests, {len(whole)} whole, {seconds:.1f} s")


if __name__ == "__main__":
    main()
