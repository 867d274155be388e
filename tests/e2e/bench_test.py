"""`kern bench` on a small model: what it prints adds up, and what it cannot time is refused."""
import json
import pathlib
import subprocess
import tempfile
import unittest

import run
from programs import BIN, CONFIG, tool


class BenchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        gen = lambda *args: tool("k3-gen", args[0], "--config", CONFIG, *args[1:])
        gen("one-rank", "--layers", "4", "-o", cls.dir / "four.json")
        gen("one-rank", "-o", cls.dir / "whole.json")
        gen("prefill", "--cut-at", "5", "-o", cls.dir / "stages")
        gen("decode", "--ranks", "2", "-o", cls.dir / "two.json")
        gen("decode", "--ranks", "1", "-o", cls.dir / "one.json")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def bench(self, manifest, *args, code=0, weights=("--synthetic", "7")):
        return tool("kern", "bench", self.dir / manifest, *weights, "--repeat", "2", *args, code=code)

    def measured(self, manifest, *args, **how):
        file = self.dir / "out.json"
        self.bench(manifest, *args, "--json", file, **how)
        return json.loads(file.read_text())

    def test_the_first_layers_alone_are_a_manifest(self):
        labels = tool("kern", "show", "--labels", self.dir / "four.json").stdout
        self.assertIn("layer.3", labels)
        self.assertNotIn("layer.4", labels)
        for layers in ("0", "18"):
            said = tool("k3-gen", "one-rank", "--config", CONFIG, "--layers", layers, "-o",
                        self.dir / "none.json", code=1).stderr
            self.assertIn(f"`--layers`: expected 1 to 17, got {layers}", said)

    def test_every_op_of_the_program_is_in_the_table_and_the_launches_add_up(self):
        got = self.measured("four.json", "--program", "prefill", "--rows", "96", "--seqs", "3",
                            "--context", "100", "--by-op")
        manifest = json.loads((self.dir / "four.json").read_text())
        calls = manifest["programs"]["prefill"]["calls"]
        self.assertEqual({line["op"] for line in got["by_op"]}, {call["op"] for call in calls})
        launches = sum(len(manifest["ops"][call["op"]]["impl"]["launches"]) for call in calls)
        self.assertEqual(sum(line["launches"] for line in got["by_op"]), launches)
        self.assertAlmostEqual(sum(line["ms"] for line in got["by_op"]), got["by_launch_ms"], delta=0.01)
        self.assertEqual([line["ms"] for line in got["by_op"]],
                         sorted((line["ms"] for line in got["by_op"]), reverse=True))
        self.assertEqual((got["rows"], got["seqs"], got["context"], got["computed_context"]),
                         (96, 3, 100, 64))
        self.assertEqual(len(got["runs_ms"]), 2)
        self.assertAlmostEqual(got["rows_per_second"] * got["median_ms"], 96e3, delta=96)

    def test_synthetic_weights_follow_the_seed_and_give_numbers(self):
        tokens = lambda seed: self.measured("whole.json", "--program", "prefill", "--rows", "64", "--seqs",
                                            "16", weights=("--synthetic", seed))["tokens"]
        once, again, other = tokens("1"), tokens("1"), tokens("2")
        self.assertEqual(len(once), 16)  # a NaN would have been an error
        self.assertEqual(once, again)
        self.assertNotEqual(once, other)
        self.assertGreater(len(set(once)), 4)

    def test_a_decode_step_goes_on_from_contexts_it_computed(self):
        got = self.measured("one.json", "--program", "decode", "--seqs", "8", "--context", "1000")
        self.assertEqual((got["rows"], got["computed_context"]), (8, 64))
        self.assertEqual(len(got["tokens"]), 8)

    def test_a_checkpoint_serves_as_well(self):
        tool("k3-checkpoint", "--config", CONFIG, "-o", self.dir / "weights", "--seed", "7")
        self.measured("whole.json", "--program", "decode", weights=("--weights", self.dir / "weights"))

    def test_a_stage_gets_what_it_receives(self):
        said = self.bench("stages/stage1.json", "--program", "prefill", "--rows", "32").stdout
        self.assertRegex(said, r"prefill: 32 rows, 1 sequences of 32 positions: median [\d.]+ ms of 2 runs")

    def test_what_cannot_be_timed_is_refused_in_a_sentence(self):
        for manifest, args, says in (
                ("four.json", ["--program", "train"], "no program `train` serves sequences"),
                ("four.json", ["--program", "decode", "--seqs", "65"], "65 sequences, expected 1 to 64"),
                ("four.json", ["--program", "prefill", "--rows", "7", "--seqs", "2"], "7 rows, expected 1 to 512, a multiple of 2"),
                ("four.json", ["--program", "prefill", "--rows", "8", "--context", "7"], "a context of 7, expected at least its 8 rows"),
                ("four.json", ["--program", "decode", "--context", "40000"], "a context of 40000, the manifest's sequences end at"),
                ("four.json", ["--program", "decode", "--device", "gpu:0"], "the manifest is for the host"),
                ("four.json", ["--program", "decode", "--weights", self.dir], "exclude each other|no .*safetensors|index"),
                ("two.json", ["--program", "decode"], "has 2 ranks, `kern bench` runs one")):
            with self.subTest(args=args):
                done = subprocess.run([BIN / "kern", "bench", self.dir / manifest, "--synthetic", "1", *map(str, args)],
                                      text=True, capture_output=True)
                self.assertNotEqual(done.returncode, 0)
                self.assertRegex(done.stderr, says)
        self.assertIn("needs a checkpoint, none was given",
                      self.bench("four.json", "--program", "decode", weights=(), code=2).stderr)


if __name__ == "__main__":
    run.main()
