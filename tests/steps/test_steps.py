"""Claims about what runs inside job machines: crates/engine/steps/*.py, with the real conda build engine.

Run by the engine's own Python: `<engine>/bin/python tests/steps/test_steps.py`. Needs no network.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEPS = ROOT / "crates" / "engine" / "steps"
EXAMPLES = ROOT / "examples"


class Case(unittest.TestCase):
    """A folder for each claim, and the steps as the agent starts them."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="forgeyard-steps-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def step(self, name, *arguments, env=None):
        command = [sys.executable, str(STEPS / f"{name}.py"), *map(str, arguments)]
        return subprocess.run(
            command, cwd=self.folder, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=300
        )

    def ended(self, result, status, *words):
        """Asserts status and last line, and that nothing looks like a crash."""
        self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        if status:
            last = result.stderr.strip().splitlines()[-1]
            for word in words:
                self.assertIn(word, last)

    def recipe(self, text):
        path = self.folder / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    def plan(self, recipe, *arguments):
        out = self.folder / "plan.json"
        result = self.step("plan", "--recipe", recipe, "--out", out, *arguments)
        self.ended(result, 0)
        return json.loads(out.read_text(encoding="utf-8"))

    def build(self, recipe, output, env=None):
        out = self.folder / "packages"
        result = self.step(
            "build", "--recipe", recipe, "--output", output, "--channel", self.folder / "none", "--out", out,
            "--work", self.folder / "build", env=env,
        )
        self.ended(result, 0)
        (package,) = out.glob(f"*/{output}-*.conda")
        return package

    def run_tests_of(self, package, *arguments):
        return self.step(
            "test", "--package", package, "--channel", self.folder / "none", "--work", self.folder / "test",
            "--prefix", self.folder / "prefix", "--lock", self.folder / "lock.json", *arguments,
        )


class Plan(Case):
    def test_outputs_stand_in_an_order_that_can_be_built(self):
        plan = self.plan(EXAMPLES / "fy-bandwidth" / "recipe")
        self.assertEqual([one["name"] for one in plan["outputs"]], ["fy-opencl-kernels", "fy-bandwidth"])
        kernels, program = plan["outputs"]
        self.assertEqual((kernels["subdir"], kernels["version"]), ("noarch", "0.1.0"))
        self.assertEqual(kernels["build"], f"h{kernels['hash']}_0")
        self.assertEqual(program["pins"]["fy-opencl-kernels"]["build"], kernels["build"])
        self.assertEqual(program["recipe"]["package"], {"name": "fy-bandwidth", "version": "0.1.0"})
        self.assertEqual(plan["engine"]["name"], "rattler-build")

    def test_equal_input_gives_equal_bytes(self):
        digests = set()
        for _ in range(2):
            self.plan(EXAMPLES / "fy-bandwidth" / "recipe")
            digests.add((self.folder / "plan.json").read_bytes())
        self.assertEqual(len(digests), 1)

    def test_cycle_is_refused_by_the_names_of_its_outputs(self):
        result = self.step("plan", "--recipe", EXAMPLES / "broken/cycle/recipe", "--out", "plan.json")
        self.ended(result, 2, "egg", "hen", "cycle")

    def test_pin_of_an_unknown_output_is_left_to_the_farm(self):
        (output,) = self.plan(EXAMPLES / "broken/unknown-output/recipe")["outputs"]
        self.assertEqual(output["recipe"]["requirements"]["run"][0]["pin_subpackage"]["name"], "unknown")
        self.assertNotIn("unknown", output["pins"])

    def test_skipped_output_is_left_out(self):
        text = 'package: {name: a, version: "1"}\nbuild: {skip: [linux]}\n'
        self.assertEqual(self.plan(self.recipe(text))["outputs"], [])

    def test_variants_beside_the_recipe_and_further_ones_count(self):
        recipe = self.recipe('package: {name: a, version: "1"}\ncontext: {}\nbuild: {script: "echo ${{ flavour }}"}\n')
        (self.folder / "variants.yaml").write_text("flavour: [mild, hot]\n", encoding="utf-8")
        self.assertEqual([one["variant"]["flavour"] for one in self.plan(recipe)["outputs"]], ["hot", "mild"])
        further = self.folder / "further.yaml"
        further.write_text("flavour: [sour]\n", encoding="utf-8")
        plan = self.plan(recipe, "--variants", further)
        self.assertEqual([one["variant"]["flavour"] for one in plan["outputs"]], ["sour"])

    def test_bad_recipe_is_refused_in_one_line(self):
        cases = {
            'package: {name: a, version: "1"}\nbuild: {scrip: x}\n': "scrip",
            "package: [": "recipe.yaml",
            "": "recipe.yaml",
            'package: {name: a, version: "${{ missing }}"}\n': "missing",
        }
        for text, word in cases.items():
            with self.subTest(text):
                result = self.step("plan", "--recipe", self.recipe(text), "--out", "plan.json")
                self.ended(result, 2, "plan: refused:", word)
                self.assertFalse((self.folder / "plan.json").exists())

    def test_recipe_that_is_not_text_is_refused(self):
        path = self.folder / "recipe.yaml"
        path.write_bytes(b"\xff\xfe\x00package")
        self.ended(self.step("plan", "--recipe", path, "--out", "plan.json"), 2, "recipe.yaml")

    def test_absent_recipe_is_refused(self):
        self.ended(self.step("plan", "--recipe", "nowhere", "--out", "plan.json"), 2, "no recipe at nowhere")

    def test_missing_argument_is_refused(self):
        self.ended(self.step("plan"), 2, "--recipe")


