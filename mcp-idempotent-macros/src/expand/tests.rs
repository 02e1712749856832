use quote::quote;

use super::*;

#[track_caller]
fn assert_expands(args: TokenStream, item: TokenStream, expected: TokenStream) {
    assert_eq!(expand(args, item).to_string(), expected.to_string());
}

#[test]
fn a_tool_with_a_transaction_becomes_a_wrapper_of_a_few_lines() {
    let item = quote! {
        /// Charges a card.
        #[tool]
        async fn charge(&self, tx: &mut PgConnection, Parameters(c): Parameters<Charge>)
            -> Result<Json<Receipt>, ErrorData>
        {
            book(tx, c).await
        }
    };
    let expected = quote! {
        #[doc(hidden)]
        const CHARGE_IDEMPOTENT: &'static ::mcp_idempotent_tower::__private::ToolOptions =
            &::mcp_idempotent_tower::__private::ToolOptions {
                output_schema: ::core::option::Option::Some(|| ::mcp_idempotent_tower::__private::output_schema::<Receipt>()),
                ..::mcp_idempotent_tower::__private::ToolOptions::TRANSACTION
            };
        /// Charges a card.
        #[tool(meta = ::mcp_idempotent_tower::__private::meta(Self::CHARGE_IDEMPOTENT, ::core::option::Option::None))]
        async fn charge(&self, call: ::mcp_idempotent_tower::__private::Call, _: ::mcp_idempotent_tower::__private::Parameters<Parameters<Charge> >)
            -> ::core::result::Result<::mcp_idempotent_tower::__private::Json<Receipt>, ::mcp_idempotent_tower::__private::ErrorData>
        {
            ::mcp_idempotent_tower::__private::answer::<Self, _>(call, move |call| async move {
                ::mcp_idempotent_tower::__private::run_in_transaction(&self.idempotency, Self::CHARGE_IDEMPOTENT, self, call, |this, call, connection| {
                    ::std::boxed::Box::pin(async move {
                        let running = { let mut parts = call.into_parts(&this); this.charge_unprotected(::mcp_idempotent_tower::__private::Lends::<PgConnection>::lend(connection), parts.extract()?) };
                        ::mcp_idempotent_tower::__private::Outcome::returned(running.await)
                    })
                }).await
            }).await.map(::mcp_idempotent_tower::__private::Json::new)
        }
        /// Charges a card.
        async fn charge_unprotected(&self, tx: &mut PgConnection, Parameters(c): Parameters<Charge>)
            -> Result<Json<Receipt>, ErrorData>
        {
            book(tx, c).await
        }
    };
    assert_expands(TokenStream::new(), item, expected);
}

#[test]
fn the_options_become_a_constant_and_the_key_argument_a_property() {
    let args = quote! {
        key = required, key_argument = "a/b", also_known_as = "welcome", ignore("trace", "/meta/at"), retention = "24h",
        wait = reject, lease = "500ms", on_error = in_doubt, on_error_result = record, idempotency = self.state.dedup,
        crate = renamed
    };
    let item = quote! {
        #[cfg(unix)]
        #[rmcp::tool(name = "say", meta = my_meta())]
        #[allow(clippy::unused_self)]
        pub(crate) fn greet(&self) -> String { String::new() }
    };
    let expected = quote! {
        #[cfg(unix)]
        #[doc(hidden)]
        const GREET_IDEMPOTENT: &'static renamed::__private::ToolOptions = &renamed::__private::ToolOptions {
            policy: renamed::__private::PolicyOverride {
                key: ::core::option::Option::Some(renamed::__private::KeyRequirement::Required),
                on_error: ::core::option::Option::Some(renamed::__private::OnError::InDoubt),
                key_argument: ::core::option::Option::Some(::std::borrow::Cow::Borrowed("/a~1b")),
                ignored: ::core::option::Option::Some(::std::borrow::Cow::Borrowed(&[::std::borrow::Cow::Borrowed("/trace"), ::std::borrow::Cow::Borrowed("/meta/at")])),
                also_known_as: ::core::option::Option::Some(::std::borrow::Cow::Borrowed("welcome")),
                retention: ::core::option::Option::Some(::core::time::Duration::new(86400u64, 0u32)),
                lease: ::core::option::Option::Some(::core::time::Duration::new(0u64, 500000000u32)),
                wait: ::core::option::Option::Some(renamed::__private::Wait::Reject),
                on_error_result: ::core::option::Option::Some(renamed::__private::OnErrorResult::Record),
                ..renamed::__private::PolicyOverride::NONE
            },
            key_property: ::core::option::Option::Some("a/b"),
            input_schema: ::core::option::Option::Some(|| renamed::__private::empty_input_schema()),
            ..renamed::__private::ToolOptions::LEASE
        };
        #[cfg(unix)]
        #[rmcp::tool(
            name = "say",
            input_schema = renamed::__private::with_key_argument(Self::GREET_IDEMPOTENT),
            meta = renamed::__private::meta(Self::GREET_IDEMPOTENT, ::core::option::Option::Some(my_meta()))
        )]
        pub(crate) async fn greet(&self, call: renamed::__private::Call)
            -> ::core::result::Result<renamed::__private::CallToolResponse, renamed::__private::ErrorData>
        {
            renamed::__private::answer::<Self, _>(call, move |call| async move {
                renamed::__private::run_under_lease(&self.state.dedup, Self::GREET_IDEMPOTENT, self, call, ::core::option::Option::None, |this, _| {
                    ::std::boxed::Box::pin(async move {
                        let running = { this.greet_unprotected() };
                        renamed::__private::Outcome::returned(running)
                    })
                }).await
            }).await
        }
        #[cfg(unix)]
        #[allow(clippy::unused_self)]
        pub(crate) fn greet_unprotected(&self) -> String { String::new() }
    };
    assert_expands(args, item, expected);
}

