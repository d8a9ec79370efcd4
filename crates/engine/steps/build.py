"""Build step: builds chosen outputs of a recipe with the conda build engine; tests are skipped.

  python build.py --recipe /in/source/recipe/recipe.yaml --output NAME [--output NAME]…
                  [--channel /in/channel] [--out /out/packages] [--work /work/build] [--variants FILE]…

Packages that earlier jobs made stand below the channel as `<subdir>/<file>`; nothing else is solved from, and nothing
is fetched. Every variant of a wanted output is built, in an order that the engine derived. Each package ends up as
`<out>/<subdir>/<file>.conda`, moved there only when it is complete.

Provenance in the sense of CEP 31 goes into `info/about.json` of each package: `sha` from FORGEYARD_SHA, `remote_url`
from FORGEYARD_REMOTE_URL, `flow_run_id` from FORGEYARD_FLOW_RUN_ID; a variable that is not set is left out. The
engine's library has no option for it, so it is put into the recipe's `extra` in memory, where the engine's own
command puts it as well; the recipe in the package stays as it was written.

The engine stamps a package with the time of its build and takes no other time, so two builds of one source differ in
that stamp and in nothing else that this step controls: the build folder has a fixed name.

Scripts run in the engine's strict environment: variables of the job do not reach them, HOME is the work folder. Exit
status: see outcome.py.
"""

import argparse
import os
import shutil
from pathlib import Path

import channel
import outcome
import recipe as recipes
from engine_log import Log
from outcome import Failed, Refused

PROVENANCE = {
    "sha": "FORGEYARD_SHA",
    "remote_url": "FORGEYARD_REMOTE_URL",
    "flow_run_id": "FORGEYARD_FLOW_RUN_ID",
}


def with_provenance(recipe, path):
    """The recipe with the provenance of this job in its `extra`, or the recipe itself when there is none."""
    from rattler_build import Stage0Recipe

    extra = {key: os.environ[name] for key, name in PROVENANCE.items() if os.environ.get(name)}
    if not extra:
        return recipe
    text = recipe.to_dict()
    text["extra"] = {**(text.get("extra") or {}), **extra}
    # The copy that `from_dict` writes is not the recipe: folders and the package's own copy follow the real path.
    marked = Stage0Recipe.from_dict(text)
    marked._recipe_path = path
    return marked


def rendered_with_provenance(path, further):
    """Renders the recipe twice and keeps the marked one only if the mark changed no identity."""
    plain = recipes.load(path)
    bare = recipes.render(plain, path, further)
    marked_recipe = with_provenance(plain, path)
    if marked_recipe is plain:
        return bare
    marked = recipes.render(marked_recipe, path, further)
    if [recipes.identity(one) for one in marked] != [recipes.identity(one) for one in bare]:
        print("warning: provenance would change a build string, so the packages carry none")
        return bare
    return marked


UNSOLVED = "Failed to resolve dependencies"


def build(variant, work, url, threads):
    """Builds one rendered output below `work`; the path of its package and its platform folder."""
    from rattler_build import RattlerBuildError, ToolConfiguration

    name, version, build_string, subdir = recipes.identity(variant)
    print(f"build: {subdir}/{name}-{version}-{build_string}", flush=True)
    log = Log()
    try:
        result = variant.run_build(
            tool_config=ToolConfiguration(
                test_strategy="skip",
                compression_threads=threads,
                use_sharded=False,
                use_zstd=False,
                use_bz2=False,
            ),
            output_dir=work / "output",
            channels=[url],
            progress_callback=log,
            no_build_id=True,
            package_format="conda",
        )
    except RattlerBuildError as error:
        reason = log.error or str(error)
        if UNSOLVED in str(error):
            held = channel.contents(work / "channel")
            reason = f"its requirements cannot be met: the local channel holds {held}, and there is no other"
        raise Failed(f"{name}: {reason}") from None
    if log.broken is not None:
        raise log.broken
    if len(result.packages) != 1:
        raise Failed(f"{name}: the engine made {len(result.packages)} packages, not one")
    return Path(result.packages[0]), subdir


def main():
    parser = argparse.ArgumentParser(prog="build", description="Build outputs of a recipe; tests are skipped.")
    parser.add_argument("--recipe", required=True, help="recipe file, or a folder with recipe.yaml")
    parser.add_argument("--output", action="append", required=True, metavar="NAME", help="an output to build")
    parser.add_argument("--channel", default="/in/channel", help="folder with packages of earlier jobs")
    parser.add_argument("--out", default="/out/packages", help="folder for the packages")
    parser.add_argument("--work", default="/work/build", help="folder to build in")
    parser.add_argument("--variants", action="append", default=[], metavar="FILE", help="a further variant file")
    options = parser.parse_args()

    path = recipes.find(options.recipe)
    rendered = rendered_with_provenance(path, options.variants)
    names = {recipes.identity(variant)[0] for variant in rendered}
    for wanted in options.output:
        if wanted not in names:
            raise Refused(f"{path} has no output `{wanted}`; it has {', '.join(sorted(names))}")

    work = Path(options.work)
    url = channel.make(options.channel, work / "channel")
    threads = len(os.sched_getaffinity(0))
    for variant in rendered:
        if recipes.identity(variant)[0] not in options.output:
            continue
        package, subdir = build(variant, work, url, threads)
        target = Path(options.out) / subdir / package.name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.partial")
        shutil.copyfile(package, partial)
        partial.rename(target)
        print(f"built: {subdir}/{package.name}", flush=True)


if __name__ == "__main__":
    outcome.leave("build", main)
