"""Plan step: renders a recipe with the conda build engine and writes what it says as JSON.

  python plan.py --recipe /in/source/recipe/recipe.yaml --out /out/plan.json [--variants FILE]…

The result:

  {"engine":  {"name": "rattler-build", "version": "…"},
   "recipe":  "recipe/recipe.yaml",
   "outputs": [{"name", "version", "build", "subdir", "variant": {…}, "hash",
                "pins":   {NAME: {"version", "build", "exact"}},
                "recipe": {… the engine's rendered recipe, untouched …}}, …]}

Outputs stand in an order in which they can be built. Outputs that the recipe skips on this platform are left out.
Equal input gives equal bytes: nothing of the clock or of the machine's folders is written. Nothing is solved and
nothing is fetched. Exit status: see outcome.py. The engine itself refuses outputs that need each other in a cycle;
whether every pinned output exists is decided by the farm from this file.
"""

import argparse
import json
import os
import tempfile
import warnings
from pathlib import Path

import outcome
import recipe as recipes
from outcome import Refused


def kept_by_the_engine(path, further):
    """Identities of the outputs that the engine's own command would build; a skipped output is not among them.

    Rendering by the library evaluates `skip` and does not tell the answer; the command does, on standard output.
    """
    from rattler_build import RattlerBuildError, build_recipes

    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as taken:
        channel = Path(scratch) / "channel" / "noarch"
        channel.mkdir(parents=True)
        (channel / "repodata.json").write_text('{"info": {"subdir": "noarch"}, "packages": {}, "packages.conda": {}}')
        outside = os.dup(1)
        os.dup2(taken.fileno(), 1)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                build_recipes(
                    [path],
                    channel=[channel.parent.as_uri()],
                    variant_config=[str(Path(name).resolve()) for name in further],
                    output_dir=Path(scratch) / "output",
                    render_only=True,
                    use_sharded=False,
                )
        except RattlerBuildError as error:
            raise Refused(f"{path}: {error}") from None
        finally:
            os.dup2(outside, 1)
            os.close(outside)
        taken.seek(0)
        outputs = json.loads(taken.read() or b"[]")
    return {
        (
            output["recipe"]["package"]["name"],
            str(output["recipe"]["build"]["string"]),
            output["build_configuration"]["target_platform"],
        )
        for output in outputs
    }


def describe(variant):
    """What the farm reads of one rendered output."""
    name, version, build, subdir = recipes.identity(variant)
    return {
        "name": name,
        "version": version,
        "build": build,
        "subdir": subdir,
        "variant": {key: str(value) for key, value in variant.variant.items()},
        "hash": variant.hash_info.hash if variant.hash_info else None,
        "pins": {
            pin: {"version": str(info.version), "build": info.build_string, "exact": info.exact}
            for pin, info in variant.pin_subpackages.items()
        },
        "recipe": variant.recipe.to_dict(),
    }


def main():
    parser = argparse.ArgumentParser(prog="plan", description="Render a recipe and write what it says as JSON.")
    parser.add_argument("--recipe", required=True, help="recipe file, or a folder with recipe.yaml")
    parser.add_argument("--out", required=True, help="file to write")
    parser.add_argument("--variants", action="append", default=[], metavar="FILE", help="a further variant file")
    options = parser.parse_args()

    from rattler_build import rattler_build_version

    path = recipes.find(options.recipe)
    rendered = recipes.render(recipes.load(path), path, options.variants)
    kept = kept_by_the_engine(path, options.variants)
    outputs = []
    for variant in rendered:
        name, version, build, subdir = recipes.identity(variant)
        if (name, build, subdir) in kept:
            outputs.append(describe(variant))
            print(f"{subdir}/{name}-{version}-{build}")
        else:
            print(f"{subdir}/{name}-{version}-{build} is skipped on this platform")
    plan = {
        "format": 1,
        "engine": {"name": "rattler-build", "version": rattler_build_version()},
        "recipe": options.recipe,
        "outputs": outputs,
    }
    out = Path(options.out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(plan, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot write {out}: {error.strerror}") from None
    print(f"plan: {len(outputs)} output(s)")


if __name__ == "__main__":
    outcome.leave("plan", main)