#[test]
fn a_method_that_another_macro_boxed_is_awaited() {
    for output in [
        quote!(Pin<Box<dyn Future<Output = String> + Send + '_>>),
        quote!(
            ::std::pin::Pin<::std::boxed::Box<dyn ::core::future::Future<Output = String> + '_>>
        ),
        quote!(BoxFuture<'_, String>),
        quote!(impl Future<Output = String> + Send),
    ] {
        let item = quote!(#[tool] fn greet(&self) -> #output { todo() });
        let expanded = expand(quote!(on_error = release), item).to_string();
        assert!(expanded.contains("running . await"), "{expanded}");
    }
    let item = quote!(
        #[tool]
        fn greet(&self) -> Pin<String> {
            todo()
        }
    );
    let expanded = expand(quote!(on_error = release), item).to_string();
    assert!(!expanded.contains("running . await"), "{expanded}");
}

#[test]
fn a_wrong_use_keeps_a_method_of_the_name() {
    let item = quote!(
        #[tool(name = "x")]
        fn greet(&self, a: &mut A, b: &mut B) {}
    );
    let expanded = expand(TokenStream::new(), item).to_string();
    assert!(expanded.contains("compile_error"), "{expanded}");
    assert!(
        expanded.contains("# [tool] fn greet (& self) { }"),
        "{expanded}"
    );
    assert!(
        expanded.contains("fn greet_unprotected (& self , a"),
        "{expanded}"
    );
}

#[test]
fn how_long_doubt_is_kept_may_be_set_in_either_mode() {
    let expanded = |args: TokenStream| {
        let item = quote!(
            #[tool]
            fn greet(&self, tx: &mut SqliteConnection) {}
        );
        expand(args, item).to_string()
    };
    let kept = expanded(quote!(in_doubt_retention = "30days"));
    assert!(!kept.contains("compile_error"), "{kept}");
    let shorter = expanded(quote!(in_doubt_retention = "1h", retention = "2h"));
    assert!(shorter.contains("compile_error"), "{shorter}");
}

#[test]
fn what_a_server_would_refuse_at_every_call_does_not_compile() {
    let does_not_compile = |args: TokenStream| {
        let item = quote!(
            #[tool]
            fn greet(&self) {}
        );
        let expanded = expand(quote!(on_error = release, #args), item).to_string();
        expanded.contains("compile_error")
    };
    for args in [
        quote!(retention = "36550days"),
        quote!(lease = "36526days"),
        quote!(wait = "0s"),
        quote!(heartbeat = "6s", lease = "10s"),
        quote!(in_doubt_retention = "1h", retention = "2h"),
        quote!(in_doubt_retention = "1h", window = "2h"),
        quote!(verify_timeout = "10s"),
        quote!(verify_timeout = "10s", on_doubt = rerun),
        quote!(max_result_bytes = 0),
        quote!(transaction_timeout = "10s"),
    ] {
        assert!(does_not_compile(args.clone()), "{args}");
    }
    for args in [
        quote!(retention = "100years"),
        quote!(retention = "36525days", in_doubt_retention = "36525days"),
        quote!(heartbeat = "5s", lease = "10s"),
        quote!(verify_timeout = "10s", on_doubt = verify(Self::ask)),
        quote!(max_result_bytes = 1),
    ] {
        assert!(!does_not_compile(args.clone()), "{args}");
    }
}
