"""Reads and renders a recipe the way the engine's own command does.

Variants come from `variants.yaml` beside the recipe, when it is there, and from further files that the caller names;
later files win key by key.
"""

from pathlib import Path

from outcome import Refused


def find(path):
    """The recipe file: `path` itself, or `recipe.yaml` in it."""
    path = Path(path)
    if path.is_dir():
        path = path / "recipe.yaml"
    if not path.is_file():
        raise Refused(f"there is no recipe at {path}")
    return path.resolve()


def variant_files(path, further):
    """The variant files that count for the recipe at `path`, in order."""
    beside = path.parent / "variants.yaml"
    files = [beside] if beside.is_file() else []
    for name in further:
        if not Path(name).is_file():
            raise Refused(f"there is no variant file at {name}")
        files.append(Path(name))
    return files


def load(path):
    """Parses the recipe file."""
    from rattler_build import RattlerBuildError, Stage0Recipe

    try:
        return Stage0Recipe.from_file(path)
    except (RattlerBuildError, UnicodeDecodeError, ValueError) as error:
        raise Refused(f"{path}: {error}") from None


def render(recipe, path, further):
    """Renders every output of a loaded recipe, in the order in which they can be built."""
    from rattler_build import JinjaConfig, PlatformConfig, RattlerBuildError, VariantConfig

    files = variant_files(path, further)
    try:
        if files:
            context = JinjaConfig(platform=PlatformConfig())
            variants = VariantConfig.from_files_with_context([str(file) for file in files], context)
        else:
            variants = VariantConfig()
        return recipe.render(variants)
    except RattlerBuildError as error:
        text = str(error)
        if "CycleDetected" in text:
            names = text.partition('packages: "')[2].partition('"')[0]
            raise Refused(f"{path}: the outputs {names} need each other in a cycle") from None
        raise Refused(f"{path}: {text}") from None
    except ValueError as error:
        raise Refused(f"{path}: {error}") from None


def identity(variant):
    """Name, version, build string and platform folder of a rendered output."""
    package = variant.recipe.package
    subdir = str(variant.variant.get("target_platform", "noarch"))
    return package.name, str(package.version), str(variant.recipe.build.string), subdir
