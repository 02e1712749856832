//! Turns the annotated method into two: the original under another name, and a wrapper of a few
//! lines that calls the runtime.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{
    Error, Expr, FnArg, ImplItemFn, Path, ReturnType, Type, ext::IdentExt as _, parse_quote,
    spanned::Spanned as _,
};

use crate::{
    args::{Args, OnDoubt, OnErrorResult, Pointer, Wait},
    check::{check, is_transaction},
    diagnostics,
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

/// The errors, and a method in place of the wrapper, so that the code from `#[tool_router]` causes
/// no errors of its own.
fn stub(error: &Error, mut function: ImplItemFn) -> TokenStream {
    let error = error.to_compile_error();
    let Some(index) = function.attrs.iter().position(target::is_tool) else {
        // `#[tool]` has already run, or is missing: the method already has the name that is called.
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
    let base = if is_transaction(args, target) {
        format_ident!("TRANSACTION")
    } else {
        format_ident!("LEASE")
    };
    let mut fields = Vec::new();
    let policy = policy(args, runtime);
    if !policy.is_empty() {
        // No tool sets every field, because some belong to one mode only.
        fields.push(quote! {
            policy: #runtime::PolicyOverride { #(#policy,)* ..#runtime::PolicyOverride::NONE }
        });
    }
    if let Some(name) = args.key_argument.as_ref().and_then(|it| it.name.as_ref()) {
        fields.push(quote!(key_property: ::core::option::Option::Some(#name)));
    }
    if args.key_argument.is_some() || !args.ignored.is_empty() {
        let schema = author_schema(target, runtime);
        fields.push(quote!(input_schema: ::core::option::Option::Some(|| #schema)));
    }
    if let Some(schema) = output_schema(target, runtime) {
        fields.push(quote!(output_schema: ::core::option::Option::Some(|| #schema)));
    }
    if let Some((_, OnErrorResult::Classify(function))) = &args.on_error_result {
        fields.push(quote!(classify: ::core::option::Option::Some(#function)));
    }
    if fields.is_empty() {
        return quote!(#runtime::ToolOptions::#base);
    }
    quote!(#runtime::ToolOptions { #(#fields,)* ..#runtime::ToolOptions::#base })
}

/// The policy fields that this tool overrides.
fn policy(args: &Args, runtime: &Path) -> Vec<TokenStream> {
    let mut fields = Vec::new();
    let mut field = |name: &str, value: TokenStream| {
        let name = Ident::new(name, Span::call_site());
        fields.push(quote!(#name: ::core::option::Option::Some(#value)));
    };
    let borrowed = |pointer: &Pointer| {
        let pointer = &pointer.pointer;
        quote!(::std::borrow::Cow::Borrowed(#pointer))
    };
    for (name, of, choice) in [
        ("key", "KeyRequirement", &args.key),
        ("rotated_keys", "RotatedKeys", &args.rotated_keys),
        ("on_error", "OnError", &args.on_error),
        ("on_expired", "OnExpired", &args.on_expired),
    ] {
        if let Some(choice) = choice {
            let (of, variant) = (format_ident!("{of}"), format_ident!("{}", choice.variant));
            field(name, quote!(#runtime::#of::#variant));
        }
    }
    if let Some(argument) = &args.key_argument {
        field("key_argument", borrowed(argument));
    }
    if !args.ignored.is_empty() {
        let pointers = args.ignored.iter().map(borrowed);
        field(
            "ignored",
            quote!(::std::borrow::Cow::Borrowed(&[#(#pointers),*])),
        );
    }
    if let Some(name) = &args.also_known_as {
        field("also_known_as", quote!(::std::borrow::Cow::Borrowed(#name)));
    }
    for (name, duration) in &args.durations {
        field(&name.to_string(), duration_tokens(*duration));
    }
    match &args.wait {
        None => {}
        Some(Wait::Reject) => field("wait", quote!(#runtime::Wait::Reject)),
        Some(Wait::UpTo(bound)) => {
            let bound = duration_tokens(*bound);
            field("wait", quote!(#runtime::Wait::UpTo(#bound)));
        }
    }
    if let Some((name, OnErrorResult::Always(variant))) = &args.on_error_result {
        let variant = format_ident!("{variant}");
        field(&name.to_string(), quote!(#runtime::OnErrorResult::#variant));
    }
    if let Some((_, on_doubt)) = &args.on_doubt {
        let variant = match on_doubt {
            OnDoubt::Fail => format_ident!("Fail"),
            OnDoubt::Rerun => format_ident!("Rerun"),
            OnDoubt::Verify(_) => format_ident!("Verify"),
        };
        field("on_doubt", quote!(#runtime::OnDoubt::#variant));
    }
    if let Some(bytes) = &args.max_result_bytes {
        field("max_result_bytes", quote!(#bytes));
    }
    if let Some((name, yes)) = &args.run_unprotected {
        field(&name.to_string(), quote!(#yes));
    }
    fields
}

fn duration_tokens(duration: Duration) -> TokenStream {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    quote!(::core::time::Duration::new(#seconds, #nanos))
}

/// The input schema that rmcp would find without this macro.
fn author_schema(target: &Target, runtime: &Path) -> TokenStream {
    match (&target.tool.input_schema, &target.input) {
        (Some(schema), _) => schema.to_token_stream(),
        (None, Some(ty)) => quote!(#runtime::input_schema::<#ty>()),
        (None, None) => quote!(#runtime::empty_input_schema()),
    }
}

/// The output schema that rmcp finds.
fn output_schema(target: &Target, runtime: &Path) -> Option<TokenStream> {
    match (&target.tool.output_schema, &target.output) {
        (Some(schema), _) => Some(schema.to_token_stream()),
        (None, Some(ty)) => Some(quote!(#runtime::output_schema::<#ty>())),
        (None, None) => None,
    }
}

/// `#[tool(…)]` as the author wrote it, with our entry in `meta`. If a key argument is added, its
/// property is in `input_schema`.
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
        // Uses the type's span, so that a mismatch is reported where the author can fix it.
        Parameter::Connection(ty) => {
            let span = Span::mixed_site().located_at(ty.span());
            let connection = Ident::new("connection", span);
            let lent = match ty {
                Type::Reference(reference) => &*reference.elem,
                ty => ty,
            };
            quote_spanned!(span=> #runtime::Lends::<#lent>::lend(#connection))
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
    let (run, connection, verify) = if target.connection().is_some() {
        let connection = Some(quote!(, #connection));
        (quote!(run_in_transaction), connection, None)
    } else if args.transaction.is_some() {
        (quote!(run_in_shared_transaction), None, None)
    } else {
        let verify = verify(args, runtime);
        (quote!(run_under_lease), None, Some(quote!(#verify,)))
    };
    let original = &target.original.sig.ident;
    // Uses the return type's span, where a result that is not a tool result has to be fixed.
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
    // The author's own `self`: in a `macro_rules` another one would not be found.
    let this_server = &receiver.self_token;
    let idempotency: Expr = args
        .idempotency
        .clone()
        .unwrap_or_else(|| parse_quote!(#this_server.idempotency));
    quote! {
        #vis async fn #name #generics (#receiver, #call: #runtime::Call #schema)
            -> ::core::result::Result<#output, #runtime::ErrorData> #where_clause
        {
            #runtime::answer::<Self, _>(#call, move |#call| async move {
                #runtime::#run(&#idempotency, Self::#options, #this_server, #call, #verify |#this, #taken #connection| {
                    ::std::boxed::Box::pin(async move {
                        let #running = { #parts_binding #this.#original(#(#arguments),*) };
                        #runtime::Outcome::returned(#returned)
                    })
                }).await
            }).await #converted
        }
    }
}

/// The author's verify function, as the runtime calls it.
fn verify(args: &Args, runtime: &Path) -> TokenStream {
    let Some((_, OnDoubt::Verify(function))) = &args.on_doubt else {
        return quote!(::core::option::Option::None);
    };
    let local = |name: &str| Ident::new(name, Span::mixed_site());
    let (server, call) = (local("server"), local("call"));
    // Uses the path's span, where a function with another signature has to be fixed.
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
