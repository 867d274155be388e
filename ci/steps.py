"""The steps of ci/test, cheap ones first. Ends with one line: N passed, N failed."""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD, SANITIZED = ROOT / "build", ROOT / "build-sanitize"
JOBS = str(os.cpu_count() or 2)
# The libraries whose whole test runs again under the address and undefined-behaviour sanitizers.
SANITIZED_TESTS = ["base", "trace", "manifest", "pool", "text", "safetensors", "cuda", "transport", "engine", "serve", "replay"]

# The fuzzing corpora that are replayed there: those of the same libraries.
SANITIZED_CORPORA = ["manifest", "upgrade", "cut", "safetensors", "tokenizer", "http", "frame", "image", "pool_ops"]


class Tally:
    """Counts what ran; a step that printed no count is one test."""

    def __init__(self):
        self.passed, self.failed, self.times = 0, 0, []

    def run(self, name, command, count=None, env=None):
        start = time.monotonic()
        line = " ".join(map(str, command))
        line = line if len(line) < 160 else line[:150] + " …"
        print(f"== {name}: {line}", flush=True)
        done = subprocess.run(list(map(str, command)), cwd=ROOT, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
        seconds = time.monotonic() - start
        self.times.append((name, seconds))
        passed, failed = count(done.stdout) if count else (0, 0)
        if done.returncode != 0 and failed == 0:
            failed = 1
        if done.returncode == 0 and passed == 0:
            passed = 1
        self.passed, self.failed = self.passed + passed, self.failed + failed
        tail = done.stdout if done.returncode != 0 else "\n".join(done.stdout.splitlines()[-3:])
        print(tail[-20000:], flush=True)
        if done.returncode == 0:  # what was left out is said, wherever it stands in the log
            print("".join(f"{text}\n" for text in done.stdout.splitlines() if "... skipped" in text), end="", flush=True)
        print(f"== {name}: {passed} passed, {failed} failed, {seconds:.1f} s", flush=True)
        if done.returncode != 0:
            print(f"== to repeat: {line}", flush=True)
        return done.returncode == 0


def catch_cases(text):
    """Adds up the summaries of every Catch2 binary and unittest run in a CTest log."""
    passed = failed = 0
    for line in text.splitlines():
        line = re.sub(r"^\d+: ", "", line)
        if found := re.match(r"All tests passed \(\d+ assertions? in (\d+) test cases?\)", line):
            passed += int(found[1])
        elif found := re.match(r"test cases:\s*(\d+)(.*)", line):
            bad = re.search(r"(\d+) failed", found[2])
            failed += int(bad[1]) if bad else 0
            passed += int(found[1]) - (int(bad[1]) if bad else 0)
        elif found := re.match(r"(\d+) passed, (\d+) failed", line):
            passed, failed = passed + int(found[1]), failed + int(found[2])
    return passed, failed


def configure(tally, folder, *options):
    return tally.run("configure", ["cmake", "-S", ".", "-B", folder, "-G", "Ninja", *options])


def step_layers(tally):
    tally.run("layers", [sys.executable, "ci/check_layers.py"])


def step_tidy(tally):
    tally.run("tidy", [sys.executable, "ci/tidy.py"])


def step_format(tally):
    tally.run("format", ["bash", "-c", "git ls-files '*.h' '*.cc' '*.cu' '*.cuh' | xargs clang-format --dry-run --Werror"])


def step_checks(tally):
    tally.run("checks", [sys.executable, "tests/ci/checks_test.py"], catch_cases)


def step_kernels(tally):
    tally.run("kernels", [sys.executable, "ci/build_kernels.py"])


def step_build(tally):
    return configure(tally, BUILD, "-DCMAKE_BUILD_TYPE=Release") and \
        tally.run("build", ["ninja", "-C", BUILD, "-j", JOBS])


def step_host(tally):
    tally.run("host tests", ["ctest", "--test-dir", BUILD, "-V", "-LE", "e2e"], catch_cases,
              {"KERN_REQUIRE_PYTHON": "1"})


def step_sanitize(tally):
    targets = [f"{name}-test" for name in SANITIZED_TESTS] + [f"{name}-replay" for name in SANITIZED_CORPORA]
    if configure(tally, SANITIZED, "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1",
                 "-DKERN_SANITIZE=ON", "-DKERN_BENCHMARKS=OFF") and \
            tally.run("sanitized build", ["ninja", "-C", SANITIZED, "-j", JOBS, *targets]):
        for name in SANITIZED_TESTS:
            tally.run(f"sanitized {name}", [SANITIZED / "bin" / f"{name}-test"], catch_cases)
        for name in SANITIZED_CORPORA:
            tally.run(f"sanitized corpus {name}", [SANITIZED / "bin" / f"{name}-replay", f"tests/fuzz/corpus/{name}"],
                      catch_cases)


def step_fuzz(tally):
    tally.run("fuzz smoke", ["ci/fuzz_smoke"], catch_cases)


def step_e2e(tally):
    tally.run("end to end", ["ctest", "--test-dir", BUILD, "-V", "-L", "e2e"], catch_cases,
              {"KERN_REQUIRE_PYTHON": "1"})


STEPS = {"layers": step_layers, "tidy": step_tidy, "format": step_format, "checks": step_checks,
         "kernels": step_kernels, "build": step_build, "host": step_host, "e2e": step_e2e, "sanitize": step_sanitize,
         "fuzz": step_fuzz}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=STEPS)
    chosen = parser.parse_args().only or list(STEPS)
    tally = Tally()
    for name, step in STEPS.items():
        if name in chosen and step(tally) is False:
            break
    print("== times: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in tally.times))
    print(f"{tally.passed} passed, {tally.failed} failed")
    sys.exit(1 if tally.failed else 0)


if __name__ == "__main__":
    main()
