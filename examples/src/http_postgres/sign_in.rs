//! Who is calling: a layer of axum that checks bearer tokens.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};
use sha2::{Digest as _, Sha256};

/// Who is calling. The layer leaves it in the extensions of each request that it lets through.
///
/// It is the subject and stays the same when the token is renewed, so idempotency keys can be its.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct User(Arc<str>);

impl User {
    /// The user of a request that has come through [`authenticate`].
    #[must_use]
    pub fn of(parts: &http::request::Parts) -> Option<&Self> {
        parts.extensions.get()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// Everybody who may sign in.
pub struct Users {
    /// By the hash of the token: the time that a look-up takes tells nothing of the tokens.
    by_token: HashMap<[u8; 32], User>,
    withdrawn: BTreeSet<User>,
}

impl Users {
    /// From names with their tokens, and the names of those who may no longer order.
    ///
    /// # Errors
    ///
    /// There is nobody, two users have the same token, or a name of the second list is not in the
    /// first.
    pub fn new(tokens: BTreeMap<String, String>, withdrawn: Vec<String>) -> Result<Self, String> {
        if tokens.is_empty() {
            return Err("--user NAME=TOKEN is missing: nobody could call this server".to_owned());
        }
        let mut users = Self {
            by_token: HashMap::new(),
            withdrawn: BTreeSet::new(),
        };
        for name in withdrawn {
            if !tokens.contains_key(&name) {
                return Err(format!("--withdrawn {name:?} is no --user"));
            }
            users.withdrawn.insert(User(name.into()));
        }
        for (name, token) in tokens {
            if let Some(other) = users
                .by_token
                .insert(hash(&token), User(name.as_str().into()))
            {
                return Err(format!(
                    "--user {name} has the token of {}, so nobody could tell them apart",
                    other.name()
                ));
            }
        }
        Ok(users)
    }

    /// Whether this user may no longer order.
    #[must_use]
    pub fn is_withdrawn(&self, user: &User) -> bool {
        self.withdrawn.contains(user)
    }

    fn by_headers(&self, headers: &HeaderMap) -> Option<&User> {
        let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        self.by_token.get(&hash(token.trim_start()))
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_token.values()).finish()
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

/// Lets a request with a known token through, with its [`User`]; any other is answered with 401.
pub async fn authenticate(
    State(users): State<Arc<Users>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(user) = users.by_headers(request.headers()).cloned() else {
        return (
            StatusCode::UNAUTHORIZED,
            [(WWW_AUTHENTICATE, "Bearer")],
            "This server wants the bearer token of one of its users.\n",
        )
            .into_response();
    };
    request.extensions_mut().insert(user);
    next.run(request).await
}
