//! What the documents say about the code is so.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use mcp_idempotent_core::{AppliesIn, PolicyOverride};

use crate::tree::{files, read, root};

/// The names of all functions in a tree of Rust files.
fn functions(directory: &Path, found: &mut BTreeSet<String>) {
    for file in files(directory, "rs") {
        for after in fs::read_to_string(file).unwrap().split("fn ").skip(1) {
            let name = after
                .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .next();
            found.extend(name.map(str::to_owned));
        }
    }
}

#[test]
fn each_row_of_the_tables_of_guarantees_and_states_names_tests_that_exist() {
    let mut found = BTreeSet::new();
    for directory in [
        "tests/tests",
        "tests/tls",
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

/// The commands in a text, without what is around them.
fn commands(text: &str) -> Vec<&str> {
    let begins = ["cargo ", "RUSTDOCFLAGS=", "tests/run"];
    text.lines()
        .map(str::trim)
        .filter(|line| begins.iter().any(|begin| line.starts_with(begin)))
        .collect()
}

#[test]
fn contributing_has_the_commands_of_the_merge_check_word_for_word() {
    let page = read("CONTRIBUTING.md");
    let block = |after: &str| {
        let (_, rest) = page.split_once(after).expect(after);
        let (_, rest) = rest.split_once("```sh\n").unwrap();
        rest.split_once("```").unwrap().0.to_owned()
    };
    let script = read(".ci/run");
    let check = block("`.ci/run` has to pass");
    assert_eq!(commands(&check), commands(&script));
    assert!(commands(&check).len() > 5, "{check}");

    let script = read("tests/run").replace("$feature_list", "$(tests/run --features)");
    for command in commands(&block("What it runs is what you can run by hand")) {
        assert!(script.contains(command), "tests/run has no: {command}");
    }
}

/// The packages that are published.
const PUBLISHED: [&str; 3] = [
    "mcp-idempotent-core",
    "mcp-idempotent-macros",
    "mcp-idempotent-tower",
];

#[test]
fn a_package_has_its_licences_and_a_readme_whose_links_lead_somewhere_from_everywhere() {
    for package in PUBLISHED {
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            assert_eq!(read(&format!("{package}/{licence}")), read(licence));
        }
        let manifest = read(&format!("{package}/Cargo.toml"));
        let documentation = format!("documentation = \"https://docs.rs/{package}\"");
        for line in [&*documentation, "readme = \"README.md\""] {
            assert!(manifest.contains(line), "{package}: {line}");
        }
        let readme = read(&format!("{package}/README.md"));
        let links = readme.split("](").skip(1);
        let links: Vec<_> = links.filter_map(|it| it.split(')').next()).collect();
        assert!(links.len() > 1, "{package}: {links:?}");
        for link in links {
            assert!(
                link.starts_with("https://"),
                "{package}: {link} is relative"
            );
            let page = link.split_once("/mcp-idempotent/mcp-idempotent/blob/main/");
            if let Some((_, page)) = page {
                let page = page.split('#').next().unwrap();
                assert!(root().join(page).exists(), "{package}: there is no {page}");
            }
        }
    }
}

/// The pages that people read as files: in the root, in `docs`, and with the examples.
fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), "md");
    pages.push(root().join("examples/README.md"));
    for entry in fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        pages.extend(
            path.extension()
                .is_some_and(|it| it == "md")
                .then_some(path),
        );
    }
    pages
}

/// What a heading is called in a link.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
    heading
        .chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}

#[test]
fn the_links_of_the_pages_lead_to_files_and_headings_that_exist() {
    let mut seen = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let prose: String = text.split("```").step_by(2).collect();
        for link in prose
            .split("](")
            .skip(1)
            .filter_map(|it| it.split(')').next())
        {
            if link.contains("://") {
                continue;
            }
            seen += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let page = page.display();
            assert!(target.exists(), "{page}: there is no {file}");
            if !heading.is_empty() {
                let text = fs::read_to_string(target).unwrap();
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                let exists = headings.any(|it| anchor(it) == heading);
                assert!(exists, "{page}: there is no heading for {link}");
            }
        }
    }
    assert!(seen > 20, "only {seen} links were found");
}

/// The modes of the options are said three times: in core, in the macro, and to the reader.
#[test]
fn the_attribute_has_every_option_of_a_policy_and_says_its_mode() {
    let macros = read("mcp-idempotent-macros/src/args.rs");
    let page = read("mcp-idempotent-tower/src/attribute/page.md");
    for (option, applies) in PolicyOverride::OPTIONS {
        let option = if *option == "ignored" {
            "ignore"
        } else {
            option
        };
        let row = format!("(\"{option}\", {applies:?}),");
        assert!(macros.contains(&row), "the macro has no {row}");
        let starts = [format!("| `{option} ="), format!("| `{option}(")];
        let is_row = |line: &&str| starts.iter().any(|start| line.starts_with(start));
        let rows: Vec<_> = page.lines().filter(is_row).collect();
        assert!(!rows.is_empty(), "the page has no row for {option}");
        let mode = match applies {
            AppliesIn::Both => continue,
            AppliesIn::Lease => "| Lease mode",
            AppliesIn::Transaction => "| Transaction mode",
        };
        for row in rows {
            assert!(row.contains(mode), "{row}");
        }
    }
}
