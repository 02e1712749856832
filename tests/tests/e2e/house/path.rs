//! The path of a call in CONTRIBUTING names files that exist, and as many as it says.

use std::collections::BTreeSet;

use crate::tree::{read, root};

/// The three roots of the page, under the names that it gives them.
const ROOMS: [(&str, &str); 3] = [
    ("tower", "mcp-idempotent-tower/src"),
    ("core", "mcp-idempotent-core/src"),
    ("store", "mcp-idempotent-core/src/store/postgres"),
];

/// The files in a text as paths from the root of the tree. A path belongs to the room whose name was the
/// last before it, and at first to the room of the heading.
fn files(text: &str, heading: &'static str) -> Vec<String> {
    let mut room = heading;
    let mut found = Vec::new();
    let mut before = "";
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 0 {
            before = part;
            continue;
        }
        let last_word = before.split_whitespace().last();
        let named = ROOMS.iter().find(|(name, _)| last_word == Some(name));
        room = named.map_or(room, |(_, directory)| directory);
        if part.ends_with(".rs") {
            found.push(format!("{room}/{part}"));
        }
    }
    found
}

/// The paragraphs and the items of lists, each in one line.
fn blocks(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in text.lines() {
        if line.is_empty() || line.starts_with(|first: char| first.is_ascii_digit()) {
            found.push(String::new());
        }
        let block = found.last_mut().unwrap();
        if !block.is_empty() {
            block.push(' ');
        }
        block.push_str(line.trim());
    }
    found
}

fn exists(path: &str) -> bool {
    root().join(path).is_file()
}

/// The number between two texts.
fn count(text: &str, before: &str, after: &str) -> usize {
    let (_, rest) = text.split_once(before).expect(before);
    let (number, _) = rest.split_once(after).expect(after);
    number.trim().parse().expect(before)
}

#[test]
fn the_path_of_a_call_names_files_that_exist_and_counts_them() {
    let page = read("CONTRIBUTING.md");
    let (_, section) = page.split_once("## The path of a call\n").unwrap();
    let (tour, others) = section.split_once("### Other paths").unwrap();
    let (introduction, tour) = tour.split_once("\n\n**").unwrap();

    let (mut to_read, mut to_skip) = (Vec::new(), Vec::new());
    let mut heading = "";
    for block in blocks(&format!("**{tour}")) {
        if let Some((_, after)) = block.split_once("** (") {
            let named = ROOMS.iter().find(|(name, _)| after.starts_with(name));
            heading = named.expect(after).1;
        }
        if let Some((number, item)) = block.split_once(". ")
            && let Ok(number) = number.parse::<usize>()
        {
            to_read.push(files(item, heading).swap_remove(0));
            assert_eq!(number, to_read.len(), "{block}");
        } else if block.starts_with("Skip: ") {
            to_skip.extend(files(&block, heading));
        }
    }
    for file in to_read.iter().chain(&to_skip) {
        assert!(exists(file), "{file}");
    }
    let all: BTreeSet<_> = to_read.iter().chain(&to_skip).collect();
    assert_eq!(
        all.len(),
        to_read.len() + to_skip.len(),
        "one is named twice"
    );
    assert_eq!(count(introduction, "The call passes", "Rust"), all.len());
    assert_eq!(
        count(introduction, "Read the", "numbered ones"),
        to_read.len()
    );
    assert_eq!(count(introduction, "skip the other", "."), to_skip.len());

    let mut seen = 0;
    let (others, _) = others.split_once("\n## ").unwrap();
    for name in tour.split('`').chain(others.split('`')) {
        if name.contains(char::is_whitespace) || !(name.ends_with(".rs") || name.ends_with(".sql"))
        {
            continue;
        }
        let is_there = ROOMS
            .iter()
            .any(|(_, room)| exists(&format!("{room}/{name}")));
        assert!(is_there || exists(name), "{name}");
        seen += 1;
    }
    assert!(seen > all.len(), "only {seen} files are named");
}
