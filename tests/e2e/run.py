"""Runs the tests of a file and prints the line that ci/test counts."""
import sys
import unittest


def main():
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    bad, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    if result.testsRun == 0:
        bad = 1  # a module whose set-up failed has tested nothing
    print(f"{max(result.testsRun - bad - skipped, 0)} passed, {bad} failed, {skipped} skipped")
    sys.exit(1 if bad else 0)
