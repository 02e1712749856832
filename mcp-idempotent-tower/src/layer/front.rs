//! What the layer adds to its server: the capability, the tools' contracts and the status request.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use mcp_idempotent_core::{KeyRequirement, Policy, Store};
use rmcp::{
    RoleServer,
    model::{CustomRequest, CustomResult, MetaObject, ServerCapabilities, Tool},
    service::RequestContext,
};

use super::{
    IdempotencyLayer,
    rule::{self, Kind},
    server::{Front, Unanswered},
    status::{self, Asked},
};
use crate::{
    call::{
        contract,
        definition::{self, Definitions},
        reader::RefusalForm,
        schema,
    },
    wire,
};

impl<S: Store> Front for IdempotencyLayer<S> {
    fn refusal_form(&self) -> RefusalForm {
        self.shared.idempotency.settings().refusal_form
    }

    fn advertise(&self, capabilities: &mut ServerCapabilities) {
        capabilities
            .extensions
            .get_or_insert_default()
            .entry(wire::EXTENSION.to_owned())
            .or_insert_with(|| contract::capability(&self.shared.default.policy));
    }

    fn describe(&self, tool: &mut Tool) {
        if let Some(policy) = self.annotated(Some(tool)) {
            complete(tool, &policy);
            return;
        }
        let rule = self.shared.rule(&tool.name, Some(tool));
        if matches!(rule.kind, Kind::Untouched) {
            return;
        }
        let policy = rule.policy_for(rule::is_read_only(Some(tool)));
        if let Some(name) = rule.added_argument(Some(tool)) {
            let required = policy.key == KeyRequirement::Required;
            tool.input_schema =
                schema::with_key_property(Arc::clone(&tool.input_schema), name, required);
        }
        tool.meta.get_or_insert_with(MetaObject::default).insert(
            wire::CONTRACT.into(),
            contract::contract_of(policy, rule.kind.name()),
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
            let asked = Asked::parse(request.params).map_err(Unanswered::Refused)?;
            let policy = match &asked.tool {
                Some(name) => self.policy_of(name, definitions, &context).await,
                None => Some(Arc::clone(&self.shared.default.policy)),
            };
            let policy = policy.ok_or_else(|| Unanswered::Refused(status::not_protected()))?;
            status::answer(&self.shared.idempotency, &policy, asked, &context)
                .await
                .map_err(Unanswered::Refused)
        })
    }
}

impl<S: Store> IdempotencyLayer<S> {
    /// The policy of the tool with this name, unless its calls are left alone.
    async fn policy_of(
        &self,
        name: &str,
        definitions: &dyn Definitions,
        context: &RequestContext<RoleServer>,
    ) -> Option<Arc<Policy>> {
        let tool = definition::definition(definitions, name, context).await;
        let tool = tool.as_deref();
        if let Some(policy) = self.annotated(tool) {
            return Some(Arc::new(policy));
        }
        let rule = self.shared.rule(name, tool);
        if matches!(rule.kind, Kind::Untouched) {
            return None;
        }
        Some(Arc::clone(rule.policy_for(rule::is_read_only(tool))))
    }

    /// The policy of an annotated tool: its annotation, over the server's policy. The tool's
    /// definition is made without the server, so on its own it holds only the annotation.
    fn annotated(&self, tool: Option<&Tool>) -> Option<Policy> {
        let options = contract::options_of(tool?)?;
        let base = &self.shared.idempotency.settings().policy;
        // The store's limit is checked when the tool is called.
        let policy = options.policy.for_tool(base, options.policy_use(), None);
        Some(policy.unwrap_or_else(|_| options.policy.over(base)))
    }
}

/// Fills in what the annotation leaves to the server.
fn complete(tool: &mut Tool, policy: &Policy) {
    if let Some(contract) = tool
        .meta
        .as_mut()
        .and_then(|meta| meta.get_mut(wire::CONTRACT))
    {
        contract::complete(contract, policy);
    }
    if policy.key == KeyRequirement::Required
        && let Some(name) = policy
            .key_argument
            .as_deref()
            .and_then(rule::top_level_name)
    {
        schema::require_key_property(&mut tool.input_schema, &name);
    }
}
