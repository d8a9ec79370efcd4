"""A conda client that is none of ours: solves from a channel, installs, and prints what it wrote down about each package.

Arguments: channel URL, folder for the prefix, folder for the cache, package. Output: JSON, file name to SHA-256.
"""

import asyncio
import json
import pathlib
import sys

import rattler


async def main(channel: str, prefix: str, cache: str, package: str) -> None:
    records = await rattler.solve(
        sources=[channel],
        specs=[package],
        platforms=["linux-64", "noarch"],
        virtual_packages=rattler.VirtualPackage.detect(),
        gateway=rattler.Gateway(cache_dir=pathlib.Path(cache) / "index"),
    )
    await rattler.install(
        records, target_prefix=prefix, cache_dir=pathlib.Path(cache) / "packages", show_progress=False
    )
    found = {}
    for path in sorted(pathlib.Path(prefix, "conda-meta").glob("*.json")):
        record = json.loads(path.read_text())
        found[record["fn"]] = record["sha256"]
    print(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
