//! What the examples say of their arguments.

use super::run;

#[tokio::test]
async fn wrong_arguments_are_explained_and_exit_with_2() {
    for (name, arguments, explanation) in [
        ("payments", &["--store", "mysql://x"][..], "sqlite://FILE"),
        ("payments", &["--store"], "--store"),
        ("payments", &["--http", "0.0.0.0:8080"], "127.0.0.1"),
        ("payments", &["--http", "nonsense"], "127.0.0.1:8080"),
        ("payments", &["--hold-ms", "soon"], "milliseconds"),
        ("payments", &["--frobnicate"], "--frobnicate"),
        ("http_postgres", &[], "--store"),
        ("http_postgres", &["--store", "memory"], "postgres://URL"),
        ("http_postgres", &["--store", "postgres://x"], "--user"),
        ("http_postgres", &["--user", "alice"], "NAME=TOKEN"),
        (
            "http_postgres",
            &["--user", "a=1", "--user", "a=2"],
            "twice",
        ),
        ("http_postgres", &["--http", "0.0.0.0:8080"], "127.0.0.1"),
        (
            "http_postgres",
            &["--store", "postgres://x", "--user", "a=1", "--user", "b=1"],
            "token",
        ),
        (
            "http_postgres",
            &[
                "--store",
                "postgres://x",
                "--user",
                "a=1",
                "--withdrawn",
                "b",
            ],
            "--user",
        ),
        (
            "payments",
            &["--payment-url", "https://x"],
            "http://HOST:PORT/PATH",
        ),
        ("payments", &["--lease-ms", "long"], "milliseconds"),
        ("external_api", &["--store", "memory"], "postgres://URL"),
        ("external_api", &["extra"], "extra"),
        ("retry_storm", &["--store", "memory"], "postgres://URL"),
        ("retry_storm", &["extra"], "extra"),
    ] {
        let ended = run(name, arguments).await;
        assert_eq!(ended.code, Some(2), "{name} {arguments:?}");
        assert_eq!(ended.stdout, "", "{name} {arguments:?}");
        let first = ended.stderr.lines().next().unwrap();
        assert!(first.starts_with("error: "), "{first}");
        assert!(first.contains(explanation), "{first}");
    }
}

#[tokio::test]
async fn help_goes_to_standard_output_and_exits_with_0() {
    for name in ["external_api", "http_postgres", "payments", "retry_storm"] {
        let ended = run(name, &["--help"]).await;
        assert_eq!(ended.code, Some(0));
        assert!(ended.stdout.contains("--store postgres://URL"));
        assert_eq!(ended.stderr, "");
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_is_explained_and_exits_with_1() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = directory.path().join("missing").join("payments.db");
    let nowhere = format!("sqlite://{}", nowhere.display());
    let closed = "postgres://somebody:secret@127.0.0.1:1/nothing";
    for (store, explanation) in [
        (&*nowhere, "unable to open database file"),
        (closed, "cannot connect to Postgres at 127.0.0.1:1"),
    ] {
        let ended = run("payments", &["--store", store]).await;
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains(explanation), "{}", ended.stderr);
        assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
    }
}
