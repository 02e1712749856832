//! The command line of `http_postgres`.

use std::{collections::BTreeMap, fmt, net::SocketAddr, sync::Arc};

use lexopt::{
    Arg::{Long, Short},
    ValueExt as _,
};

use super::sign_in::Users;
use crate::{
    command_line::Stop,
    payments::options::{Store, schema},
};

/// What `http_postgres` was told.
#[non_exhaustive]
pub struct Options {
    /// The database, as a URL.
    pub store: String,
    /// The schema for the tables.
    pub schema: String,
    /// Where to listen.
    pub http: SocketAddr,
    /// Who may sign in.
    pub users: Arc<Users>,
}

impl Options {
    /// Reads the command line.
    ///
    /// # Errors
    ///
    /// `--help`, or arguments that make no sense.
    pub fn parse(mut arguments: lexopt::Parser) -> Result<Self, Stop> {
        let mut store = None;
        let mut schema_name = "http_postgres".to_owned();
        let mut http = SocketAddr::from(([127, 0, 0, 1], 8080));
        let mut tokens = BTreeMap::new();
        let mut withdrawn = Vec::new();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("store") => store = Some(postgres(&arguments.value()?.string()?)?),
                Long("schema") => schema_name = schema(arguments.value()?.string()?)?,
                Long("http") => http = loopback(&arguments.value()?.string()?)?,
                Long("user") => {
                    let (name, token) = user(&arguments.value()?.string()?)?;
                    if tokens.insert(name.clone(), token).is_some() {
                        return Err(Stop::Usage(format!("--user {name} is there twice")));
                    }
                }
                Long("withdrawn") => withdrawn.push(arguments.value()?.string()?),
                Long("help") | Short('h') => return Err(Stop::Help),
                other => return Err(other.unexpected().into()),
            }
        }
        let Some(store) = store else {
            return Err(Stop::Usage(
                "--store postgres://URL is missing: the database that all processes share"
                    .to_owned(),
            ));
        };
        Ok(Self {
            store,
            schema: schema_name,
            http,
            users: Arc::new(Users::new(tokens, withdrawn).map_err(Stop::Usage)?),
        })
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the store: the URL has a password in it.
        f.debug_struct("Options")
            .field("schema", &self.schema)
            .field("http", &self.http)
            .field("users", &self.users)
            .finish_non_exhaustive()
    }
}

fn postgres(text: &str) -> Result<String, Stop> {
    match Store::parse(text) {
        Ok(Store::Postgres(url)) => Ok(url),
        // Not repeated: a URL with a typing mistake has its password all the same.
        _ => Err(Stop::Usage(
            "--store is no postgres://URL; other stores are shown by `payments`".to_owned(),
        )),
    }
}

fn loopback(text: &str) -> Result<SocketAddr, Stop> {
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(address),
        Ok(address) => Err(Stop::Usage(format!(
            "--http {address} can be reached from other machines, and this example has no TLS for \
             the tokens: use 127.0.0.1"
        ))),
        Err(_) => Err(Stop::Usage(format!(
            "--http {text:?} is no address with a port, for example 127.0.0.1:8080"
        ))),
    }
}

fn user(text: &str) -> Result<(String, String), Stop> {
    match text.split_once('=') {
        Some((name, token)) if !name.is_empty() && !token.is_empty() => {
            Ok((name.to_owned(), token.to_owned()))
        }
        // Not repeated: it may be the token.
        _ => Err(Stop::Usage(
            "--user is not NAME=TOKEN, for example alice=s3cret".to_owned(),
        )),
    }
}
