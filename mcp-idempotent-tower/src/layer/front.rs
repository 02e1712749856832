//! What a wrapped server says of itself beyond what its handler says.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{KeyRequirement, Policy, Store};
use rmcp::{
    ErrorData, RoleServer,
    model::{CustomRequest, CustomResult, MetaObject, ServerCapabilities, Tool},
    service::RequestContext,
};

use super::{
    IdempotencyLayer, has_contract,
    rule::{self, Kind},
};
use crate::{
    options,
    server::Front,
    status::{self, Asked},
    tool_call::{self, Definitions},
    wire,
};

impl<S: Store> Front for IdempotencyLayer<S> {
    fn advertise(&self, capabilities: &mut ServerCapabilities) {
        capabilities
            .extensions
            .get_or_insert_default()
            .entry(wire::EXTENSION.to_owned())
            .or_insert_with(|| wire::capability(&self.shared.default.policy));
    }

    fn describe(&self, tool: &mut Tool) {
        let rule = self.shared.rule(&tool.name, Some(tool));
        if matches!(rule.kind, Kind::Untouched) || has_contract(Some(tool)) {
            return;
        }
        let policy = rule.policy_for(rule::is_read_only(Some(tool)));
        if let Some(name) = rule.added_argument(Some(tool)) {
            let required = policy.key == KeyRequirement::Required;
            tool.input_schema =
                options::with_key_property(Arc::clone(&tool.input_schema), name, required);
        }
        tool.meta.get_or_insert_with(MetaObject::default).insert(
            wire::CONTRACT.into(),
            wire::contract_of(policy, rule.kind.name()),
        );
    }

    fn custom_request<'a>(
        &'a self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
        definitions: &'a dyn Definitions,
    ) -> BoxFuture<'a, Result<CustomResult, Unanswered>> {
        Box::pin(async move {
            if request.method != wire::STATUS_METHOD {
                return Err(Unanswered::NotOurs(Box::new((request, context))));
            }
            let asked = Asked::parse(request.params, &context).map_err(Unanswered::Refused)?;
            let policy = match &asked.tool {
                Some(name) => self.policy_of(name, definitions, &context).await,
                None => Arc::clone(&self.shared.default.policy),
            };
            status::answer(&self.shared.idempotency, &policy, asked, &context)
                .await
                .map_err(Unanswered::Refused)
        })
    }
}

/// Why a custom request got no answer from the front.
pub(crate) enum Unanswered {
    /// The handler's own.
    NotOurs(Box<(CustomRequest, RequestContext<RoleServer>)>),
    Refused(ErrorData),
}

impl<S: Store> IdempotencyLayer<S> {
    /// The part of a tool's policy that decides what its calls are.
    async fn policy_of(
        &self,
        name: &str,
        definitions: &dyn Definitions,
        context: &RequestContext<RoleServer>,
    ) -> Arc<Policy> {
        let tool = tool_call::definition(definitions, name, context).await;
        let rule = self.shared.rule(name, tool.as_deref());
        let contract = tool
            .as_deref()
            .and_then(|tool| tool.meta.as_ref())
            .and_then(|meta| meta.get(wire::CONTRACT));
        let Some(contract) = contract else {
            return Arc::clone(rule.policy_for(rule::is_read_only(tool.as_deref())));
        };
        // An annotated tool: its own options, over the server's policy.
        let mut policy = (*self.shared.idempotency.settings().policy).clone();
        if let Some(pointer) = contract.get(wire::KEY_ARGUMENT).and_then(|p| p.as_str()) {
            policy.key_argument = Some(pointer.into());
        }
        if let Some(ignored) = contract.get(wire::IGNORED).and_then(|p| p.as_array()) {
            policy.ignored = ignored
                .iter()
                .filter_map(|pointer| pointer.as_str().map(Arc::from))
                .collect();
        }
        Arc::new(policy)
    }
}
