// Two of rmcp's files start their own program once more, as a server, with the name of the test that serves.
// Here that name has the file's name before it. So a test of the short name hands over to it.

fn hand_over(variable: &str, name: &str) {
    use std::os::unix::process::CommandExt as _;

    if std::env::var_os(variable).is_some() {
        let this = std::env::current_exe().expect("this program");
        let arguments = [
            "--exact",
            name,
            "--quiet",
            "--nocapture",
            "--test-threads",
            "1",
        ];
        panic!(
            "{}",
            std::process::Command::new(this).args(arguments).exec()
        );
    }
}

#[test]
fn cancelled_response_helper() {
    hand_over(
        "RMCP_CANCELLED_RESPONSE_HELPER",
        "test_cancelled_response::cancelled_response_helper",
    );
}

#[test]
fn stdio_response_concurrency_helper() {
    hand_over(
        "RMCP_STDIO_RESPONSE_CONCURRENCY_HELPER",
        "test_stdio_response_concurrency::stdio_response_concurrency_helper",
    );
}
