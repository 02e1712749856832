//! What an answer of the server means.

use super::*;

fn kind(message: &str, key_maker: KeyMaker, believed: Believed) -> ResultKind {
    Answered::by_server(Bytes::from(message.to_owned()), None, key_maker, believed).kind
}

#[test]
fn answers_mean_what_the_page_says() {
    use KeyMaker::{Client, Model, Nobody};
    use ResultKind as K;
    use ServerError::{MayHaveActed, NothingHappened};
    for (message, key_maker, error, expected) in [
        (
            r#"{"id":1,"result":{"content":[]}}"#,
            Nobody,
            MayHaveActed,
            K::Success,
        ),
        (
            r#"{"id":1,"result":{"isError":false}}"#,
            Client,
            MayHaveActed,
            K::Success,
        ),
        (
            r#"{"id":1,"result":{"isError":true}}"#,
            Client,
            NothingHappened,
            K::ErrorResult,
        ),
        (
            r#"{"id":1,"result":{"isError":true}}"#,
            Model,
            NothingHappened,
            K::ErrorResult,
        ),
        (
            r#"{"id":1,"result":{"isError":true}}"#,
            Nobody,
            MayHaveActed,
            K::NotExecuted,
        ),
        (
            r#"{"id":1,"result":{"resultType":"input_required"}}"#,
            Client,
            NothingHappened,
            K::InputRequired,
        ),
        (
            r#"{"id":1,"result":{"resultType":"task"}}"#,
            Client,
            NothingHappened,
            K::Task,
        ),
        (
            r#"{"id":1,"error":{"code":1,"message":""}}"#,
            Client,
            NothingHappened,
            K::NotExecuted,
        ),
        (
            r#"{"id":1,"error":{"code":1,"message":""}}"#,
            Nobody,
            MayHaveActed,
            K::Interrupted,
        ),
        (r#"{"id":1}"#, Nobody, NothingHappened, K::Interrupted),
        (
            r#"{"id":1,"error":{"data":{"type":"idempotency_outcome_unknown","outcome":"unknown","action":"ask_operator"}}}"#,
            Client,
            NothingHappened,
            K::Interrupted,
        ),
        (
            r#"{"id":1,"error":{"data":{"io.github.mcp-idempotent/in-doubt":{"outcome":"unknown","action":"ask_operator"}}}}"#,
            Client,
            NothingHappened,
            K::Interrupted,
        ),
        (
            r#"{"id":1,"error":{"data":{"type":"idempotency_key_in_progress","outcome":"unknown","action":"wait"}}}"#,
            Client,
            MayHaveActed,
            K::NotExecuted,
        ),
        (
            r#"{"id":1,"result":{"isError":true,"_meta":{"io.github.mcp-idempotent/refusal":{"outcome":"unknown","action":"ask_operator"}}}}"#,
            Client,
            NothingHappened,
            K::Interrupted,
        ),
    ] {
        let believed = Believed {
            server_error: error,
            refusals: true,
        };
        assert_eq!(kind(message, key_maker, believed), expected, "{message}");
    }
}

#[test]
fn a_refusal_that_a_tool_passes_on_proves_no_more_than_other_errors() {
    let data = r#"{"type":"idempotency_store_unavailable","outcome":"not_committed","action":"retry_same_key"}"#;
    let messages = [
        format!(r#"{{"id":1,"error":{{"data":{data}}}}}"#),
        format!(
            r#"{{"id":1,"result":{{"isError":true,"_meta":{{"io.github.mcp-idempotent/refusal":{data}}}}}}}"#
        ),
    ];
    for (refusals, server_error, expected) in [
        (true, ServerError::MayHaveActed, ResultKind::NotExecuted),
        (false, ServerError::MayHaveActed, ResultKind::Interrupted),
        (false, ServerError::NothingHappened, ResultKind::NotExecuted),
    ] {
        let believed = Believed {
            server_error,
            refusals,
        };
        for message in &messages {
            let found = kind(message, KeyMaker::Client, believed);
            assert_eq!(found, expected, "{message}");
        }
    }
}
