//! A record's id, or how it begins.

use std::str::FromStr;

use mcp_idempotent_tower::{OperatorStore, RecordId, RecordInfo, RecordQuery};

use super::Failure;

/// As many digits as a line of the log shows.
const AT_LEAST: usize = 8;
const ALL: usize = 64;

/// The first digits of a record's id, in lower case.
#[derive(Debug, Clone)]
pub(super) struct IdBeginning(String);

impl FromStr for IdBeginning {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_hex = text.bytes().all(|digit| digit.is_ascii_hexdigit());
        if is_hex && (AT_LEAST..=ALL).contains(&text.len()) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err("a record's id is 64 hex digits; give at least the first 8")
    }
}

impl IdBeginning {
    /// The record with this id, with its result. Only a whole id is found without reading all
    /// records.
    pub(super) async fn find<S: OperatorStore>(
        &self,
        store: &S,
    ) -> Result<Option<RecordInfo>, Failure> {
        if let Ok(id) = self.0.parse() {
            return Ok(store.show(id).await?);
        }
        let mut query = RecordQuery::default();
        query.limit = 500;
        let mut found: Option<RecordId> = None;
        loop {
            let page = store.list(&query).await?;
            let Some(last) = page.last() else {
                break;
            };
            query.after = Some(last.cursor());
            for record in page {
                if record.id.to_string().starts_with(&self.0) && found.replace(record.id).is_some()
                {
                    return Err(format!(
                        "several records have an id that begins with {}; give more of its digits, as `records ls` shows them",
                        self.0
                    )
                    .into());
                }
            }
        }
        match found {
            Some(id) => Ok(store.show(id).await?),
            None => Ok(None),
        }
    }
}
