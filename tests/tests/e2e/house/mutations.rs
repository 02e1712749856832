//! The list of breaks fits the sources, so that it cannot rot between two runs of it.

use std::collections::BTreeSet;

use mcp_idempotent_tests::mutation::all;

use crate::tree::{files, read, root};

#[test]
fn every_break_of_the_list_can_be_planted_and_names_tests_that_exist() {
    let mutations = all().unwrap();
    assert!(mutations.len() >= 25, "only {}", mutations.len());
    let mut names = BTreeSet::new();
    for mutation in &mutations {
        let text = read(&mutation.file);
        let planted = mutation
            .plant(&text)
            .unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(planted, text, "{}", mutation.name);
        assert!(!mutation.tests.is_empty(), "{}: no test", mutation.name);
        assert!(names.insert(&mutation.name), "{}: twice", mutation.name);
        for test in &mutation.tests {
            let sources = files(&root().join(&test.package), "rs");
            let (_, name) = test.name.rsplit_once("::").unwrap();
            let line = format!("fn {name}");
            let is_there =
                |file: &std::path::PathBuf| std::fs::read_to_string(file).unwrap().contains(&line);
            assert!(sources.iter().any(is_there), "no such test: {}", test.name);
        }
    }
}
