"""Test step: runs chosen tests of one package with the conda build engine.

  python test.py --package /in/subject/FILE [--index N]… [--channel /in/channel] [--prefix /work/prefix]
                 [--lock /out/lock.json]

Indexes are those of the package's own list (`info/tests/tests.yaml`); without one, all tests run. Packages that the
subject needs stand below the channel as `<subdir>/<file>`; nothing else is solved from, and nothing is fetched.

What was really tested. The engine makes a fresh environment for each test, from a channel that holds the subject and
from the local channel, under a random name, and removes it afterwards. It tells through its log when the environment
is complete, and waits while that message is handled; at that moment, before the test's first command, this step

  1. copies the environment's `conda-meta/*.json` to `<prefix>/conda-meta/`, so that each record with `fn` and
     `sha256` of what was installed outlives the test (and nothing that the test does can change it);
  2. compares the subject's record with the SHA-256 of the file that was to be tested, and gives up when they differ.

`<prefix>` is therefore a record of the tested environments and not an environment itself. The lock is the sorted
union of what they held, in one line of JSON: [{"file_name", "sha256", "subdir"}, …].

The engine's environment for tests is strict: variables of the job do not reach them, HOME is the test's own folder.
A test that wants to hand figures back writes /out/metrics.json: {"NAME": {"value": "1.5", "unit": "GB/s"}, …}.

Every chosen test runs, also after one failed. Exit status: see outcome.py.
"""

import argparse
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import channel
import outcome
from engine_log import Log
from outcome import Failed, Refused

COMPLETE = "Successfully updated the test environment"


def digest(path):
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)


def _digest(file):
    state = hashlib.sha256()
    while chunk := file.read(1 << 20):
        state.update(chunk)
    return state.hexdigest()


class Witness:
    """Sees the environments of the tests and keeps what they held."""

    def __init__(self, scratch, prefix, file_name, sha256):
        self.scratch, self.file_name, self.sha256 = Path(scratch), file_name, sha256
        self.records = Path(prefix) / "conda-meta"
        self.records.mkdir(parents=True, exist_ok=True)
        self.seen = set()
        self.packages = set()
        self.subject_seen = 0
        self.kernels = os.environ.get("POCL_CACHE_DIR")

    def watch(self, message):
        """Called by the engine's log after each message, while the engine waits."""
        self.keep_kernels()
        if COMPLETE not in message:
            return
        for meta in self.scratch.glob("**/conda-meta"):
            if meta not in self.seen and any(meta.glob("*.json")):
                self.seen.add(meta)
                self.record(meta)

    def keep_kernels(self):
        """Hands PoCL's compiled kernels over to the supervisor: the engine removes the test's HOME with its cache."""
        if not self.kernels:
            return
        for path in self.scratch.glob("**/kcache/*/*/*/*/*.so"):
            kept = Path(self.kernels) / Path(*path.parts[-5:])
            if not kept.exists():
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, kept)

    def record(self, meta):
        """Keeps the records of one environment."""
        for path in sorted(meta.glob("*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            name, sha256 = record.get("fn"), record.get("sha256")
            if not name or not sha256:
                raise RuntimeError(f"the engine's record {path.name} does not tell file name and digest")
            if name == self.file_name:
                self.subject_seen += 1
                if sha256 != self.sha256:
                    raise Failed(f"installed {name} with digest {sha256}, but the package to test has {self.sha256}")
            shutil.copyfile(path, self.records / path.name)
            self.packages.add((record.get("subdir", ""), name, sha256))

    def lock(self):
        """The canonical lock, as text."""
        rows = [{"subdir": subdir, "file_name": name, "sha256": sha} for subdir, name, sha in sorted(self.packages)]
        return json.dumps(rows, sort_keys=True, separators=(",", ":")) + "\n"


def run(package, index, url, witness):
    """Runs one test; whether it passed, and the reason if not."""
    from rattler_build import RattlerBuildError

    log = Log(witness.watch)
    before = witness.subject_seen
    print(f"test {index}: {package.filename}", flush=True)
    try:
        result = package.run_test(
            index,
            channel=[url],
            progress_callback=log,
            use_sharded=False,
            use_zstd=False,
            use_bz2=False,
        )
        passed, reason = result.success, log.error
    except RattlerBuildError as error:
        passed, reason = False, log.error or str(error)
    if log.broken is not None:
        raise log.broken
    if passed and witness.subject_seen == before:
        raise RuntimeError(f"the engine says that test {index} passed, and its environment was never seen")
    print(f"test {index}: {'passed' if passed else 'failed'}", flush=True)
    return passed, reason


def main():
    parser = argparse.ArgumentParser(prog="test", description="Run tests of one package in a fresh environment.")
    parser.add_argument("--package", required=True, help="the package file")
    parser.add_argument("--index", action="append", type=int, metavar="N", help="a test of the package's own list")
    parser.add_argument("--channel", default="/in/channel", help="folder with packages that the subject needs")
    parser.add_argument("--prefix", default="/work/prefix", help="folder for the records of what was installed")
    parser.add_argument("--work", default="/work/test", help="folder to test in")
    parser.add_argument("--lock", default="/out/lock.json", help="file for the lock of the tested environments")
    options = parser.parse_args()

    from rattler_build import Package, RattlerBuildError

    path = Path(options.package)
    if not path.is_file():
        raise Refused(f"there is no package at {path}")
    try:
        package = Package.from_file(path)
        count = package.test_count
    except (RattlerBuildError, ValueError) as error:
        raise Refused(f"{path} is not a conda package that the engine can read: {error}") from None
    indexes = options.index if options.index is not None else list(range(count))
    for index in indexes:
        if not 0 <= index < count:
            raise Refused(f"{path.name} has no test {index}; it has {count}")
    if not indexes:
        raise Refused(f"{path.name} has no tests")

    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    url = channel.make(options.channel, work / "channel")
    # The engine makes its environments below TMPDIR: a folder of our own, so that they can be seen there.
    scratch = tempfile.mkdtemp(prefix="environments-", dir=work)
    os.environ["TMPDIR"] = scratch

    witness = Witness(scratch, options.prefix, path.name, digest(path))
    failures = []
    for index in indexes:
        passed, reason = run(package, index, url, witness)
        if not passed:
            failures.append(f"test {index}: {reason}")
    lock = Path(options.lock)
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(witness.lock(), encoding="utf-8")
    if failures:
        raise Failed(f"{path.name}: {'; '.join(failures)}")


if __name__ == "__main__":
    outcome.leave("test", main)