class Build(Case):
    def info(self, package, name):
        """A file of the package's metadata, read by other programs than the engine."""
        with zipfile.ZipFile(package) as archive:
            (member,) = [one for one in archive.namelist() if one.startswith("info-")]
            packed = archive.read(member)
        unpacked = subprocess.run(["zstd", "-dcq"], input=packed, capture_output=True, check=True).stdout
        import tarfile

        with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
            return tar.extractfile(f"info/{name}").read().decode()

    def test_package_carries_provenance_and_the_recipe_as_written(self):
        recipe = EXAMPLES / "broken/failing-test/recipe"
        env = {"FORGEYARD_SHA": "0123abcd", "FORGEYARD_REMOTE_URL": "https://example.invalid/r"}
        package = self.build(recipe, "failing-test", env=env)
        extra = json.loads(self.info(package, "about.json"))["extra"]
        self.assertEqual(extra, {"remote_url": "https://example.invalid/r", "sha": "0123abcd"})
        self.assertEqual(self.info(package, "recipe/recipe.yaml"), (recipe / "recipe.yaml").read_text(encoding="utf-8"))

    def test_provenance_changes_no_identity(self):
        recipe = EXAMPLES / "fy-bandwidth" / "recipe"
        planned = self.plan(recipe)["outputs"][0]
        package = self.build(recipe, "fy-opencl-kernels", env={"FORGEYARD_SHA": "0123abcd"})
        self.assertEqual(package.name, f"fy-opencl-kernels-0.1.0-{planned['build']}.conda")

    def test_tests_of_the_package_are_not_run(self):
        self.build(EXAMPLES / "broken/failing-test/recipe", "failing-test")

    def test_unknown_output_is_refused_by_name(self):
        result = self.step(
            "build", "--recipe", EXAMPLES / "fy-bandwidth" / "recipe", "--output", "nothing", "--work", "w", "--out", "o"
        )
        self.ended(result, 2, "nothing", "fy-bandwidth")

    def test_requirement_that_is_not_in_the_channel_fails_with_what_is(self):
        result = self.step(
            "build", "--recipe", EXAMPLES / "fy-bandwidth" / "recipe", "--output", "fy-bandwidth",
            "--channel", self.folder / "none", "--work", "w", "--out", "o",
        )
        self.ended(result, 1, "fy-bandwidth", "local channel holds nothing")

    def test_failing_script_fails_with_its_status_and_its_output_is_in_the_log(self):
        recipe = self.recipe('package: {name: a, version: "1"}\nbuild: {script: ["echo last words", "exit 9"]}\n')
        result = self.step("build", "--recipe", recipe, "--output", "a", "--work", "w", "--out", "o")
        self.ended(result, 1, "a: Script failed with status 9")
        self.assertIn("last words", result.stdout)
        self.assertFalse((self.folder / "o").exists())


class Test(Case):
    PROBE = """
package: {name: probe, version: "1"}
build: {noarch: generic, script: ['mkdir -p $PREFIX/share', 'echo 1 > $PREFIX/share/probe']}
tests:
  - script: ['echo "here is $(cat $PREFIX/share/probe)"']
  - script: ['echo {} > $PREFIX/conda-meta/probe-1-h4616a5c_0.json', 'rm -f $PREFIX/share/probe']
  - script: ['exit 5']
"""

    def probe(self):
        return self.build(self.recipe(self.PROBE), "probe")

    def test_lock_and_records_tell_the_digest_of_what_was_tested(self):
        package = self.probe()
        result = self.run_tests_of(package, "--index", 0)
        self.ended(result, 0)
        self.assertIn("here is 1", result.stdout)
        digest = hashlib.sha256(package.read_bytes()).hexdigest()
        lock = (self.folder / "lock.json").read_text(encoding="utf-8")
        self.assertEqual(lock, f'[{{"file_name":"{package.name}","sha256":"{digest}","subdir":"noarch"}}]\n')
        (record,) = (self.folder / "prefix" / "conda-meta").glob("*.json")
        record = json.loads(record.read_text(encoding="utf-8"))
        self.assertEqual((record["fn"], record["sha256"]), (package.name, digest))

    def test_test_that_rewrites_its_own_records_changes_nothing(self):
        package = self.probe()
        self.ended(self.run_tests_of(package, "--index", 1), 0)
        (record,) = (self.folder / "prefix" / "conda-meta").glob("*.json")
        record = json.loads(record.read_text(encoding="utf-8"))
        self.assertEqual(record["sha256"], hashlib.sha256(package.read_bytes()).hexdigest())

    def test_each_test_gets_a_fresh_environment(self):
        self.ended(self.run_tests_of(self.probe(), "--index", 1, "--index", 0), 0)

    def test_failing_test_is_named_and_the_others_run(self):
        result = self.run_tests_of(self.probe(), "--index", 2, "--index", 0)
        self.ended(result, 1, "probe-1", "test 2: Script failed with status 5")
        self.assertIn("test 0: passed", result.stdout)
        self.assertTrue((self.folder / "lock.json").exists())

    def test_index_that_the_package_lacks_is_refused(self):
        self.ended(self.run_tests_of(self.probe(), "--index", 3), 2, "no test 3; it has 3")

    def test_file_that_is_no_package_is_refused(self):
        for name in ("broken-1-0.conda", "broken-1-0.tar.bz2", "broken.txt"):
            with self.subTest(name):
                path = self.folder / name
                path.write_bytes(b"PK\x03\x04 not really")
                self.ended(self.run_tests_of(path), 2, name)

    def test_absent_package_is_refused(self):
        self.ended(self.run_tests_of("nowhere.conda"), 2, "no package at nowhere.conda")


if __name__ == "__main__":
    unittest.main(verbosity=2)
