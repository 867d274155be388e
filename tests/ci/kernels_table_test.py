"""The table of kernels refuses what it must: a kernel that is missing, a slow one without a sentence, a row that failed."""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import kernels_plan  # noqa: E402
import kernels_table  # noqa: E402
import kernels_work  # noqa: E402

MACHINE = {"machine": "some", "bytes_per_second": 4e12, "flops": 8e14, "empty_launch_us": 1.5}
PINS = {"norm-rms": {"entries": ["kern_rms", "kern_land_rms"], "sha256": "aa"}}


def buffer(name, size, io, dtype="bf16"):
    return kernels_plan.Buffer(name, dtype, size, "workspace", io)


def rms(rows=8192, width=7168, words=()):
    case = kernels_plan.Case("P", {}, "prefill", rows, 1, rows)
    args = [buffer("x", rows * width * 2, "in"), buffer("w", width * 2, "in"), buffer("y", rows * width * 2, "out"), 1e-5, width, rows]
    return kernels_plan.Launch(case, "rms", 0, "norm-rms", "kern_rms", [rows, 1, 1], [896, 1, 1], [1, 1, 1], 0, args, list(words))


def row(launch, moved, flops=0):
    return {"row": "r0", "launch": launch, "case": "P", "bytes": moved, "flops": flops, "words": []}


def judged(us, moved=4e6, flops=0, why=None, **more):
    said = {"machine": MACHINE, "r0": {"us": us, "best_us": us, "sets": 1, **more}}
    return kernels_table.judge([row(rms(), moved, flops)], said, why or {}, PINS)


class KernelsTable(unittest.TestCase):
    def test_a_pinned_kernel_that_nobody_launches_needs_a_sentence(self):
        (said,) = kernels_table.missing(PINS, {("norm-rms", "kern_rms")}, {})
        self.assertIn("`norm-rms` `kern_land_rms` is not in the table", said)
        reason = {"nobody": {"norm-rms:kern_land_rms": "a reason"}}
        self.assertEqual(kernels_table.missing(PINS, {("norm-rms", "kern_rms")}, reason), [])
        gone = {"nobody": {"norm-rms:kern_land_rms": "a reason", "norm-rms:kern_old": "a reason"}}
        (said,) = kernels_table.missing(PINS, {("norm-rms", "kern_rms")}, gone)
        self.assertIn("`norm-rms:kern_old` is not in k3/kernels.toml", said)

    def test_more_than_eight_times_the_floor_needs_a_sentence(self):
        lines, problems = judged(16.1)
        self.assertEqual((lines[0]["floor_us"], lines[0]["ratio"]), (1.5, 10.73))
        self.assertIn("10.73 times its floor", problems[0])
        lines, problems = judged(16.1, why={"why": {"kern_rms": "a reason"}})
        self.assertEqual((lines[0]["why"], problems), ("a reason", []))
        self.assertEqual(judged(16.1, why={"why": {"kern_rms P": "of this case"}})[0][0]["why"], "of this case")
        self.assertEqual(judged(12.0)[1], [])

    def test_the_floor_is_the_largest_of_bytes_operations_and_a_launch(self):
        self.assertEqual(judged(100, moved=4e7)[0][0]["floor_us"], 10)
        self.assertEqual(judged(100, moved=4e7, flops=1.6e10)[0][0]["floor_us"], 20)
        self.assertEqual(judged(100, moved=4, flops=1)[0][0]["floor_us"], 1.5)

    def test_a_row_that_failed_or_was_not_measured_is_a_problem(self):
        for said in ({"r0": {"error": "an illegal address"}}, {}):
            _, problems = kernels_table.judge([row(rms(), 1)], {"machine": MACHINE, **said}, {}, PINS)
            self.assertEqual(len(problems), 1)
        _, problems = kernels_table.judge([row(rms(), 1)], {"machine": {"error": "no driver"}}, {}, PINS)
        self.assertIn("could not be measured", problems[0])

    def test_a_row_of_an_earlier_run_stays_until_its_kernel_or_its_launch_changes(self):
        (line,), _ = judged(12.0)
        kept = {kernels_table.identity(line): line}
        lines, problems = kernels_table.judge([row(rms(), 4e6)], {}, {}, PINS, kept, 1)
        self.assertEqual((lines[0]["us"], lines[0]["run"], problems), (12.0, 0, []))
        other = {"norm-rms": {**PINS["norm-rms"], "sha256": "bb"}}
        for rows, pins in (([row(rms(), 4e6)], other), ([row(rms(rows=64), 4e6)], PINS)):
            lines, problems = kernels_table.judge(rows, {"machine": MACHINE}, {}, pins, kept, 1)
            self.assertIn("not measured", problems[0])

    def test_bytes_are_each_input_once_and_each_output_once(self):
        launch = rms(rows=64)
        self.assertEqual(kernels_work.sizes(launch), 64 * 7168 * 4 + 7168 * 2)

    def test_rows_choose_experts_evenly_and_some_of_this_rank(self):
        for rows in (1, 64, 2000):
            experts = kernels_plan.Experts(rows, 16, 112, 8)
            for variant in experts.ids:
                self.assertTrue(any(e < 112 for ids in variant for e in ids))
                self.assertTrue(all(len(set(ids)) == 16 for ids in variant))
            self.assertGreaterEqual(experts.picks, experts.touched)


if __name__ == "__main__":
    unittest.main()
