//! From the annotated method to two: the original under another name, and a wrapper of a few lines
//! that calls the runtime.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{
    Error, Expr, FnArg, ImplItemFn, Path, ReturnType, ext::IdentExt as _, parse_quote,
    spanned::Spanned as _,
};

use crate::{
    args::{Args, OnDoubt, Wait},
    diagnostics::{self, Errors},
    target::{self, Parameter, Target},
};

pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    let Ok(function) = syn::parse2::<ImplItemFn>(item.clone()) else {
        let error = diagnostics::not_a_method().into_compile_error();
        return quote!(#error #item);
    };
    match parse(args, &function) {
        Ok((args, target)) => emit(&args, target),
        Err(error) => stub(&error, function),
    }
}

fn parse(args: TokenStream, function: &ImplItemFn) -> syn::Result<(Args, Target)> {
    let target = Target::parse(function.clone());
    let args = Args::parse(args);
    match (args, target) {
        (Ok(args), Ok(target)) => {
            check(&args, &target)?;
            Ok((args, target))
        }
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
        (Err(mut error), Err(other)) => {
            error.combine(other);
            Err(error)
        }
    }
}

/// What options and method say only together.
fn check(args: &Args, target: &Target) -> syn::Result<()> {
    let mut errors = Errors::default();
    let transaction = target.is_transaction();
    match &args.on_error {
        None if !transaction => errors.push(diagnostics::no_on_error(&target.name)),
        Some(on_error) => {
            let is_wrong = match on_error.variant {
                "Record" | "Commit" => !transaction,
                "InDoubt" => transaction,
                _ => false,
            };
            if is_wrong {
                let word = on_error.word.to_string();
                errors.push(diagnostics::on_error_of_other_mode(
                    &on_error.word,
                    &word,
                    transaction,
                ));
            }
        }
        None => {}
    }
    if transaction {
        if let Some(attempt) = target.attempt() {
            errors.push(diagnostics::attempt_in_transaction(attempt));
        }
        let on_doubt = args.on_doubt.as_ref().map(|(name, _)| name);
        let of_leases = [&args.lease, &args.heartbeat, &args.in_doubt_retention];
        for name in of_leases.into_iter().flatten().map(|(name, _)| name) {
            errors.push(diagnostics::lease_in_transaction(name));
        }
        if let Some(name) = on_doubt {
            errors.push(diagnostics::on_doubt_in_transaction(name));
        }
    }
    if let (Some((name, heartbeat)), Some((_, lease))) = (&args.heartbeat, &args.lease)
        && *heartbeat > *lease / 2
    {
        errors.push(diagnostics::heartbeat_too_long(name));
    }
    errors.into_result()
}

