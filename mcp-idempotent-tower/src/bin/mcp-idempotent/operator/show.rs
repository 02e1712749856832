//! `records show`: one call, and what to do about it.

use clap::Args;
use mcp_idempotent_tower::{
    OperatorStore, RecordInfo, RecordStatus, Secret,
    core::{Engine, Timestamp},
};
use serde_json::{Value, json};

use super::{
    Ended, Failure,
    id::IdBeginning,
    print,
    secret::SecretOptions,
    store::{StoreOptions, with_store},
};

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The record's id as `records ls` shows it, or at least its first 8 digits, which the log
    /// shows
    #[arg(value_name = "ID")]
    id: IdBeginning,

    #[command(flatten)]
    store: StoreOptions,

    /// The name of a step for which the tool asks for a downstream key: shows the key, by which the
    /// other side knows this call. May be given several times
    #[arg(long = "step", value_name = "NAME")]
    steps: Vec<String>,

    #[command(flatten)]
    secret: SecretOptions,
}

/// A step, and the key that was passed on in it.
type Downstream = (String, Option<String>);

impl Show {
    pub(super) async fn run(self) -> Result<Ended, Failure> {
        let opened = self.store.open().await?;
        let secret = self.secret.read()?;
        with_store!(opened, store => self.show(store, secret).await)
    }

    async fn show<S: OperatorStore>(
        &self,
        store: S,
        secret: Option<Secret>,
    ) -> Result<Ended, Failure> {
        let Some(info) = self.id.find(&store).await? else {
            print::line("there is no record with this id; `records ls` lists the existing ones")?;
            return Ok(Ended::NotFound);
        };
        let keys: Vec<Downstream> = self
            .steps
            .iter()
            .map(|step| {
                let key = info.downstream_key(step, secret.as_ref());
                (step.clone(), key.map(|key| key.to_string()))
            })
            .collect();
        if !keys.is_empty() {
            check_secret(store, &info, secret).await?;
        }
        if self.store.json {
            print::line(format_args!("{:#}", as_json(&info, keys)))?;
        } else {
            print_record(&info, &keys, &self.store.typed())?;
        }
        Ok(Ended::Done)
    }
}

/// Under another secret the keys would look right and be wrong.
async fn check_secret<S: OperatorStore>(
    store: S,
    info: &RecordInfo,
    secret: Option<Secret>,
) -> Result<(), Failure> {
    let Some(application) = &info.application else {
        return Ok(());
    };
    let mut engine = Engine::builder(application.clone(), store);
    if let Some(secret) = secret {
        engine = engine.with_secret(secret);
    }
    engine.build().verify_secret().await.map_err(|error| {
        format!(
            "the downstream keys of {application} are made with a secret, and {}: name it with --secret-file",
            error.remedy()
        )
        .into()
    })
}

fn as_json(info: &RecordInfo, keys: Vec<Downstream>) -> Value {
    let mut record = print::record(info);
    record["downstreamKeys"] = keys
        .into_iter()
        .map(|(step, key)| (step, Value::from(key)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    record["result"] = result(info).map_or(Value::Null, |text| {
        serde_json::from_str(&text).unwrap_or_else(|_| json!(text))
    });
    record
}

/// The stored result, without the two bytes that say what it is.
fn result(info: &RecordInfo) -> Option<String> {
    let bytes = info.response.as_ref()?;
    Some(String::from_utf8_lossy(bytes.get(2..)?).into_owned())
}

fn print_record(info: &RecordInfo, keys: &[Downstream], store: &str) -> Result<(), Failure> {
    let name = |name: Option<&str>| name.map_or("not stored".to_owned(), print::one_line);
    let key = match &info.key_prefix {
        Some(prefix) => format!("begins with {prefix}"),
        None => "none was sent; the call is recognised by its arguments".to_owned(),
    };
    let mut rows = vec![
        ("Record", info.id.to_string()),
        ("State", state(info)),
        ("Tool", print::one_line(&info.tool)),
        ("Application", name(info.application.as_deref())),
        ("Scope", name(info.scope.as_deref())),
        ("Key", key),
        ("Attempts", info.attempts.to_string()),
        ("Token", info.token.to_string()),
        ("First claimed", moment(info.created_at)),
    ];
    let times = [
        ("Lease until", info.lease_until),
        ("Ended", info.completed_at),
        ("Kept until", info.expires_at),
    ];
    rows.extend(
        times
            .into_iter()
            .filter_map(|(name, at)| Some((name, moment(at?)))),
    );
    for (step, key) in keys {
        let key = key
            .as_deref()
            .unwrap_or("none: this call did not pass on a key");
        rows.push(("Downstream key", format!("{key} (step {step})")));
    }
    if let Some(resolved) = &info.resolved {
        let who = print::one_line(&resolved.who);
        rows.push((
            "Resolved",
            format!(
                "as {} by {who}, {}",
                resolved.kind.as_str(),
                moment(resolved.at)
            ),
        ));
        rows.push(("Because", print::one_line(&resolved.why)));
    }
    if let Some(result) = result(info) {
        rows.push(("Result", print::one_line(&result)));
    }
    for (name, value) in rows {
        print::line(format_args!("{name:15} {value}"))?;
    }
    Ok(print::line(format_args!("\n{}", advice(info, store)))?)
}

fn moment(at: Timestamp) -> String {
    if at.as_micros() > print::now() {
        return at.to_string();
    }
    format!("{at} ({} ago)", print::ago(at))
}

fn state(info: &RecordInfo) -> String {
    let meaning = match info.status {
        RecordStatus::InProgress => "an attempt is running",
        RecordStatus::InDoubt => "nobody knows whether the call took effect",
        RecordStatus::Completed if info.response.is_none() => {
            "the call took effect, and its result is not kept"
        }
        RecordStatus::Completed => "a retry gets the result",
        RecordStatus::Released => "the key is free: a retry runs",
        RecordStatus::Expired => "past its retention",
        _ => "",
    };
    format!("{}: {meaning}", info.status)
}

/// `store` is what the commands need to find the same store.
fn advice(info: &RecordInfo, store: &str) -> String {
    let resolve = format!(
        "  mcp-idempotent records resolve {}{store} --token {}",
        info.id, info.token
    );
    let said = "--who YOU --why REASON";
    match info.status {
        RecordStatus::InDoubt => format!(
            "What to do: find out on the other side whether the call took effect. If the tool passed on a\n\
             downstream key (behind the proxy none does), it knows the call by that: --step NAME shows it.\n\
             Then say what you found:\n\
             {resolve} --committed {said}\n\
             {resolve} --not-committed {said}\n\
             If a repeat does no harm whatever happened:\n  \
             mcp-idempotent records release {}{store} --token {} {said}",
            info.id, info.token
        ),
        RecordStatus::InProgress => format!(
            "Nothing to do while it runs. If its process is gone, the call is in doubt once the lease has ended.\n\
             To take the call away from an attempt that hangs, resolve it:\n{resolve} …"
        ),
        RecordStatus::Released => "Nothing to do. A retry runs.".to_owned(),
        _ => "Nothing to do.".to_owned(),
    }
}
