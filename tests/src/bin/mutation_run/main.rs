//! Plants the breaks of `tests/mutations.txt` one by one in a copy of the tree, and sees that the tests named for
//! each fail.
//!
//! ```text
//! tests/run --with-services -- cargo run -p mcp-idempotent-tests --bin mutation-run -- [PART OF A NAME]…
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{Write as _, stdout},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Instant,
};

use mcp_idempotent_tests::mutation::{Mutation, Test, all};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let wanted: Vec<_> = env::args().skip(1).collect();
    match run(&wanted) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(survived) => {
            say(format_args!("{survived} survived"));
            ExitCode::FAILURE
        }
        Err(error) => {
            say(format_args!("{error}"));
            ExitCode::from(2)
        }
    }
}

fn say(text: impl std::fmt::Display) {
    // Nobody else could be told.
    let _ = writeln!(stdout(), "{text}");
}

/// Runs those whose names contain one of these, or all. Returns how many survived.
fn run(wanted: &[String]) -> Result<usize, Failure> {
    let mut mutations = all()?;
    mutations.retain(|mutation| {
        wanted.is_empty() || wanted.iter().any(|part| mutation.name.contains(part))
    });
    if mutations.is_empty() {
        return Err("no break has such a name".into());
    }
    let tree = Tree::copy()?;

    let tests: BTreeSet<_> = mutations.iter().flat_map(|it| &it.tests).collect();
    say(format_args!("{} tests without a break", tests.len()));
    let (passed, said) = tree.run(tests.iter().copied())?;
    if let Some(test) = tests.into_iter().find(|test| !passed.contains(*test)) {
        return Err(format!("{said}\n{} does not pass without a break", test.name).into());
    }

    let mut survived = 0;
    for mutation in &mutations {
        let began = Instant::now();
        let (passed, said) = match tree.with(mutation) {
            Ok(ran) => ran,
            Err(error) => {
                survived += 1;
                say(error);
                continue;
            }
        };
        let seconds = began.elapsed().as_secs();
        let alive: Vec<_> = passed.iter().map(|test| &*test.name).collect();
        if alive.is_empty() {
            let killers = mutation.tests.iter().map(|test| &*test.name);
            let killers = killers.collect::<Vec<_>>().join(", ");
            say(format_args!(
                "killed    {} ({seconds} s) by {killers}",
                mutation.name
            ));
        } else {
            survived += 1;
            say(format_args!(
                "{said}\nSURVIVED  {}: {} passed",
                mutation.name,
                alive.join(", ")
            ));
        }
    }
    Ok(survived)
}

/// A copy of the tree. It has a target directory of its own, because cargo takes what was built of a copy for what
/// would be built of the tree: a break could be left there, or be passed over.
struct Tree {
    root: PathBuf,
    target: PathBuf,
    features: String,
}

impl Tree {
    /// Copies what is in the repository, as far as it has changed since the last time.
    fn copy() -> Result<Self, Failure> {
        let origin = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .canonicalize()?;
        let target = env::var_os("CARGO_TARGET_DIR").map_or(origin.join("target"), PathBuf::from);
        let home = target.join("mutations");
        let (root, target) = (home.join("tree"), home.join("target"));
        let listed = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(&origin)
            .output()?;
        for file in String::from_utf8(listed.stdout)?.split_terminator('\0') {
            let Ok(content) = fs::read(origin.join(file)) else {
                // Removed, and not committed yet.
                continue;
            };
            let copy = root.join(file);
            if fs::read(&copy).ok().as_deref() != Some(&content) {
                fs::create_dir_all(copy.parent().unwrap_or(&root))?;
                fs::write(&copy, content)?;
            }
        }
        let features = Command::new("bash")
            .arg(origin.join("tests/run"))
            .arg("--features")
            .output()?;
        Ok(Self {
            root,
            target,
            features: String::from_utf8(features.stdout)?.trim().to_owned(),
        })
    }

    /// The tests of a break that pass although it is planted.
    fn with(&self, mutation: &Mutation) -> Result<(BTreeSet<Test>, String), Failure> {
        let file = self.root.join(&mutation.file);
        let right = fs::read_to_string(&file)?;
        fs::write(&file, mutation.plant(&right)?)?;
        let ran = self.run(&mutation.tests);
        fs::write(&file, right)?;
        ran.map_err(|error| format!("{}: {error}", mutation.name).into())
    }

    /// The tests that pass, and all that was said.
    fn run<'t>(
        &self,
        tests: impl IntoIterator<Item = &'t Test>,
    ) -> Result<(BTreeSet<Test>, String), Failure> {
        let mut by_target: BTreeMap<(&str, &str), Vec<&Test>> = BTreeMap::new();
        for test in tests {
            by_target
                .entry((&test.package, &test.target))
                .or_default()
                .push(test);
        }
        let (mut passed, mut said) = (BTreeSet::new(), String::new());
        for ((package, target), tests) in by_target {
            let features = self.features.split(',');
            let features = features.filter(|it| it.starts_with(&format!("{package}/")));
            let mut cargo = Command::new("cargo");
            cargo
                .args(["test", "--package", package, "--features"])
                .arg(features.collect::<Vec<_>>().join(","))
                .current_dir(&self.root)
                .env("CARGO_TARGET_DIR", &self.target);
            match target {
                "lib" => cargo.arg("--lib"),
                test => cargo.args(["--test", test]),
            };
            let built = cargo.arg("--no-run").output()?;
            if !built.status.success() {
                let why = String::from_utf8_lossy(&built.stderr);
                return Err(format!("it does not compile, and so proves nothing:\n{why}").into());
            }
            let args: Vec<_> = cargo.get_args().map(ToOwned::to_owned).collect();
            let names = tests.iter().map(|test| &*test.name);
            let ran = Command::new("cargo")
                .args(args.iter().filter(|arg| *arg != "--no-run"))
                .args(["--", "--exact"])
                .args(names)
                .current_dir(&self.root)
                .env("CARGO_TARGET_DIR", &self.target)
                .output()?;
            let output = String::from_utf8_lossy(&ran.stdout);
            let line = |test: &Test| format!("test {} ... ", test.name);
            for test in tests {
                let told = output.lines().find_map(|it| it.strip_prefix(&line(test)));
                match told {
                    Some("ok") => drop(passed.insert(test.clone())),
                    Some(_) => {}
                    // A test may end with its process, but then it has begun.
                    None if !ran.status.success() && output.contains("running ") => {}
                    None => return Err(format!("there is no test {}\n{output}", test.name).into()),
                }
            }
            said += &output;
        }
        Ok((passed, said))
    }
}
