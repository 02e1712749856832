//! The Rust files of a crate, and what their `use` lines name.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use crate::tree;

/// One `use` of one item: `use a::{b, c as d}` is two of them.
#[derive(Debug, Clone)]
struct Import {
    path: Vec<String>,
    /// What the file calls it; `*` for all that is there.
    name: String,
    /// Passed on to others, with `pub` of any kind.
    is_re_export: bool,
    /// At the margin, and so not inside a function or an inline module.
    is_of_file: bool,
}

/// A file, which is a module.
#[derive(Debug)]
pub(super) struct Module {
    /// Relative to `src`.
    pub(super) file: String,
    pub(super) lines: usize,
    imports: Vec<Import>,
    /// Without comments and without unit tests.
    pub(super) code: String,
}

/// The modules of a crate by their paths in it; the crate itself has the empty one.
#[derive(Debug)]
pub(super) struct Source(pub(super) BTreeMap<Vec<String>, Module>);

impl Source {
    pub(super) fn of(package: &str) -> Self {
        let directory = tree::root().join(package).join("src");
        let mut modules = BTreeMap::new();
        for file in tree::files(&directory, "rs") {
            let name = file.strip_prefix(&directory).unwrap();
            let text = std::fs::read_to_string(&file).unwrap();
            let code = code(&text);
            let module = Module {
                file: name.display().to_string(),
                lines: text.lines().count(),
                imports: imports(&code),
                code,
            };
            modules.insert(module_path(name), module);
        }
        Self(modules)
    }

    /// For each file those whose items its `use` lines name. What a line only passes on does not
    /// count; an item that is passed on counts for the file that has it.
    pub(super) fn uses(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        self.0
            .iter()
            .map(|(path, module)| {
                let used = module
                    .imports
                    .iter()
                    .filter(|import| import.is_of_file && !import.is_re_export)
                    .filter_map(|import| self.resolve(self.absolute(path, &import.path)?, 0))
                    .filter(|file| *file != module.file)
                    .collect();
                (&*module.file, used)
            })
            .collect()
    }

    /// `path` as seen from the crate, if it is in this crate at all.
    fn absolute(&self, from: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut base = from.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (base, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while let Some(("super", after)) =
                    rest.split_first().map(|(first, after)| (&**first, after))
                {
                    base.pop()?;
                    rest = after;
                }
            }
            child => {
                let mut module = base.clone();
                module.push(child.to_owned());
                self.0.get(&module)?;
            }
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// The file that has the item at `path`.
    fn resolve(&self, path: Vec<String>, depth: usize) -> Option<&str> {
        let length = (0..=path.len())
            .rev()
            .find(|length| self.0.contains_key(&path[..*length]))?;
        let (owner, rest) = path.split_at(length);
        let module = &self.0[owner];
        let passed_on = rest.first().and_then(|item| {
            let import = module.imports.iter().find(|import| import.name == *item)?;
            let mut path = self.absolute(owner, &import.path)?;
            path.extend_from_slice(&rest[1..]);
            (depth < 10).then(|| self.resolve(path, depth + 1))?
        });
        passed_on.or(Some(&module.file))
    }
}

fn module_path(file: &Path) -> Vec<String> {
    let mut path: Vec<_> = file
        .with_extension("")
        .iter()
        .map(|part| part.to_str().unwrap().to_owned())
        .collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib")) {
        path.pop();
    }
    path
}

fn code(text: &str) -> String {
    let (text, _tests) = text
        .split_once("#[cfg(test)]\nmod tests {")
        .unwrap_or((text, ""));
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect()
}

fn imports(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(line) = rest.lines().next() {
        let declared = line.trim_start();
        let visible = declared.strip_prefix("pub").map(|after| {
            let after = after.trim_start();
            after
                .strip_prefix('(')
                .and_then(|scope| scope.split_once(')'))
                .map_or(after, |(_, after)| after.trim_start())
        });
        if visible.unwrap_or(declared).starts_with("use ") {
            let statement = rest.split(';').next().unwrap();
            let (_, paths) = statement.split_once("use ").unwrap();
            let template = Import {
                path: Vec::new(),
                name: String::new(),
                is_re_export: visible.is_some(),
                is_of_file: declared.len() == line.len(),
            };
            expand(paths.trim(), &template, &mut found);
            rest = &rest[statement.len()..];
        }
        rest = rest.split_once('\n').map_or("", |(_, after)| after);
    }
    found
}

/// Adds each path of a `use` tree to `found`.
fn expand(tree: &str, prefix: &Import, found: &mut Vec<Import>) {
    let mut import = prefix.clone();
    if let Some((before, inside)) = tree.split_once('{') {
        import.path.extend(segments(before));
        let inside = &inside[..inside.rfind('}').unwrap()];
        let mut depth = 0;
        let branches = inside.split(|letter| {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            letter == ',' && depth == 0
        });
        for branch in branches.map(str::trim).filter(|branch| !branch.is_empty()) {
            expand(branch, &import, found);
        }
        return;
    }
    let (path, renamed) = tree.split_once(" as ").unwrap_or((tree, ""));
    import.path.extend(segments(path));
    // `a::b::{self}` is `a::b`.
    if import.path.len() > 1 {
        import.path.pop_if(|last| last == "self");
    }
    import.name = match renamed.trim() {
        "" => import.path.last().cloned().unwrap_or_default(),
        renamed => renamed.to_owned(),
    };
    import.path.pop_if(|last| last == "*");
    found.push(import);
}

fn segments(path: &str) -> impl Iterator<Item = String> {
    path.split("::")
        .map(str::trim)
        .filter(|segment| !segment.is_empty())
        .map(str::to_owned)
}
