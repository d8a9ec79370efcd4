"""The local channel of a job: packages that earlier jobs of the pipeline made, and nothing else.

The job's inputs are read-only and carry no index, so the channel is put together again below `/work`: one link per
package, then an index by the engine's own library. A folder `noarch` with an index is always there, because the
engine refuses a channel without one.
"""

import asyncio
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
        link = target / package.parent.name / package.name
        link.parent.mkdir(exist_ok=True)
        if not link.exists():
            link.symlink_to(package.resolve())
    try:
        asyncio.run(index_fs(target, write_zst=False, write_shards=False, force=True))
    except Exception as error:
        raise Refused(f"cannot index the packages of {source}: {error}") from None
    return target.resolve().as_uri()
