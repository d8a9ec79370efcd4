"""The local channel of a job: packages that earlier jobs of the pipeline made, and nothing else.

The job's inputs are read-only and carry no index, so the channel is put together again below `/work`: one file per
package (the engine's indexer passes over symbolic links), then an index by the engine's own library. A folder `noarch` with an index is always there, because the
engine refuses a channel without one.
"""

import asyncio
import os
import shutil
from pathlib import Path

from outcome import Refused

ENDINGS = (".conda", ".tar.bz2")


def make(source, target):
    """Indexes the packages below `source` (`<subdir>/<file>`; may be absent) as a channel at `target`; its URL."""
    from rattler.index.index import index_fs

    source, target = Path(source), Path(target)
    (target / "noarch").mkdir(parents=True, exist_ok=True)
    for package in sorted(source.glob("*/*")) if source.is_dir() else []:
        if not package.name.endswith(ENDINGS):
            continue
        copy = target / package.parent.name / package.name
        copy.parent.mkdir(exist_ok=True)
        if not copy.exists():
            try:
                os.link(package, copy)
            except OSError:  # another file system, as a job's inputs are
                shutil.copyfile(package, copy)
    try:
        asyncio.run(index_fs(target, write_zst=False, write_shards=False, force=True))
    except Exception as error:
        raise Refused(f"cannot index the packages of {source}: {error}") from None
    return target.resolve().as_uri()


def contents(target):
    """What a channel made here holds, for people."""
    names = sorted(path.name for path in Path(target).glob("*/*") if path.name.endswith(ENDINGS))
    return ", ".join(names) if names else "nothing"
