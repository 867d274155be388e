#!/usr/bin/env python3
"""Every entry of every module that k3/kernels.toml pins is launched by a family of kern-device-test.

usage: coverage_test.py PROGRAM        PROGRAM --list says what the families launch; needs no GPU
"""
import pathlib
import subprocess
import sys
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Modules that several GPUs run together, and the test that holds them instead of a family.
ELSEWHERE = {"comm-collective": "tests/k3/device/ranks_test.cc"}


def missing(pins: dict, launched: set) -> list[str]:
    return [f"k3/kernels.toml: `{key}`: no family of tests/kernels/device launches {entry}"
            for key, pin in pins.items() if key not in ELSEWHERE
            for entry in pin["entries"] if (key, entry) not in launched]


def unpinned(pins: dict, launched: set) -> list[str]:
    return [f"tests/kernels/device launches {entry} of `{key}`, which k3/kernels.toml does not pin"
            for key, entry in sorted(launched) if entry not in pins.get(key, {}).get("entries", [])]


class Coverage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        done = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True, timeout=300)
        cls.launched = {tuple(line.split()) for line in done.stdout.splitlines()}
        cls.pins = tomllib.loads((ROOT / "k3" / "kernels.toml").read_text())

    def test_every_pinned_entry_is_launched(self):
        self.assertEqual(missing(self.pins, self.launched), [])

    def test_every_launched_entry_is_pinned(self):
        self.assertEqual(unpinned(self.pins, self.launched), [])

    def test_what_is_held_elsewhere_is_there(self):
        for key, test in ELSEWHERE.items():
            self.assertIn(key, self.pins)
            self.assertTrue((ROOT / test).is_file(), test)

    def test_a_kernel_without_a_family_is_named(self):
        pins = {**self.pins, "norm-new": {"entries": ["kern_new"]}}
        self.assertEqual(missing(pins, self.launched),
                         ["k3/kernels.toml: `norm-new`: no family of tests/kernels/device launches kern_new"])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    result = unittest.main(exit=False, verbosity=1).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(1 if bad else 0)
