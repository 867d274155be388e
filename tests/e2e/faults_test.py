"""Any one daemon dies: no hang, no wrong token, a sentence in the log, and /health tells the truth."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import socket
import tempfile
import time
import unittest

from cluster import Cluster
from run import main

PROMPT = list(range(5, 205))
TOKENS = 200
SOON = 20  # seconds within which every request must have ended


def stream(port, body):
    """The events of a streamed completion: (status, tokens as text pieces, error or None, whole or not)."""
    data = json.dumps(body).encode()
    status, pieces, error, done = 0, [], None, False
    with socket.create_connection(("127.0.0.1", port), timeout=SOON) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
                     b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        file = sock.makefile("rb")
        status = int(file.readline().split()[1])
        for line in file:
            line = line.decode().strip()
            if line.startswith("{"):
                error = json.loads(line).get("error", error)
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                done = True
                continue
            event = json.loads(line[6:])
            if "error" in event:
                error = event["error"]
            elif event["choices"]:
                pieces.append(event["choices"][0]["text"])
    return status, pieces, error, done


def body(seed=0, tokens=TOKENS):
    return {"model": "k3", "prompt": [p + seed for p in PROMPT], "max_tokens": tokens, "temperature": 0,
            "stream": True, "ignore_eos": True}


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(stage_flags=["--peer-timeout", 3], rank_flags=["--peer-timeout", 3])
        cls.right = {seed: "".join(stream(cls.cluster.port, body(seed))[1]) for seed in range(4)}

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def strike(self, process, sig=signal.SIGKILL, delay=0.6):
        """Hits a process while four answers stream; returns what each client saw, in SOON seconds."""
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            started = time.monotonic()
            asked = [pool.submit(stream, self.cluster.port, body(seed)) for seed in range(4)]
            time.sleep(delay)
            process.kill(sig)
            seen = []
            for seed, future in enumerate(asked):
                try:
                    seen.append((seed, future.result(SOON)))
                except (OSError, ValueError, IndexError) as lost:  # the head itself died
                    seen.append((seed, (0, [], {"message": str(lost)}, False)))
            self.assertLess(time.monotonic() - started, SOON)
        return seen

    def setUp(self):
        for p in self.cluster.processes:
            if not p.alive():
                p.start()
        self.cluster.wait_healthy(30)

    def no_wrong_token(self, seen, head_died=False):
        for seed, (status, pieces, error, done) in seen:
            text = "".join(pieces)
            self.assertTrue(self.right[seed].startswith(text), f"a wrong token: {text!r} is no prefix of {self.right[seed]!r}")
            if done:
                self.assertEqual(text, self.right[seed])
            elif not head_died:  # a dead head's connection just ends
                self.assertIsNotNone(error, f"status {status} and neither [DONE] nor an error")

    def serves_again(self, seconds=30):
        self.cluster.wait_healthy(seconds)
        for seed in range(2):
            _, pieces, error, done = stream(self.cluster.port, body(seed))
            self.assertTrue(done, error)
            self.assertEqual("".join(pieces), self.right[seed])

    def lose(self, process, others, word):
        seen = self.strike(process)
        self.no_wrong_token(seen)
        end = time.monotonic() + 10
        while self.cluster.health()[0] == 200 and time.monotonic() < end:
            time.sleep(0.05)
        status, text = self.cluster.health()
        self.assertEqual(status, 503, text)
        self.assertTrue(any(word in p.text() for p in others if p.alive()), f"nobody says {word!r}")
        for p in others:
            self.assertTrue(p.alive(), f"{p.name} ended\n{p.text()[-500:]}")
        process.wait()
        process.start()
        self.serves_again()

    def test_a_lost_middle_stage_fails_its_prompts_and_the_pipeline_forms_again(self):
        stage = self.cluster.stages[3]
        self.lose(stage, [p for p in self.cluster.processes if p is not stage], "stage 3 is lost")

    def test_a_lost_last_stage_fails_its_prompts_and_the_pipeline_forms_again(self):
        stage = self.cluster.stages[-1]
        self.lose(stage, [p for p in self.cluster.processes if p is not stage], "stage 7 is lost")

    def test_a_lost_rank_ends_its_streams_and_the_group_rejoins(self):
        rank = self.cluster.groups[0][5]
        self.lose(rank, [p for p in self.cluster.processes if p is not rank], "rank 5 is lost")

    def test_a_lost_group_head_ends_its_streams_and_the_group_rejoins(self):
        rank = self.cluster.groups[0][0]
        self.lose(rank, [p for p in self.cluster.processes if p is not rank], "is lost")

    def test_a_lost_head_is_noticed_and_a_new_one_is_served(self):
        head = self.cluster.stages[0]
        self.no_wrong_token(self.strike(head), head_died=True)
        end = time.monotonic() + 10
        others = [p for p in self.cluster.processes if p is not head]
        while time.monotonic() < end and not all("is lost" in p.text() for p in self.cluster.stages[1:]):
            time.sleep(0.1)
        for p in others:
            self.assertTrue(p.alive(), p.name)
        self.assertTrue(all("the head is lost" in p.text() for p in self.cluster.stages[1:]))
        head.wait()
        head.start()
        self.serves_again()

    def test_a_rank_that_stalls_for_a_second_loses_nothing(self):
        rank = self.cluster.groups[0][3]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(stream, self.cluster.port, body(seed)) for seed in range(2)]
            time.sleep(0.5)
            rank.kill(signal.SIGSTOP)
            time.sleep(1.0)
            rank.kill(signal.SIGCONT)
            for seed, future in enumerate(asked):
                _, pieces, error, done = future.result(SOON)
                self.assertTrue(done, error)
                self.assertEqual("".join(pieces), self.right[seed])

    def test_a_rank_that_stalls_for_ever_counts_as_dead(self):
        rank = self.cluster.groups[0][6]
        seen = self.strike(rank, signal.SIGSTOP)
        self.no_wrong_token(seen)
        rank.kill(signal.SIGKILL)
        rank.wait()
        rank.start()
        self.serves_again()


class Second(unittest.TestCase):
    def test_with_two_groups_one_goes_on_when_the_other_is_lost(self):
        with Cluster(ranks=2, groups=2, rank_flags=["--peer-timeout", 3]) as cluster:
            right = {seed: "".join(stream(cluster.port, body(seed, 60))[1]) for seed in range(4)}
            cluster.groups[0][1].kill()
            time.sleep(0.3)
            for seed in range(4):
                _, pieces, error, done = stream(cluster.port, body(seed, 60))
                self.assertTrue(done, error)
                self.assertEqual("".join(pieces), right[seed])
            self.assertEqual(cluster.health()[0], 200)

    def test_ranks_that_come_back_leave_no_connection_behind(self):
        with Cluster(stages=2, ranks=2) as cluster:
            def served():
                _, _, error, done = stream(cluster.port, body(0, 4))
                self.assertTrue(done, error)
                return [len(os.listdir(f"/proc/{p.popen.pid}/fd")) for p in cluster.stages]

            before = served()
            for _ in range(4):
                rank = cluster.groups[0][1]
                rank.kill()
                rank.wait()
                rank.start()
                cluster.wait_healthy(status=503)
                cluster.wait_healthy()
                after = served()
            # A connection of HTTP may be there once and not again; a lost one is four by now.
            self.assertLess(max(b - a for a, b in zip(before, after)), 3, f"{before} -> {after}")

    def mistake(self, cluster, process, flags, says):
        """Restarts a process with wrong flags for three seconds and then with the right ones."""
        right = process.command
        marks = {p.name: len(p.text()) for p in cluster.processes}
        process.kill()
        process.wait()
        process.command = right + flags
        process.start()
        time.sleep(3)
        for p in cluster.processes:
            self.assertTrue(p.alive(), f"{p.name} ended\n{p.text()[-500:]}")
            said = p.text()[marks[p.name]:]
            self.assertLess(len(said.splitlines()), 40, f"{p.name} does nothing but complain")
            if p in says:
                self.assertIn(says[p], said)
        self.assertEqual(cluster.health()[0], 503)
        process.kill()
        process.wait()
        process.command = right
        process.start()
        cluster.wait_healthy(30)

    def test_a_mistaken_process_is_told_so_and_the_others_wait_for_a_better_one(self):
        with Cluster(stages=2, ranks=2) as cluster, tempfile.NamedTemporaryFile() as key:
            key.write(b"a secret that only one process has")
            key.flush()
            head, stage = cluster.stages
            first, second = cluster.groups[0]
            secret = ["--cluster-key-file", key.name]
            for process, flags, says in (
                    (stage, ["--slots", "1"], {stage: "2 slots", head: "2 slots"}),
                    (second, ["--capacity", "64"], {first: "2 pages", second: "2 pages"}),
                    (second, secret, {first: "no cluster key", second: "no cluster key"}),
                    (head, secret, {stage: "has none", first: "has none"})):
                with self.subTest(process=process.name, flags=flags):
                    self.mistake(cluster, process, flags, says)

    def test_a_checkpoint_that_is_cut_in_place_is_said(self):
        with Cluster(stages=2, ranks=1) as cluster, tempfile.TemporaryDirectory() as folder:
            shutil.copytree(cluster.checkpoint, folder, dirs_exist_ok=True)
            stage = cluster.stages[1]
            stage.kill()
            stage.wait()
            stage.command[stage.command.index("--weights") + 1] = folder
            stage.start()
            cluster.wait_healthy(status=503)
            cluster.wait_healthy()
            for shard in pathlib.Path(folder).glob("*.safetensors"):
                os.truncate(shard, 1000)
            _, _, error, done = stream(cluster.port, body(0, 4))
            self.assertFalse(done)
            self.assertIsNotNone(error)
            self.assertEqual(stage.wait(), 1)
            self.assertIn("a mapped file was cut short", stage.text())

    def test_sigterm_lets_an_answer_end_and_exits_zero(self):
        with Cluster(stages=2, ranks=1) as cluster:
            right = "".join(stream(cluster.port, body(0, 60))[1])
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                asked = pool.submit(stream, cluster.port, body(0, 60))
                time.sleep(0.2)
                cluster.stages[0].kill(signal.SIGTERM)
                _, pieces, error, done = asked.result(SOON)
                self.assertTrue(done, error)
                self.assertEqual("".join(pieces), right)
            self.assertEqual(cluster.stages[0].wait(), 0)

    def test_a_port_in_use_is_said_and_ends_the_process(self):
        with Cluster(stages=2, ranks=1) as cluster:
            twin = cluster.spawn("twin", *[str(c) for c in cluster.stages[0].command][0:1], *cluster.stages[0].command[1:])
            self.assertEqual(twin.wait(), 1)
            self.assertIn("in use", twin.text())


if __name__ == "__main__":
    main()
