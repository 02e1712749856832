//! What a check has found.

use std::{fmt, time::Duration};

use serde_json::{Value, json};

/// What was played, and what came of it. Its `Display` is a table, followed by the findings.
#[derive(Debug, Clone)]
pub struct Report {
    pub(super) tool: String,
    pub(super) scenes: Vec<Scene>,
    /// What was not played, and why.
    pub(super) not_played: Vec<(String, String)>,
}

/// One scenario: one intended operation, called several times under some fault.
#[derive(Debug, Clone)]
pub struct Scene {
    pub(super) name: String,
    pub(super) calls: usize,
    pub(super) executions: Option<u64>,
    pub(super) effects: u64,
    pub(super) told: Vec<String>,
    pub(super) took: Duration,
    pub(super) note: Option<String>,
    pub(super) finding: Option<String>,
}

impl Report {
    /// The scenarios in the order in which they were played.
    #[must_use]
    pub fn scenes(&self) -> &[Scene] {
        &self.scenes
    }

    /// What is wrong, one sentence each. Empty if all is well.
    pub fn findings(&self) -> impl Iterator<Item = &str> {
        self.scenes.iter().filter_map(Scene::finding)
    }

    /// Whether there are no findings.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.findings().next().is_none()
    }

    /// The same as JSON.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let scenes: Vec<_> = self.scenes.iter().map(Scene::to_json).collect();
        let not_played = self.not_played.iter();
        let not_played: Vec<_> = not_played
            .map(|(name, why)| json!({ "name": name, "why": why }))
            .collect();
        json!({
            "tool": self.tool,
            "fine": self.is_fine(),
            "scenarios": scenes,
            "notPlayed": not_played,
        })
    }
}

impl Scene {
    /// What was played.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many calls were sent.
    #[must_use]
    pub const fn calls(&self) -> usize {
        self.calls
    }

    /// How often the handler ran, if [`with_executions`](super::Check::with_executions) counts that.
    #[must_use]
    pub const fn executions(&self) -> Option<u64> {
        self.executions
    }

    /// How many effects there were.
    #[must_use]
    pub const fn effects(&self) -> u64 {
        self.effects
    }

    /// How long it took, with the rest after it.
    #[must_use]
    pub const fn took(&self) -> Duration {
        self.took
    }

    /// What is wrong, if something is.
    #[must_use]
    pub fn finding(&self) -> Option<&str> {
        self.finding.as_deref()
    }

    /// What the callers were told, and how many of them, such as `result, replay ×2`.
    #[must_use]
    pub fn told(&self) -> String {
        let mut counted: Vec<(&str, usize)> = Vec::new();
        for told in &self.told {
            match counted.iter_mut().find(|(what, _)| what == told) {
                Some((_, count)) => *count += 1,
                None => counted.push((told, 1)),
            }
        }
        let words = counted.iter().map(|(what, count)| match count {
            1 => (*what).to_owned(),
            _ => format!("{what} ×{count}"),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "calls": self.calls,
            "executions": self.executions,
            "effects": self.effects,
            "told": self.told,
            "tookMs": u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
            "note": self.note,
            "finding": self.finding,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.scenes.iter().map(|scene| scene.name.chars().count());
        let width = width.max().unwrap_or(0);
        writeln!(
            f,
            "tool {}\n\n       {:width$}  calls  executions  effects  the callers were told",
            self.tool, "scenario"
        )?;
        for scene in &self.scenes {
            let executions = scene.executions.map(|it| it.to_string());
            let verdict = if scene.finding.is_some() {
                "WRONG"
            } else {
                "ok"
            };
            write!(
                f,
                "{verdict:5}  {:width$}  {:5}  {:>10}  {:7}  {}",
                scene.name,
                scene.calls,
                executions.as_deref().unwrap_or("–"),
                scene.effects,
                scene.told()
            )?;
            match &scene.note {
                Some(note) => writeln!(f, " ({note})")?,
                None => writeln!(f)?,
            }
        }
        for (name, why) in &self.not_played {
            writeln!(f, "–      not played: {name} ({why})")?;
        }
        writeln!(f)?;
        let mut said: Vec<&str> = Vec::new();
        for finding in self.findings() {
            if said.contains(&finding) {
                continue;
            }
            said.push(finding);
            writeln!(f, "{finding}")?;
            let scenes = self.scenes.iter();
            for scene in scenes.filter(|scene| scene.finding() == Some(finding)) {
                writeln!(f, "    in: {}", scene.name)?;
            }
        }
        match self.findings().count() {
            0 => writeln!(f, "nothing is wrong"),
            1 => writeln!(f, "1 scenario is wrong"),
            count => writeln!(f, "{count} scenarios are wrong"),
        }
    }
}
