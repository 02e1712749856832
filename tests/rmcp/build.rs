//! Finds the tests of the rmcp that this package is built with, and makes a module of each file.

use std::{
    collections::BTreeMap, env, error::Error, fmt::Write as _, fs, path::PathBuf, process::Command,
};

/// Files that are not run, each with the reason.
const NOT_RUN: &str = "not_run.json";

fn main() -> Result<(), Box<dyn Error>> {
    for file in ["build.rs", "Cargo.lock", NOT_RUN] {
        println!("cargo::rerun-if-changed={file}");
    }
    let mut not_run: BTreeMap<String, String> =
        serde_json::from_str(&fs::read_to_string(NOT_RUN)?)?;
    let mut modules = String::new();
    let mut files: Vec<_> = fs::read_dir(sources_of_rmcp()?.join("tests"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    for file in files {
        if file.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let name = file
            .file_stem()
            .and_then(|name| name.to_str())
            .ok_or("not a name")?;
        if not_run.remove(name).is_none() {
            // Warnings there are not ours to mend.
            writeln!(
                modules,
                "#[allow(warnings)]\n#[path = {file:?}]\nmod {name};"
            )?;
        }
    }
    if !not_run.is_empty() {
        return Err(format!("{NOT_RUN} names files that rmcp does not have: {not_run:?}").into());
    }
    fs::write(
        PathBuf::from(env::var("OUT_DIR")?).join("tests.rs"),
        modules,
    )?;
    Ok(())
}

/// Where cargo has unpacked it. For this machine only, because a build downloads nothing for others.
fn sources_of_rmcp() -> Result<PathBuf, Box<dyn Error>> {
    let asked = Command::new(env::var("CARGO")?)
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", "host-tuple"])
        .output()?;
    if !asked.status.success() {
        return Err(String::from_utf8_lossy(&asked.stderr).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&asked.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "rmcp")
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or("cargo metadata has no rmcp")?;
    Ok(PathBuf::from(manifest)
        .parent()
        .ok_or("no directory")?
        .into())
}
