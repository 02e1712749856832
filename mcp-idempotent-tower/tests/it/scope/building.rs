//! What cannot be settled is refused when the server is built.

use mcp_idempotent_tower::{Idempotency, IdempotencyBuilder, MemoryStore, Scope, Store};

fn builder() -> IdempotencyBuilder<MemoryStore> {
    Idempotency::builder("desk", MemoryStore::new())
}

fn over_http<S: Store>(builder: IdempotencyBuilder<S>) -> IdempotencyBuilder<S> {
    builder.with_scope_from_http(|_| Ok(Scope::new("somebody over HTTP")))
}

#[test]
fn a_server_that_says_nothing_of_its_callers_is_not_built_and_is_told_the_choices() {
    let error = builder().build().unwrap_err().to_string();
    for choice in [
        "`with_one_caller()`",
        "`with_fixed_scope(\"…\")`",
        "`with_scope_from(…)`",
        "`with_scope_from_http(…)`",
        "`with_scope_shared_by_all_callers()`",
    ] {
        assert!(error.contains(choice), "{error}");
    }
}

#[test]
fn each_word_about_the_callers_is_enough() {
    for said in [
        builder().with_one_caller(),
        builder().with_fixed_scope("front desk"),
        builder().with_scope_from(|_| Ok(Scope::new("ann"))),
        over_http(builder()),
        builder().with_scope_shared_by_all_callers(),
        over_http(builder()).with_one_caller(),
        over_http(builder().with_one_caller()),
    ] {
        said.build().unwrap();
    }
    Idempotency::for_stdio("desk", MemoryStore::new()).unwrap();
}

#[test]
fn words_about_the_callers_that_do_not_go_together_are_refused() {
    for (said, names) in [
        (
            over_http(builder()).with_fixed_scope("front desk"),
            ["`with_scope_from_http`", "`with_fixed_scope`"],
        ),
        (
            builder()
                .with_one_caller()
                .with_scope_shared_by_all_callers(),
            ["`with_one_caller`", "`with_scope_shared_by_all_callers`"],
        ),
        (
            builder().with_fixed_scope("one").with_fixed_scope("two"),
            ["`with_fixed_scope`"; 2],
        ),
        (
            over_http(over_http(builder()).with_one_caller()),
            ["`with_one_caller`", "`with_scope_from_http`"],
        ),
    ] {
        let error = said.build().unwrap_err().to_string();
        for name in names {
            assert!(error.contains(name), "{error}");
        }
    }
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn one_caller_is_not_believed_of_a_store_that_machines_share() {
    use mcp_idempotent_tower::PostgresStore;

    // Nobody is asked before there are calls.
    let store = || {
        let pool = sqlx::PgPool::connect_lazy("postgres://nobody@localhost/nothing");
        PostgresStore::new(pool.unwrap())
    };
    let error = Idempotency::for_stdio("desk", store()).unwrap_err();
    let remedy = "`Idempotency::builder(..).with_fixed_scope(\"…\")`";
    assert!(error.to_string().contains(remedy), "{error}");
    let built = Idempotency::builder("desk", store()).with_one_caller();
    assert_eq!(built.build().unwrap_err(), error);

    let both = over_http(Idempotency::builder("desk", store())).with_one_caller();
    let error = both.build().unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`Idempotency::builder(..).with_scope_from(…)`"),
        "{error}"
    );

    let named = Idempotency::builder("desk", store()).with_fixed_scope("front desk");
    named.build().unwrap();
}