/// The errors, and a method in the place of the wrapper, so that what `#[tool_router]` generated
/// gives no errors of its own.
fn stub(error: &Error, mut function: ImplItemFn) -> TokenStream {
    let error = error.to_compile_error();
    let Some(index) = function.attrs.iter().position(target::is_tool) else {
        // `#[tool]` has run already, or there is none: the method has the name it is called by.
        let takes_connection = function.sig.inputs.iter().any(|input| {
            matches!(input, FnArg::Typed(parameter)
                if matches!(&*parameter.ty, syn::Type::Reference(_)))
        });
        if takes_connection {
            let (vis, name) = (&function.vis, &function.sig.ident);
            return quote!(#error #vis fn #name(&self) {});
        }
        return quote!(#error #function);
    };
    let mut tool = function.attrs.remove(index);
    tool.meta = syn::Meta::Path(tool.path().clone());
    let name = function.sig.ident.clone();
    function.sig.ident = target::unprotected(&name);
    let vis = &function.vis;
    let receiver = function.sig.receiver().map(|_| quote!(&self));
    quote! {
        #error
        #tool
        #vis fn #name(#receiver) {}
        #[allow(dead_code, reason = "its wrapper could not be made")]
        #function
    }
}

fn emit(args: &Args, target: Target) -> TokenStream {
    let runtime: Path = match &args.crate_path {
        Some(path) => parse_quote!(#path::__private),
        None => parse_quote!(::mcp_idempotent_tower::__private),
    };
    let options_name = format_ident!(
        "{}_IDEMPOTENT",
        target.name.unraw().to_string().to_uppercase()
    );
    let options = options(args, &target, &runtime);
    let tool = tool(args, &target, &runtime, &options_name);
    let wrapper = wrapper(args, &target, &runtime, &options_name);
    let Target {
        original, shared, ..
    } = target;
    let cfgs = shared.iter().filter(|attr| attr.path().is_ident("cfg"));
    quote! {
        #(#cfgs)*
        #[doc(hidden)]
        const #options_name: &'static #runtime::ToolOptions = &#options;
        #(#shared)*
        #tool
        #wrapper
        #original
    }
}

/// The options as a constant.
fn options(args: &Args, target: &Target, runtime: &Path) -> TokenStream {
    let base = if target.is_transaction() {
        format_ident!("TRANSACTION")
    } else {
        format_ident!("LEASE")
    };
    let mut fields = Vec::new();
    let mut field = |name: &str, value: TokenStream| {
        let name = Ident::new(name, Span::call_site());
        fields.push(quote!(#name: ::core::option::Option::Some(#value)));
    };
    if let Some(key) = &args.key {
        let variant = Ident::new(key.variant, Span::call_site());
        field("key", quote!(#runtime::KeyRequirement::#variant));
    }
    if let Some(argument) = &args.key_argument {
        let pointer = &argument.pointer;
        field("key_argument", quote!(#pointer));
        if let Some(name) = &argument.name {
            field("key_property", quote!(#name));
            let schema = author_schema(target, runtime);
            field("input_schema", quote!(|| #schema));
        }
    }
    for (name, duration) in [
        ("retention", args.retention),
        ("window", args.window),
        ("lease", args.lease.as_ref().map(|(_, lease)| *lease)),
        (
            "heartbeat",
            args.heartbeat.as_ref().map(|(_, period)| *period),
        ),
        (
            "in_doubt_retention",
            args.in_doubt_retention
                .as_ref()
                .map(|(_, retention)| *retention),
        ),
    ] {
        if let Some(duration) = duration {
            field(name, duration_tokens(duration));
        }
    }
    match &args.wait {
        None => {}
        Some(Wait::Reject) => field("wait", quote!(#runtime::Wait::Reject)),
        Some(Wait::UpTo(bound)) => {
            let bound = duration_tokens(*bound);
            field("wait", quote!(#runtime::Wait::UpTo(#bound)));
        }
    }
    if let Some(on_error) = &args.on_error {
        let variant = Ident::new(on_error.variant, Span::call_site());
        field("on_error", quote!(#runtime::OnError::#variant));
    }
    if let Some((_, on_doubt)) = &args.on_doubt {
        let variant = match on_doubt {
            OnDoubt::Fail => "Fail",
            OnDoubt::Rerun => "Rerun",
            OnDoubt::Verify(_) => "Verify",
        };
        let variant = Ident::new(variant, Span::call_site());
        field("on_doubt", quote!(#runtime::OnDoubt::#variant));
    }
    if !args.ignored.is_empty() {
        let pointers = args.ignored.iter().map(|pointer| &pointer.pointer);
        fields.push(quote!(ignored: &[#(#pointers),*]));
    }
    if fields.is_empty() {
        return quote!(#runtime::ToolOptions::#base);
    }
    quote!(#runtime::ToolOptions { #(#fields,)* ..#runtime::ToolOptions::#base })
}

fn duration_tokens(duration: Duration) -> TokenStream {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    quote!(::core::time::Duration::new(#seconds, #nanos))
}

/// The input schema that rmcp would find without us.
fn author_schema(target: &Target, runtime: &Path) -> TokenStream {
    match (&target.tool.input_schema, &target.input) {
        (Some(schema), _) => schema.to_token_stream(),
        (None, Some(ty)) => quote!(#runtime::input_schema::<#ty>()),
        (None, None) => quote!(#runtime::empty_input_schema()),
    }
}

/// `#[tool(…)]` as the author wrote it, with our entry in `meta` and, where a key argument is
/// added, our property in `input_schema`.
fn tool(args: &Args, target: &Target, runtime: &Path, options: &Ident) -> TokenStream {
    let path = &target.tool.path;
    let mut list: Vec<TokenStream> = Vec::new();
    list.extend(target.tool.options.iter().map(ToTokens::to_token_stream));
    let adds_property = args
        .key_argument
        .as_ref()
        .is_some_and(|argument| argument.name.is_some());
    if adds_property {
        list.push(quote!(input_schema = #runtime::with_key_argument(Self::#options)));
    } else if let Some(schema) = &target.tool.input_schema {
        list.push(quote!(input_schema = #schema));
    }
    let meta = match &target.tool.meta {
        Some(meta) => quote!(::core::option::Option::Some(#meta)),
        None => quote!(::core::option::Option::None),
    };
    list.push(quote!(meta = #runtime::meta(Self::#options, #meta)));
    quote!(#[#path(#(#list),*)])
}

fn wrapper(args: &Args, target: &Target, runtime: &Path, options: &Ident) -> TokenStream {
    let (vis, name, receiver) = (&target.original.vis, &target.name, &target.receiver);
    let generics = &target.original.sig.generics;
    let where_clause = &generics.where_clause;
    let local = |name: &str| Ident::new(name, Span::mixed_site());
    let (call, this, parts, running) = (
        local("call"),
        local("this"),
        local("parts"),
        local("running"),
    );
    let connection = local("connection");

    let schema = target
        .input
        .as_ref()
        .map(|ty| quote!(, _: #runtime::Parameters<#ty>));
    let (output, converted) = match &target.output {
        Some(ty) => (
            quote!(#runtime::Json<#ty>),
            Some(quote!(.map(#runtime::Json::new))),
        ),
        None => (quote!(#runtime::CallToolResponse), None),
    };
    let arguments = target.parameters.iter().map(|parameter| match parameter {
        // Located at the type, so that a mismatch is reported where the author can mend it.
        Parameter::Connection(ty) => {
            let span = Span::mixed_site().located_at(ty.span());
            Ident::new("connection", span).into_token_stream()
        }
        Parameter::Extracted(ty) => {
            let span = Span::mixed_site().located_at(ty.span());
            quote_spanned!(span=> #parts.extract()?)
        }
    });
    let takes_parts = target
        .parameters
        .iter()
        .any(|parameter| matches!(parameter, Parameter::Extracted(_)));
    let parts_binding = takes_parts.then(|| quote!(let mut #parts = #call.into_parts(&#this);));
    let taken = if takes_parts {
        quote!(#call)
    } else {
        quote!(_)
    };
    let (run, connection, verify) = if target.is_transaction() {
        let connection = Some(quote!(, #connection));
        (quote!(run_in_transaction), connection, None)
    } else {
        let verify = verify(args, runtime);
        (quote!(run_under_lease), None, Some(quote!(#verify,)))
    };
    let original = &target.original.sig.ident;
    // Located at the return type, where a result that is none of a tool is to be mended.
    let at_output = match &target.original.sig.output {
        ReturnType::Type(_, ty) => Span::mixed_site().located_at(ty.span()),
        ReturnType::Default => Span::mixed_site(),
    };
    let returned = Ident::new("running", at_output);
    let returned = if target.is_async {
        quote_spanned!(at_output=> #returned.await)
    } else {
        returned.into_token_stream()
    };
    let idempotency: Expr = args
        .idempotency
        .clone()
        .unwrap_or_else(|| parse_quote!(self.idempotency));
    quote! {
        #vis async fn #name #generics (#receiver, #call: #runtime::Call #schema)
            -> ::core::result::Result<#output, #runtime::ErrorData> #where_clause
        {
            #runtime::#run(&#idempotency, Self::#options, self, #call, #verify |#this, #taken #connection| {
                ::std::boxed::Box::pin(async move {
                    let #running = { #parts_binding #this.#original(#(#arguments),*) };
                    #runtime::Outcome::returned(#returned)
                })
            }).await #converted
        }
    }
}

/// The author's function for calls in doubt, as the runtime calls it.
fn verify(args: &Args, runtime: &Path) -> TokenStream {
    let Some((_, OnDoubt::Verify(function))) = &args.on_doubt else {
        return quote!(::core::option::Option::None);
    };
    let local = |name: &str| Ident::new(name, Span::mixed_site());
    let (server, call) = (local("server"), local("call"));
    // Located at the path, where a function of another kind is to be mended.
    let span = Span::mixed_site().located_at(function.span());
    let asked = quote_spanned!(span=> #function(#server, #call).await);
    quote! {
        ::core::option::Option::Some(|#server, #call| {
            ::std::boxed::Box::pin(async move {
                #runtime::IntoVerdict::into_verdict(#asked)
            })
        })
    }
}

#[cfg(test)]
#[path = "expand/tests.rs"]
mod tests;
