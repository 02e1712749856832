//! The rules of the house: how long a file may be, and what may import what.
//!
//! The lists of exceptions are exact, so that they can only shrink: one that is missing fails, and
//! so does one that is no longer needed.

mod mutations;
mod path;
mod source;

use std::collections::{BTreeMap, BTreeSet};

use self::source::Source;

const CORE: &str = "mcp-idempotent-core";
const TOWER: &str = "mcp-idempotent-tower";
const PACKAGES: [&str; 3] = [CORE, "mcp-idempotent-macros", TOWER];

/// Files of more than 400 lines: none, and none may come.
const TOO_LONG: [(&str, &str); 0] = [];

/// Files that import each other in a circle: none, and none may come.
const CIRCLES: [(&str, &str); 0] = [];

/// Half of the files are shorter than this. It is to come down to 150, and never goes up.
const MEDIAN: usize = 160;

/// How many files of the tower crate may name rmcp: what a new major version of it costs.
const FILES_WITH_RMCP: usize = 36;

#[test]
fn no_file_has_more_than_400_lines_and_half_of_them_are_short() {
    let mut lengths = Vec::new();
    let mut too_long = BTreeSet::new();
    for package in PACKAGES {
        for module in Source::of(package).0.into_values() {
            lengths.push(module.lines);
            if module.lines > 400 {
                too_long.insert(format!("{package}/src/{}", module.file));
            }
        }
    }
    assert_exactly(too_long, &TOO_LONG);
    lengths.sort_unstable();
    let median = lengths[lengths.len() / 2];
    assert!(median < MEDIAN, "the median of all files is {median} lines");
}

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    let mut found = BTreeSet::new();
    for package in PACKAGES {
        let source = Source::of(package);
        for circle in circles(&source.uses()) {
            found.insert(format!("{package}: {}", circle.join(" ")));
        }
    }
    assert_exactly(found, &CIRCLES);
}

#[test]
fn core_knows_no_mcp_crate() {
    for module in Source::of(CORE).0.values() {
        assert!(!module.code.contains("rmcp"), "{}", module.file);
    }
    let manifest = crate::tree::read(&format!("{CORE}/Cargo.toml"));
    assert!(!manifest.contains("rmcp"));
}

#[test]
fn a_store_never_reaches_into_the_engine() {
    let source = Source::of(CORE);
    for (file, used) in source.uses() {
        let reached: Vec<_> = used.iter().filter(|it| it.starts_with("engine/")).collect();
        assert!(
            !file.starts_with("store/") || reached.is_empty(),
            "{file} imports {reached:?}"
        );
    }
}

#[test]
fn the_engine_names_no_store() {
    let source = Source::of(CORE);
    let stores = ["memory", "sqlite", "postgres", "redis"];
    for (file, used) in source.uses() {
        for store in stores {
            let folder = format!("store/{store}/");
            let names_it = used.iter().any(|it| it.starts_with(&folder));
            assert!(
                !file.starts_with("engine/") || !names_it,
                "{file} imports the {store} store"
            );
        }
    }
    let engine = |module: &&source::Module| module.file.starts_with("engine/");
    for module in source.0.values().filter(engine) {
        for name in ["MemoryStore", "SqliteStore", "PostgresStore", "RedisStore"] {
            assert!(!module.code.contains(name), "{}: {name}", module.file);
        }
    }
}

#[test]
fn few_files_name_rmcp() {
    let source = Source::of(TOWER);
    let names_it = |module: &&source::Module| module.code.contains("rmcp::");
    let count = source.0.values().filter(names_it).count();
    assert!(
        count <= FILES_WITH_RMCP,
        "{count} files name rmcp, {FILES_WITH_RMCP} may"
    );
}

#[test]
fn the_file_of_wire_names_has_names_only() {
    let source = Source::of(TOWER);
    let wire = &source.0[&vec!["wire".to_owned()]];
    let mut names = 0;
    for item in wire.code.split(';').map(str::trim) {
        let value = item
            .split_once("const ")
            .and_then(|(_, constant)| constant.split_once(": &str = "))
            .map(|(_, value)| value.trim());
        let is_name = value.is_some_and(|value| value.starts_with('"') && value.ends_with('"'));
        assert!(is_name || item.is_empty(), "not a name: {item}");
        names += usize::from(is_name);
    }
    assert!(names > 10, "only {names} names were found");
}

fn assert_exactly(found: BTreeSet<String>, allowed: &[(&str, &str)]) {
    let allowed: BTreeSet<_> = allowed.iter().map(|(what, _)| (*what).to_owned()).collect();
    let new: Vec<_> = found.difference(&allowed).collect();
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(new.is_empty(), "not allowed: {new:#?}");
    assert!(
        gone.is_empty(),
        "mended, so take it off the list: {gone:#?}"
    );
}

/// Files that reach each other, in groups.
fn circles<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<Vec<&'a str>> {
    let reach: BTreeMap<_, _> = uses
        .keys()
        .map(|file| (*file, reached(file, uses)))
        .collect();
    let circle_of = |file: &&'a str| -> Vec<_> {
        let back = |other: &&&str| reach[**other].contains(file);
        reach[file].iter().filter(back).copied().collect()
    };
    let mut found: BTreeSet<_> = reach.keys().map(circle_of).collect();
    found.remove(&Vec::new());
    found
}

fn reached<'a>(from: &'a str, uses: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        open.extend(uses[file].iter().filter(|next| found.insert(**next)));
    }
    found
}

#[test]
fn a_circle_is_found_where_there_is_one() {
    let uses = BTreeMap::from([
        ("a", BTreeSet::from(["b"])),
        ("b", BTreeSet::from(["c", "d"])),
        ("c", BTreeSet::from(["b"])),
        ("d", BTreeSet::new()),
    ]);
    assert_eq!(circles(&uses), BTreeSet::from([vec!["b", "c"]]));
}
