//! Takes the program out of README.md, so that what stands there is what the tests run.

use std::{env, error::Error, fs, path::PathBuf};

/// The first block of Rust after this heading is a whole program.
const HEADING: &str = "## Five minutes";

fn main() -> Result<(), Box<dyn Error>> {
    let readme = "../README.md";
    println!("cargo::rerun-if-changed={readme}");
    println!("cargo::rerun-if-changed=build.rs");
    let text = fs::read_to_string(readme)?;
    let program = program(&text, HEADING)
        .filter(|program| program.contains("async fn main()"))
        .ok_or_else(|| format!("README.md has no program under {HEADING:?}"))?;
    fs::write(
        PathBuf::from(env::var("OUT_DIR")?).join("readme.rs"),
        program,
    )?;
    Ok(())
}

fn program<'a>(readme: &'a str, heading: &str) -> Option<&'a str> {
    let (_, section) = readme.split_once(&format!("\n{heading}\n"))?;
    let section = section.split("\n## ").next()?;
    let (_, block) = section.split_once("\n```rust")?;
    let (_, code) = block.split_once('\n')?;
    let (code, _) = code.split_once("\n```")?;
    Some(code)
}
