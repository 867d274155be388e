"""The checks of ci/ are themselves checked: each rule refuses its smallest offence."""
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "ci"))
import build_kernels  # noqa: E402
import check_layers  # noqa: E402
import machine_code  # noqa: E402
import tidy  # noqa: E402

LAYERS = """
[base]
deps = []
third_party = ["fmt"]
[pool]
deps = []
pure = true
[runtime]
deps = ["base"]
"""


def tree(files):
    folder = tempfile.TemporaryDirectory()
    root = pathlib.Path(folder.name)
    files = {"ci/layers.toml": LAYERS, "libs/base/src/a.cc": "", "kernels/README.md": "", **files}
    for top in ("apps", "k3", "tests", "benchmarks"):
        (root / top).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder, root


class Layers(unittest.TestCase):
    def refuses(self, name, text, sentence):
        folder, root = tree({name: text})
        with folder:
            problems = check_layers.check(root)
            self.assertEqual(len(problems), 1, problems)
            self.assertIn(sentence, problems[0])

    def test_a_clean_tree_has_no_problem(self):
        folder, root = tree({"libs/runtime/src/a.cc": '#include "kern/base/error.h"\n'})
        with folder:
            self.assertEqual(check_layers.check(root), [])

    def test_an_upward_include_is_refused(self):
        self.refuses("libs/pool/src/a.cc", '#include "kern/runtime/runtime.h"\n', "pool may not include runtime")

    def test_an_unlisted_third_party_include_is_refused(self):
        self.refuses("libs/runtime/src/a.cc", "#include <boost/asio.hpp>\n", "runtime may not include boost")

    def test_a_clock_in_a_pure_library_is_refused(self):
        self.refuses("libs/pool/src/a.cc", "auto t = std::chrono::steady_clock::now();\n", "pure")

    def test_an_unordered_container_in_a_pure_library_is_refused(self):
        self.refuses("libs/pool/src/a.cc", "std::unordered_map<int, int> m;\n", "unordered")

    def test_a_model_name_in_a_library_is_refused(self):
        self.refuses("libs/base/src/b.cc", "// tuned for K3\n", "names a model")

    def test_a_runtime_launch_is_refused(self):
        self.refuses("libs/base/src/b.cc", "f<<<1, 2>>>();\n", "launch")

    def test_a_driver_call_outside_its_library_is_refused(self):
        self.refuses("libs/base/src/b.cc", "cuInit(0);\n", "libs/cuda")

    def test_using_namespace_in_a_public_header_is_refused(self):
        self.refuses("libs/base/include/kern/base/b.h", "using namespace std;\n", "using namespace")

    def test_a_device_helper_that_looks_up_is_refused(self):
        self.refuses("kernels/device/ptx/a.cuh", '#include "mma/b.cuh"\n', "may include only abi, ptx, common")

    def test_a_kernel_that_includes_a_host_header_is_refused(self):
        self.refuses("kernels/cuda/norm/a.cu", "#include <vector>\n", "CUDA's headers")

    def test_a_kernel_may_include_device_helpers(self):
        folder, root = tree({"kernels/cuda/norm/a.cu": '#include "mma/b.cuh"\n#include <cuda_bf16.h>\n'})
        with folder:
            self.assertEqual(check_layers.check(root), [])

    def test_a_cycle_is_refused(self):
        folder, root = tree({"ci/layers.toml": '[base]\ndeps = ["pool"]\n[pool]\ndeps = ["base"]\n'})
        with folder:
            self.assertTrue(any("cycle" in p for p in check_layers.check(root)))


