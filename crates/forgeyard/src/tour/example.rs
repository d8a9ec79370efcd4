//! The example that the tour carries: an OpenCL program that measures a device. It is part of this binary, so that the
//! tour runs wherever the binary does.

use anyhow::Result;
use std::path::Path;

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_bytes!(concat!("../../../../examples/fy-bandwidth/", $path)))),*]
    };
}

/// Files of the example by path.
const FILES: &[(&str, &[u8])] = files![
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "forgeyard.toml",
    "kernels/copy.cl",
    "kernels/fma.cl",
    "recipe/recipe.yaml",
    "src/main.cpp",
    "src/measure.cpp",
    "src/measure.hpp",
    "src/opencl.cpp",
    "src/opencl.hpp",
];

/// Writes the example into a folder.
pub fn write(folder: &Path) -> Result<()> {
    for (path, bytes) in FILES {
        let to = folder.join(path);
        if let Some(parent) = to.parent() {
            fs_err::create_dir_all(parent)?;
        }
        fs_err::write(to, bytes)?;
    }
    Ok(())
}
