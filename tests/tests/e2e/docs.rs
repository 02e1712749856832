//! What the documents say about the code is so.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The names of all functions in a tree of Rust files.
fn functions(directory: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            for after in text.split("fn ").skip(1) {
                let name = after
                    .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                    .next();
                found.extend(name.map(str::to_owned));
            }
        }
    }
}

#[test]
fn each_row_of_the_tables_of_guarantees_and_states_names_tests_that_exist() {
    let mut found = BTreeSet::new();
    for directory in [
        "tests/tests",
        "mcp-idempotent-core/tests",
        "mcp-idempotent-core/src/testing",
        "mcp-idempotent-tower/tests",
        "examples/tests",
    ] {
        functions(&root().join(directory), &mut found);
    }
    for page in ["docs/guarantees.md", "docs/state-machine.md", "README.md"] {
        let text = read(page);
        let mut rows = 0;
        let mut in_table = false;
        for line in text.lines() {
            if !line.starts_with('|') {
                in_table = false;
                continue;
            }
            if line.to_lowercase().ends_with("proved by |") {
                in_table = true;
                continue;
            }
            if !in_table || line.starts_with("| ---") {
                continue;
            }
            rows += 1;
            let proof = line.trim_end_matches('|').rsplit('|').next().unwrap();
            let names: Vec<_> = proof.split('`').skip(1).step_by(2).collect();
            assert!(!names.is_empty(), "{page}: no test named in: {line}");
            for name in names {
                assert!(found.contains(name), "{page}: no such test: {name}");
            }
        }
        assert!(rows > 5, "{page}: the guarantee table is gone");
    }
}

#[test]
fn the_page_on_the_wire_has_every_refusal_and_every_name() {
    let page = read("docs/wire.md");
    let kinds = read("mcp-idempotent-core/src/error.rs");
    let names = read("mcp-idempotent-tower/src/wire.rs");
    let refusals = kinds
        .split("=> \"")
        .skip(1)
        .filter_map(|after| after.split('"').next())
        .filter(|text| text.starts_with("idempotency_"));
    let wire_names = names
        .lines()
        .filter(|line| line.starts_with("pub const"))
        .filter_map(|line| line.split('"').nth(1));
    let mut seen = 0;
    for name in refusals.chain(wire_names) {
        assert!(page.contains(name), "docs/wire.md does not mention {name}");
        seen += 1;
    }
    assert!(seen > 15, "only {seen} names were found in the sources");
}

#[test]
fn the_features_in_the_crate_pages_are_those_of_the_manifests() {
    for package in ["mcp-idempotent-core", "mcp-idempotent-tower"] {
        let manifest = read(&format!("{package}/Cargo.toml"));
        let page = read(&format!("{package}/src/lib.rs"));
        let features = manifest.split("[features]").nth(1).unwrap();
        let features = features.split("\n[").next().unwrap();
        for line in features.lines().filter(|line| line.contains(" = [")) {
            let name = line.split(' ').next().unwrap();
            if name != "default" && !name.starts_with("__") {
                assert!(page.contains(&format!("| `{name}` |")), "{package}: {name}");
            }
        }
    }
}
