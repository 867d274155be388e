"""`kern run` on a small model: every way of running the same tokens gives the same bytes."""
import pathlib
import random
import tempfile
import unittest

import numpy as np

import run
from programs import CONFIG, SOURCE, tool


class RunTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        gen = lambda *args: tool("k3-gen", args[0], "--config", CONFIG, *args[1:])
        gen("one-rank", "-o", cls.dir / "one.json")
        gen("prefill", "-o", cls.dir / "whole.json")
        gen("prefill", "--cut-at", "5,6", "-o", cls.dir / "stages")
        gen("decode", "--ranks", "2", "-o", cls.dir / "two.json")
        tool("k3-checkpoint", "--config", CONFIG, "-o", cls.dir / "weights", "--seed", "7")
        rng = random.Random(1)
        tokens = [rng.randrange(1000) for _ in range(130)]
        (cls.dir / "tokens.txt").write_text("\n".join(map(str, tokens)))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_kern(self, manifest, *args, tokens=True, code=0):
        given = ["--tokens", self.dir / "tokens.txt"] if tokens else []
        return tool("kern", "run", self.dir / manifest, "--weights", self.dir / "weights", *given,
                    *args, code=code)

    def array(self, name):
        return np.load(self.dir / name)

    def test_flags_that_say_nothing_or_too_much_are_refused(self):
        for program, args, says in (
                ("k3-gen", ["nonsense"], "expected one-rank, prefill or decode"),
                ("k3-gen", ["prefill", "--stages", "2", "--cut-at", "3"], "not together with --cut-at"),
                ("k3-gen", ["decode", "--stages", "2"], "only prefill is cut"),
                ("k3-gen", ["one-rank", "--ranks", "2"], "only decode has ranks"),
                ("k3-gen", ["one-rank", "--binds", "short", "--config", CONFIG, "-o", CONFIG], "series or plain"),
                ("k3-gen", ["prefill", "--stages", "2", "--config", CONFIG, "-o", CONFIG], "directory|exists"),
                ("k3-checkpoint", ["--nonsense"], "unknown flag"),
                ("k3-checkpoint", ["--seed", "-1"], "expected an integer, got -1"),
                ("k3-checkpoint", ["--head-gain", "nan"], "expected a number, got nan")):
            with self.subTest(program=program, args=args):
                self.assertRegex(tool(program, *args, code=1).stderr, says)

    def test_more_memory_than_the_machine_has_is_refused(self):
        said = tool("kern", "serve", self.dir / "one.json", "--weights", self.dir / "weights", "--port", "0",
                    "--slots", str(1 << 24), code=1)
        self.assertRegex(said.stderr, r"no memory for \d+ bytes: this machine has \d+")

    def test_a_manifest_of_the_other_kind_is_told_so(self):
        weights = ["--weights", self.dir / "weights"]
        said = tool("k3-prefill-stage", "--manifest", self.dir / "two.json", *weights, "--head", "127.0.0.1:1", code=1)
        self.assertIn("is one rank of 2", said.stderr)
        said = tool("k3-decode-rank", "--manifest", self.dir / "stages/stage1.json", *weights, "--rank", "1",
                    "--head", "127.0.0.1:1", code=1)
        self.assertIn("is stage 1 of 3 of a prefill pipeline", said.stderr)

    def test_answers_do_not_depend_on_how_the_prompt_is_fed(self):
        answers = [self.run_kern("one.json", "--max-tokens", "8", *how).stdout
                   for how in ([], ["--threads", "2"], ["--via", "decode"], ["--chunk", "64"])]
        self.assertEqual(len(answers[0].split()), 8)
        self.assertEqual(set(answers), {answers[0]})

    def test_an_answer_is_what_its_tokens_give_one_at_a_time(self):
        # Within an answer a step starts before the last one's token is read; here none does.
        answer = self.run_kern("one.json", "--max-tokens", "8").stdout.split()
        so_far = (self.dir / "tokens.txt").read_text().split()
        for token in answer:
            (self.dir / "so_far.txt").write_text("\n".join(so_far))
            step = self.run_kern("one.json", "--max-tokens", "1", "--tokens", self.dir / "so_far.txt", tokens=False)
            self.assertEqual(step.stdout.split(), [token])
            so_far.append(token)

    def test_experts_bound_one_by_one_are_those_bound_as_series(self):
        tool("k3-gen", "one-rank", "--config", CONFIG, "--binds", "plain", "-o", self.dir / "plain.json")
        texts = [(self.dir / name).read_text() for name in ("one.json", "plain.json")]
        self.assertEqual(['"series"' in text for text in texts], [True, False])
        for name in ("one", "plain"):
            tool("kern", "verify", self.dir / f"{name}.json", "--checkpoint", self.dir / "weights")
            self.run_kern(f"{name}.json", "--via", "prefill", "--logits", self.dir / f"{name}.binds.npy")
        self.assertTrue(np.array_equal(self.array("one.binds.npy"), self.array("plain.binds.npy")))

    def test_logits_of_a_prompt_are_the_last_ones_of_its_steps(self):
        self.run_kern("one.json", "--via", "prefill", "--logits", self.dir / "prefill.npy")
        self.run_kern("one.json", "--via", "decode", "--logits", self.dir / "decode.npy")
        steps, last = self.array("decode.npy"), self.array("prefill.npy")
        self.assertEqual((steps.dtype, steps.shape, last.shape), (np.float32, (130, 1280), (1, 1280)))
        self.assertTrue((steps[-1:] == last).all())
        self.assertFalse(np.isnan(steps).any())

    def test_two_ranks_stay_close_to_one(self):
        self.run_kern("one.json", "--via", "decode", "--logits", self.dir / "one.npy")
        self.run_kern("two.json", "--via", "decode", "--logits", self.dir / "two.npy")
        one, two = self.array("one.npy"), self.array("two.npy")
        apart = np.sqrt(((one - two) ** 2).mean(1)) / np.sqrt((one ** 2).mean(1))
        self.assertLess(np.median(apart), 0.05)
        self.assertGreater((one.argmax(1) == two.argmax(1)).mean(), 0.85)

    def test_a_chain_of_stages_between_files_is_the_whole(self):
        path = lambda name: self.dir / f"{name}.npy"
        banks = ["bank.0", "bank.1"]
        self.run_kern("stages/stage0.json", "--max-tokens", "0", "--out", f"hidden={path('h0')}",
                      *[f"--out={b}={path(b)}" for b in banks])
        given = [f"--in={b}={path(b)}" for b in banks]
        self.run_kern("stages/stage1.json", f"--in=hidden={path('h0')}", *given,
                      f"--out=hidden={path('h1')}", f"--state=kda.5={path('kda')}", tokens=False)
        self.run_kern("stages/stage2.json", f"--in=hidden={path('h1')}", *given,
                      f"--out=logits={path('last')}", tokens=False)
        self.run_kern("whole.json", "--logits", path("whole"), "--dump",
                      f"layer.6/hidden={path('h1.whole')}", f"--state=kda.5={path('kda.whole')}")
        for part, whole in (("h1", "h1.whole"), ("kda", "kda.whole"), ("last", "whole")):
            self.assertTrue(np.array_equal(np.load(path(part)), np.load(path(whole))), part)

    def test_a_cut_is_checked_whatever_order_its_stages_are_named_in(self):
        stages = [self.dir / "stages" / f"stage{i}.json" for i in (2, 0, 1)]
        said = tool("kern", "verify", *stages).stdout
        self.assertNotIn("the cut:", said)
        said = tool("kern", "verify", *stages[:2], code=1).stdout
        self.assertIn("the cut:\n/0/cut: is stage 0 of 3; expected stage 0 of 2", said)
        said = tool("kern", "verify", self.dir / "two.json", *stages[:2], code=1).stdout
        self.assertIn("the cut:\n/0/cut: is stage 0 of 3; expected stage 0 of 2", said)
        self.assertNotIn("the cut:", tool("kern", "verify", *stages, self.dir / "two.json").stdout)

    def test_the_memory_line_names_only_what_a_rank_keeps(self):
        line = lambda name: [l for l in tool("kern", "show", self.dir / name).stdout.splitlines()
                             if l.startswith("states a rank")]
        self.assertIn("with 1024 pages of 64 tokens and 65 slots:", line("two.json")[0])
        self.assertIn("with 65 slots:", line("stages/stage1.json")[0])

    def test_a_screen_tells_launches_a_layer_what_crosses_and_what_a_rank_takes(self):
        said = tool("kern", "show", self.dir / "stages/stage1.json").stdout
        self.assertRegex(said, r"prefill +\d+ calls, \d+ launches")
        # three residual streams of 128 bf16
        self.assertRegex(said, r"\nreceives 768 B a row: `hidden` `bank\.0` `bank\.1`\n")
        self.assertRegex(said, r"\nsends 768 B a row: `hidden` `bank\.0` `bank\.1`\n")
        self.assertRegex(said, r"\nin all: [\d.]+ [KMG]iB\n")
        whole = tool("kern", "show", self.dir / "whole.json").stdout
        self.assertRegex(whole, r"\n +1  of 1 launch \(`embed`\)\n")
        self.assertRegex(whole, r"\n +\d+  of \d+ launches \(`layer\.1`, …\)\n")

    def test_one_is_counted_as_one(self):
        said = tool("kern", "show", SOURCE / "tests/manifest/fixtures/base.json").stdout
        self.assertIn("init         1 call, 1 launch; once, after load", said)
        self.assertIn("of 1 launch (`layer.1`)", said)

    def test_programs_tell_their_version(self):
        for program in ("kern", "k3-prefill-stage", "k3-decode-rank"):
            self.assertRegex(tool(program, "--version").stdout, r"^kern \d+\.\d+\.\d+\n$")

    def test_an_old_manifest_is_upgraded_to_one_that_reads_the_same(self):
        old = SOURCE / "tests/manifest/fixtures/five.json"
        new = self.dir / "upgraded.json"
        new.write_text(tool("kern", "verify", "--upgrade", old).stdout)
        self.assertIn('"schema_version": 7', new.read_text())
        self.assertEqual(tool("kern", "verify", old).stdout, tool("kern", "verify", new).stdout)
        self.assertIn("--upgrade takes one manifest",
                      tool("kern", "verify", "--upgrade", old, new, code=2).stderr)

    def test_mistakes_get_a_sentence(self):
        said = lambda manifest, *args, **kw: self.run_kern(manifest, *args, code=2, **kw).stderr
        self.assertIn("the manifest has no program that decodes", said("whole.json", "--via", "decode"))
        self.assertIn("sequences end at 32768", said("one.json", "--max-tokens", "100000"))
        self.assertIn("this stage receives `hidden`", said("stages/stage1.json"))
        self.assertIn("no call labelled `nowhere`",
                      said("one.json", "--dump", f"nowhere/hidden={self.dir / 'x.npy'}"))
        self.assertIn("expected decode or prefill", said("one.json", "--via", "both"))


if __name__ == "__main__":
    run.main()