class Tidy(unittest.TestCase):
    def refuses(self, name, text, sentence):
        folder, root = tree({name: text, "CMakeLists.txt": "a.cc b.cc main.cc"})
        with folder:
            problems = tidy.check(root)
            self.assertTrue(any(sentence in p for p in problems), problems)

    def test_a_long_line_is_refused(self):
        self.refuses("libs/base/src/a.cc", "//" + "x" * 100 + "\n", "columns")

    def test_a_long_source_is_refused(self):
        self.refuses("libs/base/src/a.cc", "\n" * 501, "lines")

    def test_a_long_header_is_refused(self):
        self.refuses("libs/base/include/kern/base/b.h", "#pragma once\n///\n" + "\n" * 260, "lines")

    def test_unfinished_work_is_refused(self):
        self.refuses("libs/base/src/a.cc", "// TO" + "DO: later\n", "unfinished")

    def test_printing_in_a_library_is_refused(self):
        self.refuses("libs/base/src/a.cc", "std::cout << 1;\n", "printing")

    def test_a_header_without_a_contract_is_refused(self):
        self.refuses("libs/base/include/kern/base/b.h", "#pragma once\nint f();\n", "contract")

    def test_a_catch_main_of_our_own_is_refused(self):
        self.refuses("tests/a/a.cc", "#define CATCH_CONFIG_MAIN\n", "1 translation units use CATCH_CONFIG_MAIN, at most 0")

    def test_a_source_that_nobody_builds_is_refused(self):
        self.refuses("libs/base/src/orphan.cc", "", "no CMakeLists.txt names")


PIN = """["norm-rms"]
source = "kernels/cuda/norm/rms.cu"
sm = "sm_90a"
toolchain = "b"
sha256 = "00"
entries = ["kern_rms"]
"""


class Pins(unittest.TestCase):
    """What ci/build_kernels.py sees on paper, before it compiles."""

    def refuses(self, text, sentence):
        problems = build_kernels.read_pins(text)[1]
        self.assertTrue(any(sentence in p for p in problems), problems)

    def test_a_name_that_is_not_its_source_and_defines_is_refused(self):
        self.refuses(PIN + "defines = { BANK = 3 }\n", "must be called `norm-rms+BANK=3`")

    def test_a_pin_without_a_hash_is_refused(self):
        self.refuses(PIN.replace('sha256 = "00"\n', ""), "has no sha256")

    def test_an_unknown_field_is_refused(self):
        self.refuses(PIN + "speed = 3\n", "unknown field speed")

    def test_a_stack_without_a_reason_is_refused(self):
        self.refuses(PIN + "stack = 8\n", "stack and why go together")

    def test_a_report_that_is_not_there_is_refused(self):
        self.refuses(PIN + 'report = "benchmarks/results/none.json"\n', "is not there")

    def test_two_variants_of_one_cubin_are_refused(self):
        second = PIN.replace("norm-rms", "norm-rms+A=1") + "defines = { A = 1 }\n"
        self.refuses(PIN + second, "are the same cubin")

    def test_a_source_without_a_variant_is_refused(self):
        self.refuses(PIN, "kernels/cuda/norm/stream.cu: no variant")

    def test_a_name_that_tells_the_folder_is_a_problem(self):
        told = build_kernels.names_told("a.cu", "a-b", b"\0_ZN38_INTERNAL_08db1329_8_merge_cu_547495ee6end_of\0")
        self.assertIn("tells the folder of the build", told[0])
        self.assertEqual(build_kernels.names_told("a.cu", "a-b", b"\0_ZN4kern3mla6end_ofEPKfli\0"), [])

    def test_a_source_for_one_architecture_says_why(self):
        pin, only = {"source": "a.cu"}, {"source": "a.cu", "hopper_only": "wgmma"}
        self.assertEqual(build_kernels.portable_told("k", pin, None), [])
        self.assertEqual(build_kernels.portable_told("k", only, "no wgmma"), [])
        self.assertIn("does not compile for sm_103a", build_kernels.portable_told("k", pin, "no wgmma")[0])
        self.assertIn("but it compiles", build_kernels.portable_told("k", only, None)[0])

    def test_an_access_before_the_wait_is_found(self):
        load, wait, prefetch = 0x7981, 0x782E, 0x798F
        code = lambda *which: b"".join(one.to_bytes(2, "little") + bytes(14) for one in which)
        self.assertEqual(machine_code.before_wait(code(prefetch, wait, load)), [])
        self.assertEqual(machine_code.before_wait(code(prefetch, load, wait)), ["a load at 0x10"])
        self.assertIsNone(machine_code.before_wait(code(prefetch, load)))

    def test_an_update_writes_the_found_fields_alone(self):
        text = build_kernels.updated(PIN, {"norm-rms": {"sha256": "ff", "entries": ["a", "b"]}})
        self.assertEqual(text, PIN.replace('"00"', '"ff"').replace('["kern_rms"]', '["a", "b"]'))


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=1).result
    bad = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(1 if bad else 0)
