//! The list of breaks in `tests/mutations.txt`, and how one is planted.

/// The list.
pub const LIST: &str = include_str!("../../mutations.txt");

/// One break.
#[derive(Debug, Default, Clone)]
#[non_exhaustive]
pub struct Mutation {
    pub name: String,
    pub file: String,
    /// What is taken out.
    pub old: String,
    /// What is put in its place.
    pub new: String,
    pub tests: Vec<Test>,
}

/// A test that must fail then.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Test {
    pub package: String,
    /// `lib`, or the name of a test binary.
    pub target: String,
    pub name: String,
}

/// All breaks.
///
/// # Errors
///
/// A line of the list is none of those that it may have.
pub fn all() -> Result<Vec<Mutation>, String> {
    let mut found: Vec<Mutation> = Vec::new();
    for line in LIST.lines() {
        if let Some(name) = line.strip_prefix("# ") {
            found.push(Mutation {
                name: name.to_owned(),
                ..Mutation::default()
            });
            continue;
        }
        // Before the first break there is what the list is about.
        let Some(mutation) = found.last_mut() else {
            continue;
        };
        if let Some(file) = line.strip_prefix("file ") {
            file.clone_into(&mut mutation.file);
        } else if let Some(text) = line.strip_prefix('-') {
            mutation.old += &format!("{text}\n");
        } else if let Some(text) = line.strip_prefix('+') {
            mutation.new += &format!("{text}\n");
        } else if let Some(test) = line.strip_prefix("test ") {
            let mut words = test.split(' ').map(str::to_owned);
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some(package), Some(target), Some(name), None) => mutation.tests.push(Test {
                    package,
                    target,
                    name,
                }),
                _ => return Err(format!("not a test: {line}")),
            }
        } else if !line.is_empty() {
            return Err(format!("not a line of the list: {line}"));
        }
    }
    Ok(found)
}

impl Mutation {
    /// The file with the break in it.
    ///
    /// # Errors
    ///
    /// The lines to take out do not stand in it exactly once.
    pub fn plant(&self, text: &str) -> Result<String, String> {
        match text.matches(&self.old).count() {
            1 => Ok(text.replace(&self.old, &self.new)),
            count => Err(format!(
                "{}: the lines to take out stand {count} times in {}",
                self.name, self.file
            )),
        }
    }
}
