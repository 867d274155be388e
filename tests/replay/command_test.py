#!/usr/bin/env python3
"""`kern replay` from the outside: it writes a trace, plays it, and says what is wrong with one."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

KERN = pathlib.Path(os.environ["KERN_BUILD_DIR"]) / "bin" / "kern"


def kern(*arguments):
    return subprocess.run([KERN, "replay", *map(str, arguments)], capture_output=True, text=True)


class Replay(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.trace = pathlib.Path(self.folder.name) / "trace.jsonl"

    def generate(self, *arguments):
        done = kern("--generate", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.trace.write_text(done.stdout)
        return done.stdout

    def test_the_same_seed_writes_the_same_trace_and_it_plays_the_same_twice(self):
        once = self.generate("chat", "--seed", 3, "--sessions", 50)
        self.assertEqual(len(once.splitlines()), 50)
        self.assertEqual(once, self.generate("chat", "--seed", 3, "--sessions", 50))
        self.assertNotEqual(once, self.generate("chat", "--seed", 4, "--sessions", 50))
        options = ["--preset", "k3", "--slots", 20, "--host-bytes", "0,100G", "--policy", "lru,cost", "--json"]
        first = kern(*options, self.trace)
        self.assertEqual((first.returncode, first.stderr), (0, ""))
        self.assertEqual(first.stdout, kern(*options, self.trace).stdout)

    def test_a_run_for_each_policy_and_size_and_more_memory_finds_more(self):
        self.generate("chat", "--sessions", 50)
        done = kern("--preset=k3", "--slots", 20, "--host-bytes", "0,100G", "--policy", "lru,cost", "--json",
                    self.trace)
        runs = json.loads(done.stdout)["runs"]
        self.assertEqual([(run["policy"], run["host_bytes"]) for run in runs],
                         [("lru", 0), ("lru", 100_000_000_000), ("cost", 0), ("cost", 100_000_000_000)])
        self.assertEqual(runs[0]["page_bytes"], 64 * 27648)
        for none, some in (runs[:2], runs[2:]):
            self.assertEqual(none["tokens"]["host"], 0)
            self.assertGreater(some["tokens"]["hit_rate"], none["tokens"]["hit_rate"])
        table = kern("--preset=k3", "--slots", 20, "--host-bytes", "0,100G", self.trace)
        self.assertEqual([line.split()[0] for line in table.stdout.splitlines()[-2:]], ["lru", "lru"])

    def test_what_is_wrong_is_said_in_a_sentence(self):
        self.trace.write_text('{"at_ms":0,"turns":[{"prompt":1,"answer":1}]}\n{"at_ms":0}\n')
        self.assertEqual(self.complaint(self.trace, code=1), f"kern replay: {self.trace}: line 2: `turns` is missing\n")
        self.trace.write_text('{"at_ms":0,"turns":[{"prompt":1,"answer":1}]}\n')
        self.assertEqual(kern(self.trace).returncode, 0)
        for options, sentence in [
                (["--policy", "fifo"], "`--policy`: expected lru, hits or cost, got `fifo`"),
                (["--host-bytes", "2X"], "`--host-bytes`: expected bytes as in 500G, 1.5T or 64Gi, got `2X`"),
                (["--keep", "all"], "`--keep`: expected shared, prompt or answer, got `all`"),
                (["--keep", "answer", "--answers-elsewhere"],
                 "`--keep answer`: with --answers-elsewhere there are none to keep"),
                (["--preset", "k4"], "`--preset`: expected k3 or plain, got `k4`"),
                (["--generate", "noise"], "`--generate`: expected system, chat, agent or mixed, got `noise`")]:
            self.assertEqual(self.complaint(*options, self.trace), f"kern replay: {sentence}\n")
        self.assertEqual(self.complaint(), "kern replay: expected one trace, got 0\n")
        self.assertIn("no such pool: ", self.complaint("--pages", 0, self.trace))

    def test_a_line_that_is_wrong_is_told_from_a_trace_that_is(self):
        self.complaint(self.trace / "beyond")
        wrong = self.trace.with_name("wrong.jsonl")
        wrong.write_text("{}\n")
        self.assertIn("wrong.jsonl: line 1: `at_ms` is missing", self.complaint(wrong, code=1))

    def complaint(self, *arguments, code=2):
        done = kern(*arguments)
        self.assertEqual(done.returncode, code)
        self.assertEqual(done.stdout, "")
        return done.stderr


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(1 if bad else 0)
