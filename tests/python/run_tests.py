#!/usr/bin/env python3
"""Makes the wheel and runs the tests of the Python package with it.

  python3 run_tests.py build                     the wheel, tests and types: in CI
  python3 run_tests.py build --full [PYTHON...]  also those that need PyTorch, with each of these interpreters
  python3 run_tests.py build --networks          only the networks that `celer pull` knows, all of them

The wheel is unpacked into a folder for this interpreter, which has what tests compare with, and installed as a user would into
a fresh venv, which has nothing but what the wheel brings.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv[1]).resolve()
FULL, NETWORKS = "--full" in sys.argv, "--networks" in sys.argv
PYTHONS = (sys.argv[sys.argv.index("--full") + 1:] if FULL else []) or [sys.executable]
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRIPT = """
import sys, celer
model = celer.load(sys.argv[1], context=256, threads=1, kv_memory="8MiB")
answer = model.generate("hello", max_tokens=8, temperature=0, ignore_eos=True)
print("".join(answer))
print(len(answer.token_ids), celer.__version__)
"""


def run(*command, check=True, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=7200 if NETWORKS else 900, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{command}: exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="celer-wheel-")
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        print(run(ROOT / "tools/wheel.sh", BUILD, env={**os.environ, "PYTHON": sys.executable}).stdout, flush=True)
        (cls.wheel,) = (BUILD / "wheels").glob("celer-*.whl")
        cls.site = cls.work / "site"
        run(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", cls.site, cls.wheel)

    def environment(self):
        return {**os.environ, "PYTHONPATH": str(self.site)}

    def run_tests(self, name, python=sys.executable, more=(), **environment):
        """A file of tests; 77: all of it was skipped."""
        environment = {"CELER_CACHE": str(self.work), **environment}
        done = run(python, HERE / name, *more, check=False, cwd=self.work,
                   env={key: value for key, value in (self.environment() | environment).items() if value is not None})
        print(done.stdout + "\n".join(line for line in done.stderr.splitlines() if not line.endswith("... ok")), flush=True)
        if done.returncode == 77:
            self.skipTest(done.stdout.strip())
        self.assertEqual(done.returncode, 0)

    def test_language_models(self):
        self.run_tests("llm_test.py")

    def test_adapters(self):
        self.run_tests("lora_test.py")

    def test_networks(self):
        self.run_tests("session_test.py")

    def test_networks_of_files(self):
        # Networks that `celer pull` fetched are in the user's cache.
        self.run_tests("session_networks_test.py", CELER_CACHE=os.environ.get("CELER_CACHE"), more=["--all"] if NETWORKS else [])

    def test_misuse(self):
        self.run_tests("misuse_test.py")

    def test_all_else(self):
        self.run_tests("more_test.py")

    def test_examples(self):
        self.run_tests("examples_test.py")

    def test_notebook(self):
        self.run_tests("notebook_test.py")

    def test_lm_evaluation_harness(self):
        for python in PYTHONS:
            self.run_tests("lm_eval_test.py", python)

    def test_wheel(self):
        self.assertIn("-cp310-abi3-", self.wheel.name)
        module = self.site / "celer/_celer.abi3.so"
        if b".nv_fatbin" not in module.read_bytes():  # else it holds the CUDA code of a build for tests
            self.assertLess(self.wheel.stat().st_size, 20 << 20)
        symbols = run("nm", "-D", "--defined-only", module).stdout.split()
        self.assertEqual(symbols[2::3], ["PyInit__celer"])

    def test_the_source_says_all_that_is_missing(self):
        """What `pip install` of it shows: once without a compiler, once without any package."""
        configure = ["cmake", "-S", ROOT, "-DSKBUILD=2", "-DCELER_PYTHON=ON"]
        path = self.work / "bin"
        path.mkdir()
        (path / "cmake").symlink_to(shutil.which("cmake"))
        said = run(*configure, "-B", self.work / "without", check=False, env={**os.environ, "PATH": str(path), "CXX": "no-such-g++"}).stderr
        self.assertIn("there is no C++ compiler", said)
        said += run(*configure, "-B", self.work / "bare", "-DCMAKE_FIND_ROOT_PATH=/nowhere",
                    *(f"-DCMAKE_FIND_ROOT_PATH_MODE_{kind}=ONLY" for kind in ("PACKAGE", "INCLUDE", "LIBRARY")), check=False).stderr
        self.assertIn("not found: CLI11,", said)
        for package in ("libfmt-dev", "libsentencepiece-dev", "libboost-dev", "python3-dev"):
            self.assertEqual(said.count(package), 2, said)

    def test_types(self):
        config = run(sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", self.work / "mypy", cwd=ROOT, check=False)
        if "No module named mypy" in config.stderr:
            self.skipTest("mypy is not installed")
        self.assertEqual(config.returncode, 0, config.stdout)

    def test_a_fresh_venv(self):
        """As a user installs it: what the wheel says it needs comes from the package index."""
        run(sys.executable, "-m", "venv", self.work / "venv")
        python = self.work / "venv/bin/python"
        done = run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", self.wheel, check=False)
        if done.returncode != 0:
            self.skipTest(f"the package index is not reachable: {done.stderr.strip()[-300:]}")
        model = self.work / "tiny.gguf"
        run(self.work / "venv/bin/celer", "synth", "llama-3.1-8b", "--weights", "q8_0", "-o", model, "--layers", 1, "--hidden", 64,
            "--intermediate", 96, "--vocab", 600, "--heads", 4, "--kv-heads", 2, "--head-dim", 32)
        out = run(python, "-c", SCRIPT, model, cwd=self.work).stdout.splitlines()
        self.assertEqual(out[-1].split()[0], "8")
        self.assertEqual(run(python, "-m", "pip", "check").stdout.strip(), "No broken requirements found.")

    def test_objects_of_transformers(self):
        """Of what this interpreter has; with --full also models."""
        for python in PYTHONS:
            self.run_tests("transformers_test.py", python)

    def test_pytorch(self):
        self.run_full("torch_test.py")

    def test_training(self):
        self.run_full("qat_test.py")

    def run_full(self, name):
        if not FULL:
            self.skipTest("tests that need PyTorch are for make test-python-full")
        for python in PYTHONS:
            self.run_tests(name, python)


if __name__ == "__main__":
    if not (BUILD / "python/_celer.abi3.so").exists():
        print("skipped: this build has no Python module; cmake's output says why")
        sys.exit(77)
    for tool in ("g++", "nm"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing")
    unittest.main(argv=[sys.argv[0], *(["Package.test_networks_of_files"] if NETWORKS else [])], verbosity=2)
