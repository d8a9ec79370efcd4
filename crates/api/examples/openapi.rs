//! Prints the document that describes the HTTP API. `cargo xtask openapi` writes it to `openapi/forgeyard.json`.

use std::process::ExitCode;

fn main() -> ExitCode {
    match forgeyard_api::openapi::document() {
        Ok(document) => {
            print!("{document}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("openapi: {error}");
            ExitCode::FAILURE
        }
    }
}
