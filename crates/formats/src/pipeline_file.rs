//! The pipeline file of a repository, `forgeyard.toml` in its root: a small TOML file by strangers.
//!
//! Invariant: a [`PipelineFile`] that leaves here names a recipe by a relative path without `..`, whose every
//! component is a plain name, so that joining it to a folder stays inside that folder.

use crate::toml_text::{self, TomlError};
use forgeyard_model::plan::PipelineFile;
use serde::Deserialize;
use toml::Spanned;

/// Its name in the root of a repository.
pub const NAME: &str = "forgeyard.toml";

/// Larger files are refused unread.
pub const LIMIT: usize = 256 * 1024;

/// A pipeline file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PipelineFileError {
    /// It is too large.
    #[error("{NAME} has {size} bytes; at most {LIMIT} are read")]
    TooLarge {
        /// Its size.
        size: usize,
    },
    /// It is not text.
    #[error("{NAME} is not UTF-8: wrong at byte {byte}")]
    NotText {
        /// The first byte that is wrong.
        byte: usize,
    },
    /// It does not say what it should.
    #[error(transparent)]
    Content(#[from] TomlError),
}

/// Only what is checked after reading, with its place.
#[derive(Deserialize)]
struct Places {
    recipe: Option<Spanned<String>>,
    environment: Option<EnvironmentPlaces>,
}

#[derive(Deserialize)]
struct EnvironmentPlaces {
    specs: Spanned<Vec<String>>,
}

/// Reads a pipeline file.
pub fn read(bytes: &[u8]) -> Result<PipelineFile, PipelineFileError> {
    if bytes.len() > LIMIT {
        return Err(PipelineFileError::TooLarge { size: bytes.len() });
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| PipelineFileError::NotText { byte: error.valid_up_to() })?;
    let file: PipelineFile = toml_text::read(NAME, text)?;
    let places: Places = toml_text::read(NAME, text)?;
    let wrong = |byte, message: String| TomlError::at(NAME, text, byte, message);
    if let Some(recipe) = places.recipe
        && let Err(why) = inside(recipe.get_ref())
    {
        return Err(
            wrong(recipe.span().start, format!("`recipe` must stay inside the repository: {why}")).into()
        );
    }
    if let Some(environment) = places.environment {
        let specs = environment.specs;
        if specs.get_ref().iter().all(|spec| spec.trim().is_empty()) {
            return Err(wrong(
                specs.span().start,
                "`environment.specs` must name at least one package".to_owned(),
            )
            .into());
        }
    }
    Ok(file)
}

/// Whether a path is relative and made of plain names only.
fn inside(path: &str) -> Result<(), String> {
    if path.is_empty() {
        return Err("the path is empty".to_owned());
    }
    if path.starts_with('/') {
        return Err("the path is absolute".to_owned());
    }
    if path.contains(|letter: char| letter == '\\' || letter == ':' || letter.is_control()) {
        return Err("backslashes, colons and control characters are not allowed".to_owned());
    }
    match path.split('/').find(|part| matches!(*part, "" | "." | "..") || part.starts_with('-')) {
        Some(part) => Err(format!("`{part}` is not a plain name")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forgeyard_model::package::GpuNeed;
    use proptest::prelude::*;

    #[test]
    fn empty_file_means_the_defaults() {
        assert_eq!(read(b"").unwrap(), PipelineFile::default());
    }

    #[test]
    fn full_file_is_read() {
        let text = "recipe = 'pkg/recipe.yaml'\n\n[[tests]]\npackage = 'widget'\nindex = 1\n\
                    gpu = 'required'\nmin-memory-mib = 8000\n\n[environment]\nname = 'demo'\nspecs = ['widget']\n\
                    run = ['widget', '--version']\n";
        let file = read(text.as_bytes()).unwrap();
        assert_eq!(file.recipe, "pkg/recipe.yaml");
        assert_eq!((file.tests[0].gpu, file.tests[0].index), (GpuNeed::Required, Some(1)));
        assert_eq!(file.environment.unwrap().run, ["widget", "--version"]);
    }

    #[test]
    fn recipe_outside_the_repository_is_refused_with_its_place() {
        for path in
            ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "", "a\\\\..", "-rf", "c:/x", "a/\\u0000"]
        {
            let text = format!("\nrecipe = \"{path}\"");
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(
                error.starts_with("forgeyard.toml, line 2, column 10: `recipe` must stay inside"),
                "{path}: {error}"
            );
        }
    }

    #[test]
    fn misspelt_keys_and_values_are_explained() {
        let error = |text: &str| read(text.as_bytes()).unwrap_err().to_string();
        assert!(error("recipie = 'x'").ends_with("unknown key `recipie`; did you mean `recipe`?"));
        assert!(error("[[tests]]\ngpu = 'maybe'").contains("line 2, column 7: unknown variant `maybe`"));
        assert!(error("[environment]\nname = 'Not A Name'\nspecs = ['x']").contains("is not a channel name"));
        // Where packages go is for the operator of the farm to say.
        assert!(error("channel = 'gpu'").contains("unknown key `channel`"));
        assert!(error("[environment]\nname = 'x'\nspecs = []").contains("line 3, column 9"));
        assert!(error("a = ").contains("line 1"));
    }

    #[test]
    fn file_that_is_too_large_or_no_text_is_refused() {
        assert_eq!(read(&vec![b'#'; LIMIT + 1]), Err(PipelineFileError::TooLarge { size: LIMIT + 1 }));
        assert_eq!(read(b"# \xff"), Err(PipelineFileError::NotText { byte: 2 }));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }

        #[test]
        fn recipe_that_is_accepted_stays_inside(path in "[a./\\-~ ]{0,12}") {
            if let Ok(file) = read(format!("recipe = \"{path}\"").as_bytes()) {
                let parts: Vec<_> = std::path::Path::new(&file.recipe).components().collect();
                prop_assert!(parts.iter().all(|part| matches!(part, std::path::Component::Normal(_))));
            }
        }
    }
}
