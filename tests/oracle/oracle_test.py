"""Compares the built programs with the reference, layer by layer and from token to logits."""
import functools
import pathlib
import sys
import tempfile
import unittest

import numpy as np

import mistakes
from compare import (BUILD, HERE, SOURCE, TOP1_POINTS, Case, LayerReport,
                     LayerResult, LogitsReport, StatesReport)
from k3_reference import BF16, EXACT

CONFIGS = {"nano": SOURCE / "k3/configs/k3-nano.json", "broad": HERE / "configs/broad.json",
           "deep": HERE / "configs/deep.json"}
RANKS = {"nano": 8, "broad": 2}  # of the decode manifest that is compared as well
SCRATCH = tempfile.TemporaryDirectory()


@functools.cache
def case_of(name):
    folder = pathlib.Path(SCRATCH.name) / name
    folder.mkdir()
    return Case(CONFIGS[name], seed=11 + len(name), folder=folder)


class Comparisons:
    """The comparisons of one config; a subclass a config names it."""
    name = None

    @property
    def case(self):
        return case_of(self.name)

    def judge(self, reports):
        problems = []
        for report in reports:
            print(f"  {self.name}: {report.line()}")
            problems += report.problems()
        self.assertEqual(problems, [])

    def test_every_layer_makes_of_the_references_input_what_the_reference_makes(self):
        reports = []
        for layer in range(self.case.model.config.layers):
            ours = self.case.layer(layer, *self.case.rounded.inputs[layer])
            reports.append(LayerReport(self.case, layer, ours))
        self.judge(reports)

    def test_logits_of_every_decode_step_are_within_rounding(self):
        case = self.case
        ours = case.logits("decode", case.tokens)
        self.judge([LogitsReport("decode", ours, case.truth.logits, case.rounded.logits,
                                 case.truth.logits, kinds=("median", "top1"))])

    def test_logits_on_the_experts_chosen_are_within_rounding_row_by_row(self):
        case, (ours, _) = self.case, self.case.chain
        self.assertTrue(np.array_equal(ours, case.logits("decode", case.tokens)),
                        "the stages in order are not the whole")
        self.judge([LogitsReport("decode, experts alike", ours, case.chain_truth.logits,
                                 case.rounded.logits, case.rounded_truth.logits)])

    def test_prefill_ends_in_the_logits_of_its_last_position(self):
        case = self.case
        lengths = (1, 2, 31, 64, 65, 100, 128, len(case.tokens))
        rows = [n - 1 for n in lengths]
        for manifest, chunk in ((case.whole, 512), (case.whole, 24),
                                (case.prefill_manifest(), 512)):
            ours = np.concatenate([case.logits("prefill", case.tokens[:n], "--chunk", chunk,
                                               manifest=manifest) for n in lengths])
            self.judge([LogitsReport(f"prefill by {manifest.name} in items of {chunk}", ours,
                                     case.chain_truth.logits[rows], case.rounded.logits[rows],
                                     case.rounded_truth.logits[rows],
                                     kinds=("median", "all"))])

    def test_an_answer_is_the_best_token_of_the_decode_steps_own_logits(self):
        case = self.case
        steps = case.chain[0][len(case.prompt) - 1:]
        self.assertEqual(np.argmax(steps, axis=-1).tolist(), case.answer)

    def test_greedy_answers_are_the_references_as_often_as_rounding_allows(self):
        case, rng = self.case, np.random.default_rng(1)
        said, truth, rounded = [], [], []
        prompts = [case.prompt, *rng.integers(0, case.model.config.vocab, (3, 12)).tolist()]
        for prompt in prompts:
            answer = case.answer if prompt is case.prompt else case.greedy(prompt, 41)
            self.assertEqual(len(answer), 41)
            tokens = prompt + answer[:-1]
            said += answer
            for best, r in ((truth, EXACT), (rounded, BF16)):
                logits = case.model.forward(tokens, r).logits[len(prompt) - 1:]
                best += np.argmax(logits, axis=-1).tolist()
        agree, allowed = (100 * float(np.mean(np.equal(side, truth))) for side in (said, rounded))
        print(f"  {self.name}: {len(prompts)} answers, {len(said)} tokens: "
              f"top-1 {agree:.1f} ({allowed:.1f})")
        self.assertGreaterEqual(agree, allowed - TOP1_POINTS)

    def test_states_after_the_prompt_and_after_the_steps_behind_it_are_within_rounding(self):
        case, reports = self.case, []
        steps = len(case.tokens) - len(case.prompt)
        for count, args in ((0, ()), (0, ("--chunk", 24)), (steps, ())):
            length = len(case.prompt) + count
            sides = [model.forward(case.tokens[:length], *r).states
                     for model, *r in case.sides(length)]
            found = case.states(case.prompt, count, *args)
            reports.append(StatesReport(" ".join(("states", f"after {length}", *map(str, args))),
                                        found, sides[0], sides[2], sides[1]))
        self.judge(reports)

    def test_decode_ranks_together_are_within_rounding(self):
        if self.name not in RANKS:
            self.skipTest("no number of ranks divides this config")
        case, ranks = self.case, RANKS[self.name]
        ours = case.logits("decode", case.tokens, manifest=case.decode_manifest(ranks))
        self.judge([LogitsReport(f"decode on {ranks} ranks", ours, case.truth.logits,
                                 case.rounded.logits, case.truth.logits, kinds=("median", "top1"))])


class Nano(Comparisons, unittest.TestCase):
    name = "nano"


class Broad(Comparisons, unittest.TestCase):
    name = "broad"


class Deep(Comparisons, unittest.TestCase):
    name = "deep"


class Mistakes(unittest.TestCase):
    """The thresholds above refuse an implementation with a known mistake."""

    def test_logits_with_a_mistake_are_refused(self):
        case = case_of("broad")
        for plant in mistakes.ALL:
            if plant in mistakes.SUBTLE:
                continue
            with self.subTest(plant.__name__):
                logits = plant(case.model.config, case.model.tensors).forward(
                    case.tokens, BF16).logits
                report = LogitsReport(plant.__name__, logits, case.truth.logits,
                                      case.rounded.logits, case.truth.logits,
                                      kinds=("median", "top1"))
                print(f"  {report.line()}")
                self.assertNotEqual(report.problems(), [])

    def test_a_layer_with_a_mistake_is_refused(self):
        case = case_of("broad")
        for plant in mistakes.ALL:
            with self.subTest(plant.__name__):
                planted, problems = plant(case.model.config, case.model.tensors), []
                for layer, given in enumerate(case.rounded.inputs):
                    ours = LayerResult.of(planted, layer, *given, BF16)
                    problems += LayerReport(case, layer, ours).problems()
                self.assertNotEqual(problems, [])


def main():
    if not (BUILD / "bin" / "kern").exists():
        print(f"{BUILD / 'bin' / 'kern'} is not built", file=sys.stderr)
        print("0 passed, 1 failed")
        sys.exit(1)
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    SCRATCH.cleanup()
    bad = len(result.failures) + len(result.errors)
    ran = result.testsRun - len(result.skipped)
    if ran == 0:
        bad = 1  # nothing was compared
    sys.stderr.flush()
    print(f"{max(ran - bad, 0)} passed, {bad} failed")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
