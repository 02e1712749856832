//! Which call it is, and whether its caller may make it.

pub(crate) mod incoming;
pub(crate) mod key;
pub mod scope;

use std::sync::Arc;

use futures_util::{FutureExt as _, future::BoxFuture};
use mcp_idempotent_core::{
    Authorize, CallInfo, CanonicalArguments, KeyRequirement, Policy, RecordId, Refusal, Request,
    Store,
    telemetry::{Mode, ObservedCall},
};

use self::{
    key::Places,
    scope::{AuthorizeHook, NoScope},
};
use super::{Incoming, Object, refusal::key_required, rules::Rules};

/// An unprotected call, and its observer.
pub(in crate::call) type Unprotected = (CallInfo, ObservedCall);

/// A protected call (first its request, later its attempt), or one that nothing protects.
pub(in crate::call) enum Identified<P, U = Unprotected> {
    Protected(P),
    Unprotected(U),
}

/// Which call this is, and whether its caller may make it.
pub(in crate::call) async fn identify<'a, S: Store, C: Incoming>(
    rules: &'a Rules<'_, S>,
    mode: Mode,
    call: &C,
    authorize: Option<&'a AuthorizeCall<'a, C>>,
) -> Result<Identified<Request<'a>>, Refusal> {
    let engine = &rules.idempotency.engine;
    let tool: Arc<str> = Arc::from(call.tool());
    let observe =
        |mode| ObservedCall::start(engine.application(), &tool, rules.is_listed, None, mode);
    let request = match with_identity(rules, call, &tool) {
        Ok(Identified::Protected(request)) => request,
        Ok(Identified::Unprotected(info)) => {
            let observed = observe(Some(mode));
            if let Some(authorize) = authorize
                && let Err(refusal) = authorize.authorize(&info).await
            {
                observed.refused(&refusal);
                return Err(refusal);
            }
            return Ok(Identified::Unprotected((info, observed)));
        }
        Err(refusal) => {
            observe(None).refused(&refusal);
            return Err(refusal);
        }
    };
    let request = match authorize {
        Some(authorize) => request.with_authorize(authorize),
        None => request,
    };
    // The policy was checked when the layer was built, or the tool was first seen.
    let request = request.with_checked_policy();
    Ok(Identified::Protected(if rules.is_listed {
        request
    } else {
        request.with_unlisted_tool()
    }))
}

/// Whether this is the call that has claimed the record.
pub(crate) fn is_of<S: Store, C: Incoming>(
    rules: &Rules<'_, S>,
    call: &C,
    record: RecordId,
) -> bool {
    let request = with_identity(rules, call, &Arc::from(call.tool()));
    matches!(request, Ok(Identified::Protected(request)) if request.record() == record)
}

/// The call with its identity, or an unprotected call.
fn with_identity<'a, S: Store, C: Incoming>(
    rules: &'a Rules<'_, S>,
    call: &C,
    tool: &Arc<str>,
) -> Result<Identified<Request<'a>, CallInfo>, Refusal> {
    let Rules {
        idempotency,
        policy,
        ..
    } = rules;
    let scope = match call.scope(idempotency.scope()) {
        // A denied caller is denied with and without a key.
        Err(NoScope::Denied(denied)) => return Err(denied.into()),
        scope => scope,
    };
    let key = Places::of(call.meta(), call.arguments(), policy).key()?;
    match (&key, policy.key) {
        (None, KeyRequirement::Required) => return Err(key_required(policy)),
        (None, KeyRequirement::Explicit) => {
            let info = CallInfo::new(Arc::clone(tool), scope.ok());
            return Ok(Identified::Unprotected(info));
        }
        _ => {}
    }
    let scope = scope?;
    let arguments = canonical(call.arguments(), policy);
    let engine = &idempotency.engine;
    let name = policy.also_known_as.as_ref().unwrap_or(tool);
    let identity = engine.identify_under(policy, &scope, key.as_ref(), name, &arguments);
    call.identified(identity.id);
    let info = CallInfo::new(Arc::clone(tool), scope);
    let request = Request::new(info, identity, policy).with_round(call.round());
    Ok(Identified::Protected(request))
}

/// The arguments that take part in identity.
pub(crate) fn canonical(arguments: Option<&Object>, policy: &Policy) -> CanonicalArguments {
    let ignored = policy.ignored.iter().chain(&policy.key_argument);
    CanonicalArguments::new(arguments, &ignored.cloned().collect::<Vec<_>>())
}

/// The author's `authorize` hook, for one call.
pub(in crate::call) struct AuthorizeCall<'a, C> {
    hook: &'a AuthorizeHook,
    call: &'a C,
}

impl<'a, C: Incoming> AuthorizeCall<'a, C> {
    pub(in crate::call) fn of<S>(rules: &'a Rules<'_, S>, call: &'a C) -> Option<Self> {
        let hook = rules.idempotency.settings().authorize.as_ref()?;
        Some(Self { hook, call })
    }
}

impl<C: Incoming> Authorize for AuthorizeCall<'_, C> {
    fn authorize<'a>(&'a self, call: &'a CallInfo) -> BoxFuture<'a, Result<(), Refusal>> {
        let asked = self.call.authorize(self.hook, &call.tool);
        Box::pin(asked.map(|allowed| allowed.map_err(Refusal::from)))
    }
}
